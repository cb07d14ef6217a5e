"""`trades`: a dataset in Avro, two schemas by which its records were written, and records."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro

from include.declare.writer_schemas import framed

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: trades
name: trades
version: 1.0.0
status: active

schema:
  - name: trades
    physicalType: topic
    logicalType: object
    customProperties:
      - {property: format, value: avro}
    properties:
      - {name: trade_id, logicalType: string, required: true, unique: true, primaryKey: true}
      - {name: traded_at, physicalName: tradedAt, logicalType: timestamp, required: true}
      - {name: quantity, logicalType: integer, required: true, logicalTypeOptions: {minimum: 1}}
      - {name: price, logicalType: number, physicalType: "decimal(18,4)"}
      - name: side
        logicalType: string
        quality:
          - {type: library, metric: invalidValues, mustBe: 0, arguments: {validValues: [BUY, SELL]}}
      - {name: settled_on, logicalType: string}
      - {name: venue, logicalType: string}
      - {name: note, logicalType: string}
      - {name: live, logicalType: boolean}
"""
PIPELINE = """\
topic: trades
partitions: 2
event_time: traded_at
lateness: 2 days
identity:
  columns: [trade_id]
  horizon: 3 days
gold:
  trade_days:
    kind: additive
    window: {column: traded_at, size: 1 day, as: day}
    keys: [side]
    partition: date_format(day, 'yyyy-MM')
    measures:
      trades: {count: "*"}
      quantity: {sum: quantity}
      worth: {sum: price}
"""
SILVER = '''\
"""`silver.trades`: an accepted trade as it is."""

from __future__ import annotations

from pyspark.sql import DataFrame


def silver(accepted: DataFrame) -> DataFrame:
    """Return the accepted trades unchanged."""
    return accepted
'''
SIDE = {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL", "SHORT"]}
DETAILS = {"type": "record", "name": "Details", "fields": [{"name": "side", "type": "Side"}]}
FIRST = {
    "type": "record",
    "name": "Trade",
    "namespace": "market.events",
    "fields": [
        {"name": "trade_id", "type": "string"},
        {"name": "tradedAt", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "ignored", "type": SIDE},
        {"name": "side", "type": "Side"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "details", "type": ["null", {**DETAILS, "fields": [{"name": "side", "type": SIDE}]}], "default": None},
        {"name": "quantity", "type": "long"},
        {"name": "trade_id", "type": {"type": "string", "avro.java.string": "String"}},
        {"name": "tradedAt", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "side", "type": ["null", "Side"], "default": None},
        {"name": "settled_on", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "venue", "type": "string", "default": "XNYS"},
        {"name": "live", "type": "boolean", "default": True},
        {"name": "tags", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
"""The fields in another order, `quantity` wider, `price` a decimal, `note` removed, five fields added."""


def trades_folder(datasets: Path) -> Path:
    """Write the dataset's folder below `datasets`."""
    folder = datasets / "trades"
    folder.mkdir(parents=True)
    for name, text in (("contract.yaml", CONTRACT), ("pipeline.yaml", PIPELINE), ("silver.py", SILVER)):
        (folder / name).write_text(text, "utf-8")
    return folder


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as a producer registers it."""
    return json.dumps(schema)


def encoded(schema: dict[str, Any], record: dict[str, Any], number: int) -> bytes:
    """Return a record in the wire format."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return framed(number, out.getvalue())


def first_trade(number: int, **fields: Any) -> dict[str, Any]:
    """Return a record of the first schema."""
    at = datetime(2026, 11, 30, 12, 0, number % 60, 123_000, tzinfo=UTC)
    plain = {"trade_id": f"t{number}", "tradedAt": at, "quantity": number + 1, "price": 1.25, "ignored": "BUY"}
    return plain | {"side": "SELL", "note": None} | fields


def second_trade(number: int, **fields: Any) -> dict[str, Any]:
    """Return a record of the second schema."""
    at = datetime(2026, 11, 30, 12, 0, number % 60, 123_456, tzinfo=UTC)
    plain = {"trade_id": f"t{number}", "tradedAt": at, "quantity": number + 1, "price": Decimal("10.50"), "side": "BUY"}
    more = {
        "settled_on": date(2026, 12, 2),
        "venue": "XETR",
        "live": False,
        "tags": {"a": 1},
        "details": {"side": "BUY"},
    }
    return plain | more | {"details": {"side": "BUY"}} | fields
