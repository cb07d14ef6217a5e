"""Avro records with values inside of others: silver's rows and reasons are those of the same records in JSON."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from avro_parcels import LOOSE, TIGHT, parcels_folder, record, tight
from avro_trades import encoded, schema_text
from compactable_release import assert_same_rows, head_rows
from parcels import BROKEN, parcel, silver_row
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from registry_stand_in import StandIn, registry_stand_in
from slice_patcher import copy_release
from small_release import Record, SmallRelease, small_release
from test_nested_release import as_json
from test_recomputed_history import differing

from include.declare.avro_payloads import AvroFormat, avro_encoding, contract_schema
from include.declare.contract import Column, Contract, Limits
from include.declare.contract_file import MOST_DEPTH, load_contract
from include.ground.schema_registry import AVRO, RegisteredSchema
from include.ground.settings import Settings
from spark_jobs.contract.payload_texts import PayloadTexts

ACCEPTED = [parcel(number) for number in range(10)]
TREE = record("Tree", inner={"type": ["null", "Tree"], "default": None}, meta=["null", record("Meta", id="string")])
TREE["fields"][0]["type"] = ["null", "Tree"]
ENDED = ("undecodable", "schema 1, at $.items[0].price")
DEEP = b"\x00\x00\x00\x00\x03" + b"\x02" * 1_000_000
HUGE = b"\x00\x00\x00\x00\x01" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\x00" * 3


def in_loose(text: str) -> Record | None:
    """Return a record of JSON by the loose schema; None for what Avro cannot have."""
    try:
        names: list[str] = []
        found = json.loads(text, object_pairs_hook=lambda pairs: names.extend(map(str, pairs)) or dict(pairs))
        return Record(encoded(LOOSE, found, 2)) if "1e400" not in text and text.count('"name"') < 2 else None
    except (ValueError, UnicodeEncodeError):
        return None


def opened(spark: SparkSession, folder: Path, registry: StandIn, backend: str) -> SmallRelease:
    for number, schema in enumerate((TIGHT, LOOSE, TREE), 1):
        registry.add("parcels-value", schema_text(schema), number)
    settings = Settings(state=folder, backend=backend, schema_registry_url=registry.address)
    made = small_release(spark, settings, "parcels", parcels_folder(folder / "datasets"))
    good = [Record(encoded(TIGHT, tight(each), 1)) for each in ACCEPTED]
    made.take([*good[:6], *filter(None, map(in_loose, BROKEN))])
    cut = good[8].value
    assert cut is not None
    torn = cut[: cut.index(b"\xff\xfe\xfd\xfc") + 6]
    bad_text = cut.replace(b"p8", b"\xff8")
    many = tight(ACCEPTED[9])
    many["items"] = many["items"] * 5
    labels = {**ACCEPTED[9], "labels": {"k1": "x", "k2": "y"}}
    twice = encoded(LOOSE, labels, 2).replace(b"k2", b"k1")
    hostile = [torn, bad_text, DEEP, HUGE, encoded(TIGHT, many, 1), twice]
    made.take([*good[6:], *map(Record, hostile), good[0]])
    return made


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRelease]:
    with registry_stand_in() as registry:
        yield opened(spark, tmp_path_factory.mktemp("parcels_in_avro"), registry, "local")


def test_rows_of_silver_are_those_of_python(filled: SmallRelease) -> None:
    names = list(silver_row(ACCEPTED[0]))
    found = {row["parcel_id"]: as_json({name: row[name] for name in names}) for row in filled.silver().to_dicts()}
    for row in found.values():
        row |= {"labels": row["labels"] or {}, "extra": json.loads(row["extra"]) if row["extra"] else None}
    assert found == {each["meta"]["id"]: silver_row(each) for each in ACCEPTED}


def test_reasons_and_paths_are_those_of_the_same_records_in_json(filled: SmallRelease) -> None:
    rejected = filled.rejected().filter(pl.col("disposition") == "invalid").filter(pl.col("_batch_id") == 0)
    found = [[(each["rule"], each["column"]) for each in reasons] for reasons in rejected["reasons"].to_list()]
    assert found == [reasons for text, reasons in BROKEN.items() if in_loose(text)]
    assert len(found) == 6


def test_damaged_records_are_rejected_with_their_place(filled: SmallRelease) -> None:
    rejected = filled.rejected().filter(pl.col("disposition") == "invalid").filter(pl.col("_batch_id") == 1)
    found = [(each[0]["rule"], each[0]["column"], each[0]["detail"]) for each in rejected["reasons"].to_list()]
    assert found == [
        ("undecodable", "", "schema 1, at $.items[0].price"),
        ("bad_utf8", "", "schema 1, at $.meta.id"),
        ("depth", "", f"schema 3, at ${'.inner' * 8}"),
        ("undecodable", "", "schema 1, at $.items"),
        ("elements", "items", "5"),
        ("duplicate_key", "", "$.labels.k1"),
    ]


@pytest.mark.extended
def test_deep_audit_reads_the_same(filled: SmallRelease, tmp_path: Path) -> None:
    assert differing(copy_release(filled, tmp_path / "production")) == {}


@pytest.mark.extended
def test_both_backends_give_the_same_rows(filled: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    with registry_stand_in() as registry:
        assert_same_rows(head_rows(opened(spark, tmp_path / "by_spark", registry, "spark")), head_rows(filled))


INNER = (Column("note", "string"), Column("raw", "binary"), Column("day", "date"))
COLUMNS = (
    Column("deep", "string", physical_name="a.b.c"),
    Column("bytes", "string", physical_name="a.bytes"),
    Column("rows", "array", fields=(Column("", "object", fields=INNER),)),
    Column("kept", "variant"),
    Column("by_name", "map", fields=(Column("", "array", fields=(Column("", "double"),)),)),
    Column("chosen", "bigint"),
    Column("known", "uuid"),
)
CONTRACT = Contract("d", "1", COLUMNS, (), (), payload=AvroFormat(), limits=Limits(depth=9))
LEAF = record("Leaf", c="string", more={"type": "array", "items": "double"})
SCHEMA = record(
    "Mixed",
    rows={
        "type": "array",
        "items": [
            "null",
            record("Row", day={"type": "int", "logicalType": "date"}, raw="bytes", note=["bytes", "string", "boolean"]),
        ],
    },
    a=["null", record("A", bytes={"type": "fixed", "name": "Two", "size": 2}, b=["null", LEAF])],
    known=["null", {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}],
    chosen=["string", "long", "Leaf", {"type": "map", "values": "Row"}],
    by_name={"type": "map", "values": {"type": "array", "items": "double"}},
    kept=["null", "Row", "Leaf", {"type": "map", "values": {"type": "array", "items": "Leaf"}}],
)


def drawn(rng: random.Random) -> bytes:
    def row() -> dict[str, Any]:
        note = rng.choice([b"\xc3\xa9", 'say "hi"\n\\', True])
        return {"day": rng.randrange(-700_000, 2_000_000), "raw": rng.randbytes(rng.randrange(4)), "note": note}

    leaf = {"c": rng.choice(["", "x", "é\u0001"]), "more": [rng.random()] * rng.randrange(3)}
    found = {
        "rows": [rng.choice([None, row()]) for _ in range(rng.randrange(4))],
        "a": rng.choice([None, {"bytes": rng.choice([b"ab", "é".encode()]), "b": rng.choice([None, leaf])}]),
        "chosen": rng.choice(["text", 7, leaf, {"k": row()}]),
        "by_name": {rng.choice("abc"): [0.5] * rng.randrange(3) for _ in range(rng.randrange(3))},
        "known": rng.choice([None, rng.randbytes(16)]),
        "kept": rng.choice([None, row(), leaf, {"k": [leaf]}]),
    }
    out = io.BytesIO()
    raw = json.loads(
        json.dumps(SCHEMA)
        .replace('"logicalType": "date"', '"doc": "date"')
        .replace('"logicalType": "uuid"', '"doc": "uuid"')
    )
    fastavro.schemaless_writer(out, fastavro.parse_schema(raw), found)
    return b"\x00\x00\x00\x00\x07" + out.getvalue()


def damaged(rng: random.Random, payload: bytes) -> bytes:
    at = rng.randrange(5, len(payload))
    change = rng.choice([payload[:at], payload + b"\x00", payload[:at] + rng.randbytes(1) + payload[at + 1 :]])
    return change if rng.random() < 0.7 else payload


def test_both_readers_make_one_json_of_drawn_and_damaged_records(spark: SparkSession) -> None:
    rng, schema = random.Random(11), RegisteredSchema(7, AVRO, schema_text(SCHEMA))
    payloads = [damaged(rng, drawn(rng)) for _ in range(4000)]
    bronze = spark.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary()), "n": range(len(payloads))}))
    read = PayloadTexts(CONTRACT, (schema,)).of(bronze).orderBy("n").select("_unread", F.col("value").cast("string"))
    count = dict.fromkeys(("same", "refused"), 0)
    for payload, (why, text) in zip(payloads, read.collect(), strict=True):
        own = AvroFormat().text(payload, {7: schema}, COLUMNS)
        if why is None:
            assert own is not None
            assert as_read(json.loads(text)) == as_read(json.loads(own)), payload
            count["same"] += 1
        else:
            assert why["rule"] in ("undecodable", "bad_utf8"), why
            count["refused"] += 1
    assert min(count.values()) > 1000


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 9}
ODD = Contract(
    "d",
    "1",
    (Column("size", "number", physical_name="größe"), Column("kept", "variant")),
    (),
    (),
    payload=AvroFormat(),
)
DIGITS = [b"", b"\x01", b"\xff", bytes(7), b"\x7f" * 15, b"\x80" + bytes(63), b"\x01" * 65]


def test_both_readers_make_the_same_of_names_and_decimals(spark: SparkSession) -> None:
    schema = RegisteredSchema(
        7, AVRO, schema_text(record("Odd", größe=MONEY, kept=record("Inner", ключ={"type": "int"})))
    )
    lengths = [bytes([2 * len(each)]) if len(each) < 64 else bytes([2 * len(each) & 127 | 128, 1]) for each in DIGITS]
    payloads = [b"\0\0\0\0\7" + length + each + b"\2" for length, each in zip(lengths, DIGITS, strict=True)]
    bronze = spark.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary()), "n": range(len(payloads))}))
    read = PayloadTexts(ODD, (schema,)).of(bronze).orderBy("n").select("_unread.rule", F.col("value").cast("string"))
    found = [(rule, text and json.loads(text, parse_float=str, parse_int=str)) for rule, text in read.collect()]
    own = [AvroFormat().text(each, {7: schema}, ODD.columns) for each in payloads]
    assert [each for _, each in found] == [each and json.loads(each, parse_int=str) for each in own]
    assert found[1] == (None, {"größe": "0.000000001", "kept": {"ключ": "1"}})
    assert [rule for rule, _ in found] == ["undecodable", *[None] * 5, "undecodable"]


def test_record_deeper_than_a_stack_has_no_text() -> None:
    schema = RegisteredSchema(3, AVRO, schema_text(TREE))
    assert [AvroFormat().text(each, {3: schema}) for each in (DEEP, DEEP + b"\0" * 3)] == [None, None]
    deepest = AvroFormat().text(DEEP[: 5 + MOST_DEPTH] + b"\0" * (2 + MOST_DEPTH), {3: schema})
    assert deepest is not None
    assert deepest.count("inner") == 1 + MOST_DEPTH


def as_read(found: dict[str, Any]) -> dict[str, Any]:
    """Return what the contract reads of a record."""
    a = found["a"] and {name: found["a"][name] for name in ("b", "bytes")}
    if a and a["b"]:
        a["b"] = {"c": a["b"]["c"]}
    chosen = found["chosen"] if isinstance(found["chosen"], int) else None
    return {
        "a": a,
        "rows": found["rows"],
        "kept": found["kept"],
        "by_name": found["by_name"],
        "chosen": chosen,
        "id": found["known"],
    }


def test_record_is_written_by_the_contracts_schema_and_read_again(spark: SparkSession, tmp_path: Path) -> None:
    folder = parcels_folder(tmp_path)
    kept = (folder / "contract.yaml").read_text("utf-8")
    (folder / "contract.yaml").write_text(kept[: kept.index("      - name: extra")], "utf-8")
    contract = load_contract(folder)
    text = contract_schema(contract)
    schema = RegisteredSchema(4, AVRO, text)
    assert contract.payload.unread(contract, schema) == []
    sent = [{name: value for name, value in each.items() if name != "extra"} for each in ACCEPTED]
    payloads = [avro_encoding(contract, text, 4).encoded(1, json.dumps(each).encode()) for each in sent]
    bronze = spark.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary()), "n": range(len(payloads))}))
    found = PayloadTexts(contract, (schema,)).of(bronze).orderBy("n").select("value").collect()
    read = [without_nulls(json.loads(bytes(value))) for (value,) in found]
    for each in read:
        each["meta"]["at"] = each["meta"]["at"].replace(".000000Z", "Z")
    assert read == [without_nulls(each) for each in sent]
    assert bytes(found[0][0]).startswith(b'{"meta":{"id":"p0","at":"2026-11-01T08:00:00.000000Z"},"sender":{')


def without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


def test_contract_names_what_it_cannot_read_inside(tmp_path: Path) -> None:
    contract = load_contract(parcels_folder(tmp_path))
    assert contract.payload.unread(contract, RegisteredSchema(1, AVRO, schema_text(TIGHT))) == []
    other = record(
        "R",
        meta=record("M", id="long", at="string"),
        sender=record("S", name="string", paid="boolean"),
        items={"type": "array", "items": record("I", sku="string", tags={"type": "map", "values": "string"})},
        labels={"type": "map", "values": "long"},
    )
    assert contract.payload.unread(contract, RegisteredSchema(2, AVRO, schema_text(other))) == [
        "parcel_id is of type string, and field meta.id of the schema is integer",
        "sender.paid is of type decimal(9,2), and field paid of the schema is boolean",
        "items[].tags is of type array, and field tags of the schema is map",
        "labels[] is of type string, and field [] of the schema is integer",
    ]
