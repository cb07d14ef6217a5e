"""The dataset `parcels`, with values inside of others: the same rows by both backends, and those of plain Python."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from compactable_release import EARLY, assert_same_rows, head_rows
from parcels import BROKEN, PARCELS, parcel, sent, silver_row
from pyspark.sql import SparkSession
from slice_patcher import copy_release
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing, recomputed, rewrite

from include.audit.silver import define_exact_number, number_findings, register_fixes
from include.change.compare import Side, compare
from include.declare.column_lineage import dataset_columns
from include.declare.payload_format import JsonFormat
from include.ground.settings import Settings
from include.read.memory_database import memory_database
from include.read.published_sql import run_query
from include.read.published_tables import open_dataset, pinned, published_tables
from spark_jobs.stream.compaction import compact_tables

ACCEPTED = [parcel(number) for number in range(12)]


def fill(release: SmallRelease) -> SmallRelease:
    """Take three batches: plain records, others, and with each some that break the contract, or are there again."""
    broken = [Record(text.encode()) for text in BROKEN]
    release.take([*(sent(each) for each in ACCEPTED[:4]), *broken[:5]])
    release.take([*(sent(each, plain=False, partition=1) for each in ACCEPTED[4:8]), *broken[5:], sent(ACCEPTED[0])])
    release.take([sent(each, plain=number % 2 == 0) for number, each in enumerate(ACCEPTED[8:])])
    return release


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    # Without spaces: polars 2.1 escapes those in paths of Delta tables twice.
    folder = tmp_path_factory.mktemp("parcels_by_the_driver")
    return fill(small_release(spark, Settings(state=folder, backend="local"), "parcels", PARCELS))


@pytest.fixture
def release(filled: SmallRelease, tmp_path: Path) -> SmallRelease:
    return copy_release(filled, tmp_path / "production")


def as_json(value: Any) -> Any:
    """Return a value of silver with decimals as texts and maps, which polars has as pairs, as dictionaries."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and value[0].keys() == {"key", "value"}:
        return {each["key"]: each["value"] for each in value}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items()}
    return str(value) if isinstance(value, Decimal) else value


def test_rows_of_silver_are_those_of_python(filled: SmallRelease) -> None:
    names = list(silver_row(ACCEPTED[0]))
    found = {row["parcel_id"]: as_json({name: row[name] for name in names}) for row in filled.silver().to_dicts()}
    for row in found.values():
        row |= {"labels": row["labels"] or {}, "extra": json.loads(row["extra"]) if row["extra"] else None}
    assert found == {each["meta"]["id"]: silver_row(each) for each in ACCEPTED}


def test_reasons_name_paths(filled: SmallRelease) -> None:
    rejected = filled.rejected().filter(pl.col("disposition") == "invalid")["reasons"].to_list()
    found = [[(each["rule"], each["column"]) for each in reasons] for reasons in rejected]
    assert found == list(BROKEN.values())


def test_gold_over_fields_inside_is_that_of_python(filled: SmallRelease) -> None:
    days, worth = defaultdict[Any, list[Any]](lambda: [0, Decimal(0)]), defaultdict[Any, Decimal](Decimal)
    for row in map(silver_row, ACCEPTED):
        day = row["sent_at"].date()
        if row["sender"]["name"] is not None:
            days[day, row["city"]][0] += 1
            days[day, row["city"]][1] += Decimal(row["sender"]["paid"])
        for item in row["items"]:
            worth[day, row["city"]] += Decimal(item["price"])
    found = filled.read("gold.parcel_days").select("day", "city", "parcels", "paid").rows()
    assert {(day, city): [parcels, paid] for day, city, parcels, paid in found} == days
    items = filled.read("gold.parcel_items").select("day", "city", "worth").rows()
    assert {(day, city): value for day, city, value in items} == worth
    newest: dict[str, dict[str, Any]] = {row["city"]: row for row in map(silver_row, ACCEPTED)}
    senders = filled.read("gold.parcel_senders").select("city", "name", "first_sku").rows()
    assert {city: (name, sku) for city, name, sku in senders} == {
        city: (row["sender"]["name"], row["items"][0]["sku"]) for city, row in newest.items()
    }


@pytest.mark.extended
def test_both_backends_give_the_same_rows(filled: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "spark", backend="spark")
    by_spark = fill(small_release(spark, settings, "parcels", PARCELS))
    assert_same_rows(head_rows(by_spark), head_rows(filled))
    compact_tables(by_spark.settings, [by_spark.release], 600, EARLY)
    assert_same_rows(head_rows(by_spark), head_rows(filled))


ALSO_WHOLE = """\
      - {name: zip_code, logicalType: string, physicalName: sender.address.zip}
      - name: meta
        logicalType: object
        properties:
          - {name: id, logicalType: string}
          - {name: sent, logicalType: timestamp, physicalName: at}
"""


def test_identity_event_time_and_key_of_gold_are_also_in_their_objects(
    spark: SparkSession, tmp_path: Path, backend: str
) -> None:
    folder, no_meta = Path(shutil.copytree(PARCELS, tmp_path / "parcels")), Record(list(BROKEN)[5].encode())
    for name, old, new in (
        ("contract.yaml", "      - name: items\n", f"{ALSO_WHOLE}      - name: items\n"),
        ("pipeline.yaml", "keys: [city]", "keys: [zip_code]"),
    ):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(old, new, 1))
    release = small_release(spark, Settings(state=tmp_path / "state", backend=backend), "parcels", folder)
    release.take([*(sent(each, plain=number > 1) for number, each in enumerate(ACCEPTED[:4])), no_meta])
    for row, given in zip(release.silver().sort("sent_at").to_dicts(), ACCEPTED, strict=False):
        at, zip_code = datetime.fromisoformat(given["meta"]["at"]), given["sender"].get("address", {}).get("zip")
        assert (row["parcel_id"], row["sent_at"], row["zip_code"]) == (given["meta"]["id"], at, zip_code)
        assert row["meta"] == {"id": given["meta"]["id"], "sent": at}
        assert (row["sender"]["address"] or {}).get("zip_code") == zip_code
    codes = {each["sender"]["address"]["zip"] for each in ACCEPTED[:4] if "address" in each["sender"]}
    assert set(release.read("gold.parcel_days")["zip_code"].drop_nulls()) <= codes
    (reasons,) = release.rejected()["reasons"].to_list()
    assert {"parcel_id", "meta"} <= {each["column"] for each in reasons}, "of a meta that is a text"
    assert differing(release) == {}


@pytest.mark.extended
def test_deep_audit_finds_a_changed_value_inside(release: SmallRelease) -> None:
    assert differing(release) == {}
    compact_tables(release.settings, [release.release], 600, EARLY)
    assert differing(release) == {}
    richer = "{'name': sender.name, 'paid': cast(sender.paid + 1 as decimal(9, 2)), 'address': sender.address}"
    changed = f"select * replace (if(parcel_id = 'p3', {richer}, sender) as sender) from rows"
    rewrite(release, release.release.writer.silver, changed)
    (found,) = [each for each in recomputed(release).differences if each.counts and each.table.startswith("silver")]
    (sample,) = found.samples
    assert (sample.label, list(sample.values)) == ("parcel_id=p3", ["sender"])


def test_audit_compares_numbers_inside(release: SmallRelease) -> None:
    database = memory_database()
    rows = release.silver().with_columns(
        pl.col("sender").struct.with_fields(pl.field("paid") + pl.lit("0.01").cast(pl.Decimal(9, 2)))
    )
    database.register("silver", rows.to_arrow())
    database.register("sent", release.read("bronze.parcels").to_arrow())
    written = "regexp_replace(decode(value), '\"paid\"( ?: ?)([0-9.]+)', '\"paid\"\\1\\2e0')"
    database.execute(f"create view bronze as select * replace (encode({written}) as value) from sent")
    JsonFormat().define_texts(database, {})
    register_fixes(database, {})
    define_exact_number(database)
    found = list(number_findings(database, "parcels", {"sender.paid": "sender.paid", "parcel_id": "meta.id"}))
    assert {each.detail for each in found} == {"sender.paid is not the number in the payload"}
    assert sum(each.rows for each in found) == len(ACCEPTED)


def test_comparison_and_readers(release: SmallRelease) -> None:
    tables = {name: open_dataset(table) for name, table in published_tables(release.settings).items()}
    side = Side(release.dataset, tables)
    assert [each.changed for each in compare(side, side, 2, 0, lambda _: None).tables] == [0] * 5
    rows = run_query(
        pinned(release.settings), "select sender.address.city, items[1].sku from silver.parcels order by all"
    )
    assert list(rows.rows)[0] == ("Bern", "s0")


def test_lineage_leads_to_the_path_in_the_record(release: SmallRelease) -> None:
    known = dataset_columns(release.dataset)
    silver, gold = known["silver.parcels"].columns, known["gold.parcel_days"].columns
    assert [origin.column for origin in silver["parcel_id"]] == ["value.meta.id"]
    assert [(origin.table, origin.column) for origin in gold["paid"]] == [("silver.parcels", "sender.paid")]
    assert [origin.column for origin in silver["sender.paid"]] == ["value.sender.paid"]
    assert [origin.column for origin in silver["city"]] == ["value.sender.address.city"]
