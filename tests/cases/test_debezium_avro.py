"""Debezium's records in Avro: the same rows as of the records in JSON, by both backends and both readers."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from account_changes import published
from avro_parcels import optional, record
from avro_trades import encoded, schema_text
from compactable_release import assert_same_rows, head_rows
from declared_gold import audited
from pyspark.sql import SparkSession
from registry_stand_in import StandIn, registry_stand_in
from small_release import Record, SmallRelease, small_release
from test_envelopes import CHANGES, CUSTOMERS, EXACT, NOW, VERSIONS, event, versions
from test_recomputed_history import differing

from include.audit.silver import define_exact_number, orphan_findings, register_fixes
from include.declare.avro_payloads import avro_encoding, contract_schema
from include.declare.dataset import load_dataset
from include.declare.envelopes import columns_read, text_of_row
from include.declare.writer_schemas import known_schemas
from include.ground.schema_registry import AVRO, RegisteredSchema
from include.ground.settings import Settings
from include.read.memory_database import memory_database

CREDIT = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18, "connect.version": 1}
SOURCE = record(
    "Source",
    version="string",
    connector="string",
    name="string",
    ts_ms="long",
    snapshot=optional({"type": "string", "connect.default": "false"}),
    db="string",
    sequence=optional("string"),
    schema="string",
    table="string",
    txId=optional("long"),
    lsn=optional("long"),
    xmin=optional("long"),
)
VALUE = record(
    "Value",
    id="int",
    first_name=optional("string"),
    last_name=optional("bytes"),
    email=optional("string"),
    credit=optional(CREDIT),
)
SCHEMA = {
    **record(
        "Envelope",
        before=optional(VALUE),
        after=optional("Value"),
        source={**SOURCE, "namespace": "io.debezium.connector.postgresql"},
        transaction=optional(
            record("block", id="string", total_order="long", data_collection_order="long") | {"namespace": "event"}
        ),
        op="string",
        ts_ms=optional("long"),
    ),
    "namespace": "inventory.public.customers",
    "connect.name": "inventory.public.customers.Envelope",
}
"""As Debezium's connector registers it: the row's type is defined in `before` and named in `after`."""
KEY_CHANGE = [
    event("c", 200, None, {"id": 7, "first_name": "Old", "last_name": "Key"}, 6),
    event("d", 210, {"id": 7}, None, 7),
    None,
    event("c", 211, None, {"id": 8, "first_name": "New", "last_name": "Key"}, 7),
]
WRONG = [event("x", 300, None, {"id": 9, "first_name": "A", "last_name": "B"}), event("u", 310, {"id": 9}, None)]


def row(found: dict[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    credit = found.get("credit") and Decimal(EXACT)
    return {**found, "credit": credit, "last_name": found["last_name"].encode() if "last_name" in found else None}


def sent(change: dict[str, Any] | None) -> Record:
    if change is None:
        return Record(None, key=b"\x00\x00\x00\x00\x01\x08")
    return Record(encoded(SCHEMA, {**change, "before": row(change["before"]), "after": row(change["after"])}, 5))


def avro_folder(datasets: Path) -> Path:
    folder = datasets / "customers"
    shutil.copytree(CUSTOMERS, folder)
    text = (folder / "contract.yaml").read_text("utf-8")
    form = "    customProperties:\n      - {property: format, value: avro}\n    properties:"
    (folder / "contract.yaml").write_text(text.replace("    properties:", form, 1), "utf-8")
    return folder


def filled_from(spark: SparkSession, folder: Path, registry: StandIn, backend: str = "local") -> SmallRelease:
    registry.add("customers-value", schema_text(SCHEMA), 5)
    settings = Settings(state=folder, backend=backend, schema_registry_url=registry.address)
    release = small_release(spark, settings, "customers", avro_folder(folder / "datasets"))
    release.take([sent(change) for change in CHANGES])
    release.take([*(sent(change) for change in (*reversed(CHANGES), *WRONG)), Record(b"\x00\x00\x00\x00\x05\x02")])
    return release


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallRelease]:
    with registry_stand_in() as registry:
        yield filled_from(spark, tmp_path_factory.mktemp("customers_in_avro"), registry)


def test_rows_are_those_of_the_records_in_json(filled: SmallRelease) -> None:
    assert published(filled, "customers_now") == NOW
    assert versions(filled) == VERSIONS


def test_tombstones_are_counted_as_such_and_others_have_reasons(filled: SmallRelease) -> None:
    rejected = filled.rejected()
    assert Counter(rejected["disposition"]) == {"tombstone": 2, "duplicate": 9, "invalid": 3}
    assert filled.silver().height + rejected.height == filled.read("bronze.customers").height
    reasons = rejected.filter(pl.col("disposition") == "invalid")["reasons"].to_list()
    assert [[(each["rule"], each["column"]) for each in found] for found in reasons] == [
        [("enum", "op")],
        [("required", "first_name"), ("required", "last_name")],
        [("undecodable", "")],
    ]


@pytest.mark.extended
def test_audits_read_the_row_by_themselves(filled: SmallRelease) -> None:
    assert differing(filled) == {}
    assert [audited(filled, table) for table in ("customers_now", "customer_versions")] == [[], []]
    database, contract = memory_database(), filled.dataset.contract
    for name in ("silver", "rejected", "bronze"):
        database.register(name, filled.read(f"{name}.customers").to_arrow())
    database.execute("create view all_silver as select * from silver")
    register_fixes(database, {})
    define_exact_number(database)
    schemas = known_schemas(filled.settings, "customers")
    contract.payload.define_texts(database, schemas, columns_read(contract), text_of_row(contract))
    columns = {column.name: column for column in contract.columns}
    assert list(orphan_findings(database, "customers", filled.dataset.pipeline, 0, columns)) == []
    deleted = [each.value for each in (sent(CHANGES[4]), sent(CHANGES[7]))]
    database.register("deleted", pa.table({"value": deleted}))
    (both,) = database.sql("select list(payload_text(value)->>'$.after.last_name') from deleted").fetchall()
    assert both == ([None, "Thomas"],)


def test_changed_key_and_truncation(filled: SmallRelease) -> None:
    filled.take([sent(each) for each in (*KEY_CHANGE, event("t", 128, None, None, 5))])
    assert published(filled, "customers_now") == [*NOW, (8, "New Key", None, None)]
    gone = [(found[0], found[4]) for found in versions(filled) if "Key" in found[0]]
    assert gone == [("New Key", True), ("Old Key", False)]


@pytest.mark.extended
def test_spark_gives_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    with registry_stand_in() as one, registry_stand_in() as other:
        by_spark = filled_from(spark, tmp_path / "spark", one, "spark")
        assert_same_rows(head_rows(by_spark), head_rows(filled_from(spark, tmp_path / "local", other)))


def test_contract_reads_the_connectors_schema_and_its_own(tmp_path: Path) -> None:
    folder = avro_folder(tmp_path)
    contract = load_dataset("customers", folder).contract
    text = contract_schema(contract)
    for number, schema in enumerate((schema_text(SCHEMA), text)):
        assert contract.payload.unread(contract, RegisteredSchema(number, AVRO, schema)) == []
    line = (
        b'{"op":"d","ts_ms":1,"before":{"id":1,"first_name":"a","last_name":"b"},"source":{"lsn":1,"snapshot":"true"}}'
    )
    value = avro_encoding(contract, text, 5).encoded(1, line)
    read = contract.payload.text(value, {5: RegisteredSchema(5, AVRO, text)}, columns_read(contract))
    assert '"before":{"id":1,' in (read or "")
