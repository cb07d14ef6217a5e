"""Small published tables as a driver would write them, for tests of readers and of the audit; no Spark, no broker.

`SmallWarehouse.write` makes each table one Delta commit; `move` publishes the versions that are there now.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from include.ground.paths import bronze_path, gold_path, rejected_path, silver_path, warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, TableVersion, publish

RELEASE = "0123456789ab"
UTC_MICROS = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
REASONS = pa.list_(pa.struct([("rule", pa.string()), ("column", pa.string()), ("detail", pa.string())]))
BRONZE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", UTC_MICROS),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("_batch_id", pa.int64()),
        ("_date", pa.string()),
    ]
)
SILVER = pa.schema(
    [
        ("event_id", pa.string()),
        ("kind", pa.string()),
        ("sold_at", UTC_MICROS),
        ("shop", pa.string()),
        ("amount", pa.decimal128(7, 2)),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", UTC_MICROS),
        ("_batch_id", pa.int64()),
        ("_month", pa.string()),
    ]
)
REJECTED = pa.schema(
    [
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_batch_id", pa.int64()),
        ("disposition", pa.string()),
        ("reasons", REASONS),
        ("contract_version", pa.string()),
        ("first_seen", UTC_MICROS),
        ("_month", pa.string()),
    ]
)
SHOP_DAYS = pa.schema(
    [
        ("day", pa.date32()),
        ("shop", pa.string()),
        ("sales", pa.int64()),
        ("turnover", pa.decimal128(38, 2)),
        ("mean_amount", pa.decimal128(38, 6)),
        ("kinds", pa.int64()),
        ("_first_batch", pa.int64()),
        ("_last_batch", pa.int64()),
        ("_revision", pa.int64()),
        ("_month", pa.string()),
    ]
)
SALES_CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
name: sales
version: 1.0.0
schema:
  - name: sales
    logicalType: object
    properties:
      - {name: event_id, logicalType: string, required: true, primaryKey: true}
      - {name: kind, logicalType: string}
      - {name: sold_at, logicalType: timestamp, required: true}
      - {name: shop, logicalType: string}
      - {name: amount, logicalType: number, physicalType: "decimal(7,2)"}
"""
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(day: int, hour: int = 12) -> datetime:
    """A time in March 2026, UTC."""
    return datetime(2026, 3, day, hour, tzinfo=UTC)


def bronze_row(
    offset: int, value: bytes | None, *, partition: int | None = 0, batch: int = 0, **other: Any
) -> dict[str, Any]:
    row = {"topic": "sales", "partition": partition, "offset": offset, "timestamp": NOON, "timestamp_type": 1}
    row |= {"key": b"k", "value": value, "headers": None, "_batch_id": batch, "_date": "2026-03-01"}
    return row | other


def silver_row(
    offset: int, event_id: str, *, partition: int | None = 0, batch: Any = 0, **other: Any
) -> dict[str, Any]:
    row = {"event_id": event_id, "kind": "sold", "sold_at": at(1), "shop": "north", "amount": Decimal("1.50")}
    row |= {"_topic": "sales", "_partition": partition, "_offset": offset, "_timestamp": NOON, "_batch_id": batch}
    return row | {"_month": "2026-03"} | other


def rejected_row(
    offset: int, disposition: str, *rules: str, partition: int | None = 0, batch: int = 0, **other: Any
) -> dict[str, Any]:
    reasons = [{"rule": rule, "column": "amount", "detail": f"seen by {rule}"} for rule in rules]
    row = {"_topic": "sales", "_partition": partition, "_offset": offset, "_batch_id": batch}
    row |= {"disposition": disposition, "reasons": reasons, "contract_version": "1.0.0", "first_seen": NOON}
    return row | {"_month": "2026-03"} | other


def bronze_metadata(
    batch: int, offsets: Mapping[int, tuple[int, int]], rows: Mapping[int, int] | None = None, topic_id: str = "T1"
) -> dict[str, Any]:
    counted = {p: end - start for p, (start, end) in offsets.items()} if rows is None else rows
    return {
        "app_id": "sales/bronze/1",
        "batches": [batch, batch],
        "topic": "sales",
        "topic_id": topic_id,
        "offsets": {str(p): list(span) for p, span in offsets.items()},
        "rows_by_partition": {str(p): count for p, count in counted.items()},
    }


@dataclass
class SmallWarehouse:
    """Tables of dataset `sales`: bronze, silver, rejected and gold.shop_days."""

    settings: Settings
    dataset: str = "sales"
    release: str = RELEASE
    names: dict[str, Path] = field(default_factory=dict)

    def write(self, layer: str, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any] | None = None) -> None:
        """Append rows to a layer (`gold`: shop_days) in one commit, with `metadata` as its userMetadata."""
        place, dataset, release = self.settings, self.dataset, self.release
        paths = {
            "bronze": (f"bronze.{dataset}", bronze_path(place, dataset), BRONZE, "_date"),
            "silver": (f"silver.{dataset}", silver_path(place, dataset, release), SILVER, "_month"),
            "rejected": (f"rejected.{dataset}", rejected_path(place, dataset, release), REJECTED, "_month"),
            "gold": ("gold.shop_days", gold_path(place, dataset, release, "shop_days"), SHOP_DAYS, "_month"),
        }
        name, path, schema, partition = paths[layer]
        self.names[name] = path
        properties = CommitProperties()
        if metadata is not None:
            transaction = Transaction(metadata["app_id"], metadata["batches"][1])
            properties = CommitProperties({"userMetadata": json.dumps(metadata)}, app_transactions=[transaction])
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        write_deltalake(str(path), table, mode="append", partition_by=[partition], commit_properties=properties)

    def move(self, batch: int = 0, offsets: Mapping[int, int] | None = None) -> Publication:
        """Publish the versions that the tables have now."""
        root = warehouse(self.settings)
        tables = {
            name: TableVersion(str(path.relative_to(root)), DeltaTable(str(path)).version())
            for name, path in self.names.items()
        }
        publication = Publication(self.dataset, self.release, batch, NOON, offsets or {0: 4}, tables)
        publish(self.settings, publication)
        return publication


def as_frame(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pl.DataFrame:
    """The rows as the frame that a reader of such a table gets."""
    return pl.DataFrame(pl.from_arrow(pa.Table.from_pylist([dict(row) for row in rows], schema=schema)))
