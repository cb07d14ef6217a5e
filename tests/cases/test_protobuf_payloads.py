"""Protobuf by the registry's framing: rows and reasons, and one JSON by both readers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from compactable_release import assert_same_rows, head_rows
from protobuf_shipments import FILES, OLD, PLACES, SHIPMENT, drawn, drawn_old, encoded, shipments
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from registry_stand_in import StandIn, registry_stand_in
from small_release import Record, SmallRelease, small_release
from test_nested_release import as_json
from test_recomputed_history import differing

from include.declare.avro_record import SchemaUnusable
from include.declare.contract import Column, Contract
from include.declare.protobuf_payloads import ProtobufFormat
from include.declare.protobuf_schemas import protobuf_schema
from include.declare.writer_schemas import known_schemas
from include.ground.protobuf_compiler import compiled
from include.ground.schema_registry import PROTOBUF, RegisteredSchema
from include.ground.settings import Settings
from spark_jobs.contract.payload_texts import PayloadTexts

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: shipments
name: shipments
version: 1.0.0
status: active
schema:
  - name: shipments
    physicalType: topic
    logicalType: object
    customProperties:
      - {property: format, value: protobuf}
      - {property: maxDepth, value: 6}
    properties:
      - {name: shipment_id, logicalType: string, required: true, unique: true, primaryKey: true}
      - {name: sent_at, logicalType: timestamp, required: true, logicalTypeOptions: {minimum: "1970-01-01T00:00:00Z"}}
      - name: items
        logicalType: array
        items:
          logicalType: object
          properties:
            - {name: sku, logicalType: string, logicalTypeOptions: {minLength: 1}}
            - {name: grams, logicalType: integer, physicalType: bigint, logicalTypeOptions: {minimum: 0}}
            - {name: states, logicalType: array, items: {logicalType: string}}
      - name: state
        logicalType: string
        quality:
          - {type: library, metric: invalidValues, mustBe: 0, arguments: {validValues: [UNKNOWN, SENT]}}
      - {name: city, logicalType: string, physicalName: to.city}
      - {name: zip, logicalType: integer, physicalName: to.zip}
      - {name: card, logicalType: string}
      - {name: note, logicalType: integer, physicalType: bigint}
      - name: weights
        logicalType: object
        customProperties: [{property: additionalProperties, value: double}]
      - {name: raw, logicalType: string, physicalType: binary}
"""
PIPELINE = """\
topic: shipments
partitions: 2
event_time: sent_at
lateness: 2 days
identity: {columns: [shipment_id], horizon: 3 days}
gold:
  shipment_days:
    kind: additive
    window: {column: sent_at, size: 1 day, as: day}
    keys: [city]
    measures: {shipments: {count: "*"}}
"""
AT = 1_795_953_600
LAST, END = b"\xfb\xff\xff\xff\x0f", b"\xfc\xff\xff\xff\x0f"
"""The tags of OLD's last group."""


def shipment(number: int, **fields: Any) -> Any:
    found = shipments().message((1,))
    found.shipment_id, found.state = f"s{number}", 1
    found.sent_at.seconds, found.sent_at.nanos = AT + number, 250_000_000
    item = found.items.add(sku=f"k{number}", grams=2**62, code=b"\xff")
    item.states.extend([0, 2])
    found.weights[number] = 0.5
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def sent(number: int, **fields: Any) -> bytes:
    return encoded(2, shipment(number, **fields))


def nested(levels: int) -> bytes:
    found = shipment(50)
    part = found.items[0]
    for _ in range(levels):
        part = part.part
        part.sku = "x"
    return encoded(2, found)


def filled_from(spark: SparkSession, folder: Path, registry: StandIn, backend: str = "local") -> SmallRelease:
    registry.add("geo", PLACES, 1, "PROTOBUF")
    registry.add("shipments-value", SHIPMENT, 2, "PROTOBUF")
    registry.references[2] = [{"name": "geo/places.proto", "subject": "geo", "version": 1}]
    registry.add("shipments-value", OLD, 3, "PROTOBUF")
    registry.add("shipments-value", "message {", 4, "PROTOBUF")
    registry.add("shipments-value", '{"type": "string"}', 5)
    dataset = folder / "datasets" / "shipments"
    dataset.mkdir(parents=True)
    (dataset / "contract.yaml").write_text(CONTRACT, "utf-8")
    (dataset / "pipeline.yaml").write_text(PIPELINE, "utf-8")
    (dataset / "silver.py").write_text(
        "from pyspark.sql import DataFrame\n\n\ndef silver(accepted: DataFrame) -> DataFrame:\n    return accepted\n"
    )
    settings = Settings(state=folder, backend=backend, schema_registry_url=registry.address)
    release = small_release(spark, settings, "shipments", dataset)
    there = shipment(3, card="visa")
    there.to.city, there.to.zip, there.note.value = "Bern", 0, 7
    good = [sent(1), sent(2, raw=b"\xff"), encoded(2, there), sent(1)]
    whole = sent(4)
    old = protobuf_schema(compiled(OLD, {})).message((0,))
    old.shipment_id = "old"
    bad = [
        b"{}",
        b"\x00\x00\x00\x03\xe7\x00",
        whole[:-1],
        whole + b"\x03",
        encoded(2, shipment(5), b"\x02\x0a"),
        encoded(2, shipment(5), b"\x02"),
        encoded(4, shipment(5)),
        encoded(5, shipment(5)),
        whole.replace(b"k4", b"\xff4"),
        nested(8),
        sent(6, state=2),
        sent(7, state=9),
        encoded(3, old, b"\x00"),
        whole.replace(b"s4", b"s5").replace(b"k4", b"k\x01"),
    ]
    release.take([Record(each) for each in good])
    release.take([*(Record(each) for each in bad), Record(None)])
    return release


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRelease]:
    with registry_stand_in() as registry:
        yield filled_from(spark, tmp_path_factory.mktemp("shipments"), registry)


def test_rows_have_the_fields_and_defaults_of_the_messages(filled: SmallRelease) -> None:
    columns = ["shipment_id", "sent_at", "items", "state", "city", "zip", "card", "note", "raw"]
    at = datetime.fromtimestamp(AT, UTC).replace(microsecond=250_000)
    items = [[{"sku": f"k{n}", "grams": 2**62, "states": ["UNKNOWN", "LOST"]}] for n in (1, 2, 3)]
    assert filled.silver().select(columns).rows() == [
        ("s1", at.replace(second=1), items[0], "SENT", None, None, None, None, b""),
        ("s2", at.replace(second=2), items[1], "SENT", None, None, None, None, b"\xff"),
        ("s3", at.replace(second=3), items[2], "SENT", "Bern", 0, "visa", 7, b""),
    ]
    assert as_json(filled.silver()["weights"].to_list()[0]) == {"1": 0.5}


def test_records_that_cannot_be_read_are_rejected_with_the_reason(filled: SmallRelease) -> None:
    found = filled.rejected().filter(pl.col("_batch_id") == 1)["reasons"].to_list()
    reasons = [(each[0]["rule"], each[0]["column"], each[0]["detail"]) for each in found]
    assert reasons[6][2].startswith("schema 4 is refused by Protobuf's compiler: record.proto:1:9: ")
    assert [*reasons[:6], *reasons[7:]] == [
        ("wire_format", "", "7B7D"),
        ("unknown_schema", "", "999"),
        reasons[2],
        ("undecodable", "", "schema 2"),
        ("undecodable", "", "schema 2 has no message of index 5"),
        reasons[5],
        ("unusable_schema", "", "schema 5 is of type AVRO"),
        ("bad_utf8", "", "schema 2, at $.items[0].sku"),
        ("depth", "", "schema 2, at $.items[0].part.part.part.part"),
        ("enum", "state", "LOST"),
        ("type", "state", "9"),
        ("required", "sent_at", None),
        ("control_char", "", "$.items[0].sku"),
        ("null_value", "", None),
    ]
    assert [reasons[n][0] for n in (2, 5)] == ["undecodable"] * 2


def test_deep_audit_and_the_list_of_schemas_need_no_compiler(
    filled: SmallRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.ground.schema_registry.compiled", None)
    assert differing(filled) == {}
    kept = known_schemas(filled.settings, "shipments")
    assert {number: schema.type for number, schema in kept.items()} == {
        **dict.fromkeys((2, 3, 4), "PROTOBUF"),
        **{5: "AVRO", 999: "UNKNOWN"},
    }


@pytest.mark.extended
def test_both_backends_give_the_same_rows(spark: SparkSession, filled: SmallRelease, tmp_path: Path) -> None:
    with registry_stand_in() as registry:
        assert_same_rows(head_rows(filled_from(spark, tmp_path / "spark", registry, "spark")), head_rows(filled))


INNER = (Column("code", "string"), Column("sku", "string"), Column("part", "variant"))
KEPT = [
    "weights",
    "state",
    "took",
    "note",
    "more",
    "card",
    "cash_at",
    "free",
    "big",
    "small",
    "fixed",
    "below",
    "single",
    "many",
    "count",
    "maybe",
    "done",
]
COLUMNS = (
    Column("shipment_id", "string"),
    Column("sent_at", "timestamp"),
    Column("items", "array", fields=(Column("", "object", fields=INNER),)),
    Column("city", "string", physical_name="to.city"),
    Column("by_name", "map", fields=(Column("", "object", fields=INNER),)),
    Column("raw", "binary"),
    *(Column(name, "variant") for name in KEPT),
)
DRAWN = Contract("d", "1", COLUMNS, (), (), payload=ProtobufFormat())


def as_read(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the contract reads of a record."""

    def item(each: dict[str, Any]) -> dict[str, Any]:
        return {name: each[name] for name in ("code", "sku", "part") if name in each}

    read = {name: value for name, value in found.items() if name != "to"}
    to = {"to": {"city": found["to"]["city"]}} if "to" in found else {}
    items, named = map(item, found["items"]), {name: item(each) for name, each in found["by_name"].items()}
    return {**read, **to, "items": list(items), "by_name": named}


def test_both_readers_make_one_json_of_drawn_and_damaged_records(spark: SparkSession) -> None:
    rng, schema = random.Random(5), RegisteredSchema(7, PROTOBUF, compiled(SHIPMENT, FILES))
    whole = [encoded(7, drawn(rng, shipments())) for _ in range(2000)]
    cut = [each[: rng.randrange(8, len(each))] for each in whole]
    changed = [each[: (at := rng.randrange(8, len(each)))] + rng.randbytes(1) + each[at + 1 :] for each in whole]
    payloads = [*whole, *cut, *changed]
    bronze = spark.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary()), "n": range(len(payloads))}))
    read = PayloadTexts(DRAWN, (schema,)).of(bronze).orderBy("n").select("_unread", F.col("value").cast("string"))
    refused = 0
    for number, (payload, (why, text)) in enumerate(zip(payloads, read.collect(), strict=True)):
        own = ProtobufFormat().text(payload, {7: schema}, COLUMNS)
        assert (why is None) == (own is not None), (payload.hex(), why)
        refused += why is not None
        if number < len(whole):
            quoted = (own or "").replace(":NaN", ':"NaN"').replace(":Infinity", ':"Infinity"')
            assert as_read(json.loads(text)) == as_read(json.loads(quoted)), payload.hex()
    assert 2000 < refused < 3500


def test_both_readers_make_one_json_of_groups(spark: SparkSession) -> None:
    rng, schema = random.Random(6), RegisteredSchema(3, PROTOBUF, compiled(OLD, {}))
    whole = [encoded(3, drawn_old(rng), b"\0") for _ in range(300)]
    # The parts of a group that comes twice are one; one that ends as another one, or does not end, is no group.
    ends = [(LAST, END), (LAST + END + LAST, END), (LAST, b""), (LAST, b"\x2c")]
    whole += [whole[0] + begin + b"\x08\x01" + end for begin, end in ends]
    cut = [each[: rng.randrange(8, len(each) + 1)] for each in whole]
    payloads = [*whole, *cut]
    columns = tuple(Column(name, "variant") for name in ("shipment_id", "part", "last"))
    bronze = spark.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary()), "n": range(len(payloads))}))
    texts = PayloadTexts(Contract("d", "1", columns, (), (), payload=ProtobufFormat()), (schema,)).of(bronze)
    read = texts.orderBy("n").select(F.col("value").cast("string")).collect()
    own = [ProtobufFormat().text(each, {3: schema}, columns) for each in payloads]
    wanted = {each.name for each in columns}
    assert [text and json.loads(text) for (text,) in read] == [
        text and {name: value for name, value in json.loads(text).items() if name in wanted} for text in own
    ]
    assert json.loads(own[300] or "")["last"] == json.loads(own[301] or "")["last"] == {"kind": "ONE"}
    assert own[302:304] == [None, None]
    assert sum(text is None for text in own) > 50


def test_proto2_has_no_value_where_none_was_sent_and_skips_unknown_symbols(spark: SparkSession) -> None:
    schema = RegisteredSchema(3, PROTOBUF, compiled(OLD, {}))
    fields = b"\x0a\x01x", b"\x10\x09", b"\x18\x01\x18\x09\x18\x02", b"\xa3\x06\x08\x01\xa4\x06"
    payload = b"".join((b"\x00\x00\x00\x00\x03\x00", *fields))
    columns = tuple(Column(name, "variant") for name in ("shipment_id", "kind", "kinds", "amount", "part"))
    bronze = spark.createDataFrame(pa.table({"value": pa.array([payload], pa.binary())}))
    ((text,),) = (
        PayloadTexts(Contract("d", "1", columns, (), (), payload=ProtobufFormat()), (schema,))
        .of(bronze)
        .select("value")
    ).collect()
    own = ProtobufFormat().text(payload, {3: schema}, columns)
    found = {"shipment_id": "x", "kinds": ["ONE", "TWO"], "part": []}
    assert json.loads(bytes(text)) == json.loads(own or "") == found


def test_contract_names_what_it_cannot_read() -> None:
    kept = RegisteredSchema(3, PROTOBUF, compiled(OLD, {}))
    columns = (
        Column("shipment_id", "bigint"),
        Column("kind", "string"),
        Column("other", "string", required=True),
        Column("kinds", "array", fields=(Column("", "boolean"),)),
    )
    assert ProtobufFormat().unread(Contract("d", "1", columns, (), ()), kept) == [
        "shipment_id is of type bigint, and field shipment_id of the schema is text",
        "other is required, and the schema has no field other",
        "kinds[] is of type boolean, and field [] of the schema is text",
    ]
    with pytest.raises(SchemaUnusable, match="imports /etc/x, which is no name"):
        protobuf_schema(compiled(OLD, {"/etc/x": ""}))
