"""Envelopes: Debezium's rows come from before or after, tombstones are counted as such; CloudEvents' from data."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from account_changes import ACCOUNTS, published
from compactable_release import assert_same_rows, head_rows
from declared_gold import audited
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing

from include.audit.silver import define_exact_number, number_findings, orphan_findings, register_fixes
from include.declare.column_lineage import dataset_columns
from include.declare.envelopes import change_text, columns_read, text_of_row
from include.declare.payload_format import JsonFormat
from include.ground.delta_log import commits
from include.ground.settings import Settings
from include.read.memory_database import memory_database

CUSTOMERS = Path(__file__).parents[1] / "recovery" / "datasets" / "customers"
BEGIN_MS = 1_795_953_600_000
SCHEMA = {"type": "struct", "name": "inventory.customers.Envelope", "fields": [{"field": "payload", "type": "struct"}]}
Row = dict[str, Any] | None
ANNE: Row = {"id": 1004, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
MARIE: Row = {**(ANNE or {}), "first_name": "Anne Marie", "credit": "?"}
SALLY: Row = {"id": 1001, "first_name": "Sally", "last_name": "Thomas", "email": 'a "quoted", {name}'}
TOM: Row = {"id": 1005, "first_name": "Tom", "last_name": "Ng"}
EXACT = "12345678901234567.100000000000000010"


def event(op: str, lsn: int, before: Row, after: Row, second: int = 0) -> dict[str, Any]:
    """Return a change as Debezium's connector for PostgreSQL writes it."""
    source = {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "inventory",
        "ts_ms": BEGIN_MS + 1000 * second,
        "snapshot": "true" if op == "r" else "false",
        "db": "postgres",
        "sequence": f'["{lsn}","{lsn + 8}"]',
        "schema": "public",
        "table": "customers",
        "txId": 555,
        "lsn": lsn,
        "xmin": None,
    }
    changed = {"before": before, "after": after, "source": source, "transaction": None}
    return {**changed, "op": op, "ts_ms": BEGIN_MS + 1000 * second + 4}


def sent(change: dict[str, Any] | None, *, with_schema: bool = False, spaced: bool = False) -> Record:
    if change is None:
        return Record(None, key=b'{"id":1004}')
    found = {"schema": SCHEMA, "payload": change} if with_schema else change
    text = json.dumps(found, indent=1 if spaced else None, separators=None if spaced else (",", ":"))
    return Record(text.replace('"?"', EXACT).encode(), key=b'{"id":1004}')


CHANGES = [
    event("r", 100, None, SALLY, 0),
    event("c", 90, None, ANNE, 1),
    event("r", 100, None, ANNE, 0),
    event("u", 110, ANNE, MARIE, 2),
    event("d", 120, {"id": 1004}, None, 3),
    None,
    event("c", 130, None, ANNE, 4),
    event("d", 140, SALLY, None, 5),
    event("c", 125, None, TOM, 3),
    event("t", 127, None, None, 4),
]
NOW = [(1004, "Anne Kretchmar", "annek@noanswer.org", None)]
VERSIONS = [
    ("Anne Kretchmar", None, 1, 2, False),
    ("Anne Kretchmar", None, 4, None, True),
    ("Anne Marie Kretchmar", Decimal(EXACT), 2, 3, False),
    ("Sally Thomas", None, 0, 4, False),
    ("Tom Ng", None, 3, 4, False),
]
BROKEN = {
    '{"op":"c","ts_ms":1,"before":null,"after":{"id":1}} x': [("trailing_data", "")],
    '{"schema":{},"payload":{"op":"c","ts_ms":1,"after":{"id":1,"first_name":"A"}}}': [("required", "last_name")],
    '{"op":"d","ts_ms":1,"before":{"first_name":"A","last_name":"B"},"after":null}': [("missing_id", "id")],
    '{"op":"x","ts_ms":1,"after":{"id":1,"first_name":"A","last_name":"B"}}': [("enum", "op")],
    '{"op":"d","ts_ms":1,"before":{"id":1},"before":{"id":2}}': [("duplicate_key", "")],
    '{"id":1,"first_name":"A","last_name":"B"}': [
        ("missing_id", "op"), ("required", "ts_ms"), ("missing_id", "id"), ("required", "first_name"),
        ("required", "last_name"),
    ],
    '{"op":"u","ts_ms":1,"before":{"id":1},"after":"text"}': [
        ("type", "id"), ("type", "first_name"), ("type", "last_name"), ("type", "email"), ("type", "credit"),
    ],
}  # fmt: skip


def opened(spark: SparkSession, folder: Path, backend: str = "local") -> SmallRelease:
    return small_release(spark, Settings(state=folder, backend=backend), "customers", CUSTOMERS)


def fill(release: SmallRelease) -> SmallRelease:
    """Take all changes three times: without a schema, with one, and written in another way; and broken records."""
    release.take([sent(change) for change in CHANGES])
    release.take([sent(change, with_schema=True) for change in reversed(CHANGES)])
    release.take(
        [sent(change, with_schema=True, spaced=True) for change in CHANGES]
        + [Record(b'{"schema":null,"payload":null}')]
    )
    release.take([Record(text.encode()) for text in BROKEN])
    return release


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    return fill(opened(spark, tmp_path_factory.mktemp("customers")))


def versions(release: SmallRelease) -> list[tuple[Any, ...]]:
    """Return name, credit, the seconds of both times, and whether a version is current."""
    rows = published(release, "customer_versions")
    seconds = [tuple(t and int(t.timestamp() * 1000 - BEGIN_MS - 4) // 1000 for t in row[4:6]) for row in rows]
    return sorted(((row[1], row[3], *both, row[6]) for row, both in zip(rows, seconds, strict=True)), key=repr)


def test_rows_are_those_of_the_table_and_a_snapshot_doubles_none(filled: SmallRelease) -> None:
    assert published(filled, "customers_now") == NOW
    assert versions(filled) == VERSIONS
    assert sorted(filled.silver()["op"]) == sorted(each["op"] for each in CHANGES if each)
    assert filled.silver()["sequence"].to_list()[0] == 100


def test_each_record_is_in_silver_or_rejected_and_tombstones_are_counted_as_such(filled: SmallRelease) -> None:
    rejected = filled.rejected()
    found = Counter(rejected["disposition"])
    assert found == {"tombstone": 4, "duplicate": 2 * 9, "invalid": len(BROKEN)}
    assert filled.silver().height + rejected.height == filled.read("bronze.customers").height
    reasons = {
        tuple((reason["rule"], reason["column"]) for reason in row["reasons"])
        for row in rejected.to_dicts()
        if row["disposition"] == "tombstone"
    }
    assert reasons == {(("tombstone", ""),)}
    facts = [each.metadata or {} for each in commits(filled.release.writer.rejected.spec.path)]
    assert sum(each.get("dispositions", {}).get("tombstone", 0) for each in facts) == 4


def test_reasons_of_broken_records_name_the_columns_of_the_row(filled: SmallRelease) -> None:
    rows = filled.rejected().filter(pl.col("_batch_id") == 3)["reasons"].to_list()
    assert [[(each["rule"], each["column"]) for each in reasons] for reasons in rows] == list(BROKEN.values())


@pytest.mark.extended
def test_spark_gives_the_same_rows(filled: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    by_spark = fill(opened(spark, tmp_path / "spark", "spark"))
    assert_same_rows(head_rows(by_spark), head_rows(filled))


def test_audits_read_the_row_by_themselves(filled: SmallRelease) -> None:
    assert differing(filled) == {}
    assert [audited(filled, table) for table in ("customers_now", "customer_versions")] == [[], []]
    database, contract = memory_database(), filled.dataset.contract
    for name in ("silver", "rejected", "bronze"):
        database.register(name, filled.read(f"{name}.customers").to_arrow())
    database.execute("create view all_silver as select * from silver")
    register_fixes(database, {})
    define_exact_number(database)
    JsonFormat().define_texts(database, {}, columns_read(contract), text_of_row(contract))
    members = {column.name: column.member for column in contract.columns}
    assert list(number_findings(database, "customers", members)) == []
    columns = {column.name: column for column in contract.columns}
    assert list(orphan_findings(database, "customers", filled.dataset.pipeline, 0, columns)) == []


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize(
    "change", [each for each in CHANGES if each], ids=lambda each: f"{each['op']}{each['source']['lsn']}"
)
def test_change_text_moves_names_alone(change: dict[str, Any], with_schema: bool) -> None:
    for spaced in (False, True):
        value = sent(change, with_schema=with_schema, spaced=spaced).value
        assert value is not None
        row = change["before"] if change["op"] == "d" else change["after"]
        found = json.loads((change_text(value.decode()) or "").replace(EXACT, '"?"'))
        assert found == {**change, "after": row, "before": change["after"] if change["op"] == "d" else change["before"]}


def test_lineage_leads_into_the_row(filled: SmallRelease) -> None:
    columns = dataset_columns(filled.dataset)["silver.customers"].columns
    named = {name: [each.column for each in columns[name]] for name in ("email", "sequence", "op", "from_snapshot")}
    assert named == {
        "email": ["value.after.email"],
        "sequence": ["value./source/lsn"],
        "op": ["value.op"],
        "from_snapshot": ["value./source/snapshot"],
    }


EVENTS = """
topic: customers
partitions: 2
envelope: cloudevents
event_time: ce_time
lateness: 2 days
identity: {columns: [ce_id, ce_source], horizon: 3 days}
gold:
  customers_now:
    kind: latest
    keys: [id]
    order_by: [ce_time]
    columns: {name: "concat(first_name, ' ', last_name)", kind: ce_type, about: ce_subject}
"""


def of_events(spark: SparkSession, tmp_path: Path, backend: str = "local") -> SmallRelease:
    """Return a release whose contract describes the data of CloudEvents."""
    folder = Path(shutil.copytree(CUSTOMERS, tmp_path / "customers"))
    (folder / "pipeline.yaml").write_text(EVENTS)
    contract = folder / "contract.yaml"
    text = contract.read_text().replace(", primaryKey: true", "").replace("/source/snapshot", "/traceparent")
    contract.write_text(text)
    (folder / "silver.py").write_text((ACCOUNTS / "silver.py").read_text())
    return small_release(spark, Settings(state=tmp_path / "state", backend=backend), "customers", folder)


ABOUT = {"specversion": "1.0", "source": "/shop/7", "type": "customer.moved"}


def test_cloudevents_are_read_from_data(spark: SparkSession, tmp_path: Path) -> None:
    release = of_events(spark, tmp_path)
    about = {**ABOUT, "datacontenttype": "application/json"}
    moved = {**about, "id": "A234-1234", "time": "2026-11-29T17:31:00Z", "traceparent": "00-4bf9", "data": ANNE}
    named = {**about, "id": "A234-1235", "time": "2026-11-29T17:30:00.5Z", "subject": "names", "data": SALLY}
    wrong = {**about, "id": "A234-1236", "time": "2026-11-29T17:30:00Z", "data": {"id": 1}}
    release.take([Record(json.dumps(each).encode()) for each in (moved, named, moved, wrong)])
    assert published(release, "customers_now") == [
        (1001, "Sally Thomas", "customer.moved", "names"),
        (1004, "Anne Kretchmar", "customer.moved", None),
    ]
    assert release.silver()["from_snapshot"].to_list() == ["00-4bf9", None]
    reasons = [(row["disposition"], row["reasons"][0]["rule"]) for row in release.rejected().to_dicts()]
    assert reasons == [("duplicate", "duplicate"), ("invalid", "required")]


def binary(value: bytes | None, kind: str = "application/json", **attributes: str | bytes | None) -> Record:
    """Return an event in binary mode: its attributes are headers, its value is the data."""
    given = {f"ce_{name}": each for name, each in {**ABOUT, **attributes}.items()}
    headers = {"content-type": kind, "other": b"\xff", **given}
    texts = {name: each.encode() if isinstance(each, str) else each for name, each in headers.items()}
    return Record(value, headers=[*texts.items()])


def data(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


AT = "2026-11-29T17:31:00Z"
SPOOFED = data(ANNE) + b',"subject":"spoofed"'
NO_EVENTS: list[tuple[Record, list[tuple[str, str]]]] = [
    (binary(data(ANNE), id=None, time=AT), [("missing_id", "ce_id")]),
    (binary(data(ANNE), id="b1", time="today"), [("bad_ts", "ce_time")]),
    (binary(data(ANNE), id=b"\xff", time=AT), [("bad_utf8", "")]),
    (binary(b'{"id":1', id="b2", time=AT), [("malformed", "")]),
    (binary(b"<xml/>", kind="application/xml", id="b3", time=AT), [("malformed", "")]),
    (binary(SPOOFED, id="b4", time=AT), [("trailing_data", "")]),
    (
        binary(None, id="b5", time=AT),
        [("required", "id"), ("required", "first_name"), ("required", "last_name")],
    ),
    (
        binary(b"[7]", id="b6", time=AT),
        [("type", name) for name in ("id", "first_name", "last_name", "email", "credit")],
    ),
    (binary(data({**(ANNE or {}), "id": "x"}), id="b7", time=AT), [("type", "id")]),
    (Record(data(ANNE), headers=[("ce_id", b"b8")]), [("type", "ce_id")]),
]


def test_cloudevents_in_binary_mode_have_the_rows_of_those_in_structured_mode(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    release = of_events(spark, tmp_path, backend)
    odd: Row = {**(ANNE or {}), "first_name": 'A "q" \\ é', "more": [1, {"a": None}]}
    first = {"id": "1", "time": AT, "subject": 'né "w" \\', "traceparent": "00-4bf9"}
    whole = {**ABOUT, "id": "3", "time": AT, "data": SALLY}
    release.take(
        [
            binary(data(odd), **first),
            binary(data(SALLY), id="2", time="2026-11-29T17:30:00.5Z"),
            Record(
                data(whole),
                headers=[
                    ("content-type", b"application/CloudEvents+json"),
                    ("ce_specversion", b"1.0"),
                    ("ce_id", b"9"),
                ],
            ),
            Record(data({**ABOUT, **first, "id": "4", "data": odd})),
            binary(data(TOM), **first),
            *(record for record, _ in NO_EVENTS),
        ]
    )
    rows = [
        {name: value for name, value in row.items() if not name.startswith("_")} for row in release.silver().to_dicts()
    ]
    assert [row["ce_id"] for row in rows] == ["1", "2", "3", "4"]
    assert {**rows[0], "ce_id": ""} == {**rows[3], "ce_id": ""}
    assert (rows[0]["ce_subject"], rows[0]["from_snapshot"]) == (first["subject"], first["traceparent"])
    assert [row["first_name"] for row in rows] == [
        (odd or {})["first_name"],
        "Sally",
        "Sally",
        (odd or {})["first_name"],
    ]
    rejected = release.rejected().to_dicts()
    assert [row["disposition"] for row in rejected] == ["duplicate", *["invalid"] * len(NO_EVENTS)]
    found = [[(each["rule"], each["column"]) for each in row["reasons"]] for row in rejected[1:]]
    for reasons, (_, right) in zip(found, NO_EVENTS, strict=True):
        assert reasons[: len(right)] == right
    assert differing(release) == {}
    database, contract = memory_database(), release.dataset.contract
    for name in ("silver", "rejected", "bronze"):
        database.register(name, release.read(f"{name}.customers").to_arrow())
    database.execute("create view all_silver as select * from silver")
    register_fixes(database, {})
    define_exact_number(database)
    contract.payload.define_texts(database, {}, columns_read(contract), text_of_row(contract))
    columns = {column.name: column for column in contract.columns}
    assert list(number_findings(database, "customers", {"id": "data.id", "credit": "data.credit"})) == []
    assert list(orphan_findings(database, "customers", release.dataset.pipeline, 0, columns)) == []
    texts = database.sql('select payload_text(value, headers := headers) from bronze order by "offset"').fetchall()
    assert json.loads(texts[0][0]) == {
        **{name: first[name] for name in first},
        "source": ABOUT["source"],
        "type": ABOUT["type"],
        "data": odd,
    }
