"""The dataset `shop_orders`: items of orders as rows of their own, gold over them, and bad items rejected alone.

The oracle is plain Python over the records (`tests/workloads/shop_oracle.py`).
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from compactable_release import EARLY, assert_same_rows, head_rows
from declared_gold import audited
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import SlicePatcher, copy_release
from small_release import Record, SmallRelease, small_release
from test_recomputed_history import differing, recomputed, rewrite
from workloads.oracle_rows import Row, differing_rows
from workloads.registry import DATASETS
from workloads.shop_events import shop_frame
from workloads.shop_oracle import expected_shop_tables

from include.audit.origin import row_origin
from include.audit.silver import ChildBalance, child_balance
from include.declare.children import Children
from include.declare.dataset import load_dataset, snapshot_dataset
from include.declare.gold import full_name
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings
from include.read.memory_database import memory_database
from include.read.published_sql import run_query
from include.read.published_tables import pinned
from include.read.rejected_records import reason_counts
from include.state.release_files import PatchDirection
from spark_jobs.contract.validator import compiled_validator, is_distinct
from spark_jobs.stream.compaction import compact_tables
from spark_jobs.tables.failpoints import Step

NAME = "shop_orders"
CHILDREN, BAD = f"silver.{NAME}__items", f"rejected.{NAME}__items"
EVENTS: list[bytes] = shop_frame(timedelta(0))["value"].to_list()[:120]
DEATHS = [step for step in Step if step.value[0] in "456" and step is not Step.NEXT_VALIDATED]
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


def record(value: bytes, number: int) -> Record:
    """Return an event as a record; every other one is not in plain form."""
    return Record(value if number % 2 else b" " + value, partition=number % 3 % 2)


def batches() -> list[list[Record]]:
    """Return three batches: with events that come again, one that breaks the contract, one whose items are no array."""
    records = [record(value, number) for number, value in enumerate(EVENTS)]
    broken = [Record(EVENTS[0].replace(b"2026", b"1926")), Record(EVENTS[1].replace(b'"items":[', b'"items":1,"x":['))]
    return [records[:50], [*records[45:90], *broken], records[90:]]


def fill(release: SmallRelease) -> SmallRelease:
    for each in batches():
        release.take(each)
    return release


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    return fill(opened(spark, tmp_path_factory.mktemp("shop_by_the_driver")))


@pytest.fixture
def release(filled: SmallRelease, tmp_path: Path) -> SmallRelease:
    return copy_release(filled, tmp_path / "production")


def opened(spark: SparkSession, state: Path, backend: str = "local", edit: Callable[[str], str] = str) -> SmallRelease:
    """Return a release of the dataset, or of one with an edited `pipeline.yaml`."""
    folder = DATASETS / NAME
    if edit is not str:
        folder = shutil.copytree(folder, state / "declared" / NAME, ignore=shutil.ignore_patterns("__pycache__"))
        pipeline = folder / "pipeline.yaml"
        pipeline.write_text(edit(pipeline.read_text()))
    return small_release(spark, Settings(state=state / "state", backend=backend), NAME, folder)


def visible(release: SmallRelease, table: str) -> list[Row]:
    rows = release.read(full_name(table))
    return rows.select(name for name in rows.columns if not name.startswith("_")).to_dicts()


def assert_equal_to_oracle(release: SmallRelease, events: list[bytes]) -> None:
    expected = expected_shop_tables(events)
    assert list(expected) == [gold.name for gold in release.dataset.pipeline.gold]
    for table, rows in expected.items():
        assert rows, table
        missing, surplus = differing_rows(rows, visible(release, table))
        assert (missing[:2], surplus[:2]) == ([], []), table


def test_tables_are_those_of_the_oracle(filled: SmallRelease) -> None:
    assert_equal_to_oracle(filled, EVENTS)
    assert not filled.release.needed_spark


def test_a_child_has_its_parents_coordinates_and_its_index(filled: SmallRelease) -> None:
    places = {(row["_partition"], row["_offset"]): row for row in filled.silver().to_dicts()}
    both = [*filled.read(CHILDREN).to_dicts(), *filled.read(BAD).to_dicts()]
    found = Counter((row["_partition"], row["_offset"]) for row in both)
    assert found == Counter({place: len(row["items"]) for place, row in places.items() if row["items"]})
    assert len({(row["_partition"], row["_offset"], row["_index"]) for row in both}) == len(both)
    for row in both:
        parent = places[row["_partition"], row["_offset"]]
        same = ("event_id", "placed_at", "_topic", "_timestamp", "_batch_id")
        assert {name: row[name] for name in same} == {name: parent[name] for name in same}


def test_bad_items_have_their_paths(filled: SmallRelease) -> None:
    found = [(row["_index"], reason) for row in filled.read(BAD).to_dicts() for reason in row["reasons"]]
    assert {reason["rule"] for _, reason in found} == {"range", "type", "required", "duplicate_child"}
    assert all(reason["column"].startswith(f"items[{index}]") for index, reason in found)


def test_the_summary_counts_bad_items_by_reason_wherever_they_stand(filled: SmallRelease) -> None:
    reasons = [reason for row in filled.read(BAD).to_dicts() for reason in row["reasons"]]
    expected = Counter((each["rule"], re.sub(r"[0-9]+", "", each["column"])) for each in reasons)
    counts = reason_counts(pinned(filled.settings), NAME)
    children = counts.filter(pl.col("disposition") == "child").drop("disposition")
    assert {(rule, column): count for rule, column, count in children.rows()} == expected
    assert set(counts["disposition"]) > {"child", "invalid"}


def test_audit_recomputes_children_and_gold_over_them(filled: SmallRelease) -> None:
    assert {gold.name: audited(filled, gold.name) for gold in filled.dataset.pipeline.gold if gold.over} == {
        CHILDREN: [],
        BAD: [],
        "product_days": [],
        "product_prices": [],
        "best_sellers": [],
    }


def test_readers_join_children_with_their_records(filled: SmallRelease) -> None:
    sql = f"""
    select count(*), sum(c.quantity)
    from {CHILDREN} as c join silver.{NAME} as p using (_partition, _offset) where p.country = 'CH'
    """
    expected = [
        row["quantity"]
        for event in map(json.loads, EVENTS)
        if event["data"]["customer"]["address"]["country"] == "CH"
        for row in expected_shop_tables([json.dumps(event).encode()])[CHILDREN]
    ]
    assert list(run_query(pinned(filled.settings), sql).rows) == [(len(expected), sum(expected))]


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["local", pytest.param("spark", marks=pytest.mark.extended)])
def test_death_at_each_step_leaves_each_child_once(
    backend: str, filled: SmallRelease, spark: SparkSession, tmp_path: Path
) -> None:
    release = opened(spark, tmp_path, backend)
    for number, records in enumerate(batches()):
        release.ingest(records)
        for step in DEATHS[number::3]:
            # Of gold's steps the first, the second and the third table's.
            with pytest.raises(Died), dying_at(step, passes=1 + number * step.value.startswith("5.gold")):
                release.refine(number, number)
            release.restart()
        release.refine(number, number)
    assert_equal_to_oracle(release, EVENTS)
    assert_same_rows(head_rows(release), head_rows(filled))


def children_counted(release: SmallRelease) -> tuple[ChildBalance, list[str]]:
    (children,) = release.dataset.pipeline.children
    balance, found = child_balance(memory_database(), pinned(release.settings), NAME, children)
    return balance, [each.sentence() for each in found]


def test_audit_balances_elements_and_rows(release: SmallRelease) -> None:
    accepted, rejected = release.read(CHILDREN), release.read(BAD)
    elements = int(release.silver()["items"].list.len().sum())
    balance = ChildBalance(CHILDREN, elements, accepted.height, rejected.height)
    assert elements == accepted.height + rejected.height
    assert children_counted(release) == (balance, [])
    target = next(target for target in release.release.gold if target.gold.name == CHILDREN)
    first = accepted.sort("_partition", "_offset", "_index").row(0, named=True)
    place = first["_partition"], first["_offset"]
    lost = f"_partition = {place[0]} and _offset = {place[1]} and _index = {first['_index']}"
    rewrite(release, target.table, f"select * from rows where not ({lost})")
    count = accepted.filter(pl.col("_partition") == place[0], pl.col("_offset") == place[1]).height
    (found,) = children_counted(release)[1]
    assert found.startswith(f"missing in {CHILDREN} partition {place[0]} offsets [{place[1]}, {place[1] + 1})")
    assert f"and {count - 1} rows of children" in found or count > 1


def test_explain_leads_from_a_child_and_from_gold_to_the_record(filled: SmallRelease) -> None:
    snapshot_dataset(filled.settings.model_copy(update={"datasets": DATASETS}), NAME)
    reading = pinned(filled.settings)
    child = filled.read(CHILDREN).row(0, named=True)
    keys = {name: str(child[name]) for name in ("_offset", "_partition", "_index")}
    found = row_origin(filled.settings, reading, CHILDREN, keys, 2)
    assert [(each.partition, each.offset) for each in found.records] == [(child["_partition"], child["_offset"])]
    sku = {"day": child["placed_at"].date().isoformat(), "sku": child["sku"]}
    found = row_origin(filled.settings, reading, "gold.product_days", sku, 100)
    assert all(child["sku"].encode() in (each.value or b"") for each in found.records)
    assert 0 < len({(each.partition, each.offset) for each in found.records}) == len(found.records)
    assert len(found.records) <= found.rows[0]["lines"]


def cheaper(folder: Path) -> None:
    """Take off half of the price of each item, and its last item from each order."""
    code = """
from pyspark.sql import DataFrame, functions as F

def silver(accepted: DataFrame) -> DataFrame:
    half = F.transform("items", lambda i: i.withField("price", (i["price"] / 2).cast("decimal(9,2)")))
    return accepted.withColumn("items", F.slice(half, 1, F.greatest(F.size("items") - 1, F.lit(0))))
"""
    (folder / "silver.py").write_text(code)


@pytest.mark.extended
def test_a_patch_replaces_the_children_of_its_records(release: SmallRelease, tmp_path: Path) -> None:
    patcher, before = SlicePatcher(release, tmp_path), head_rows(release)
    patch, _, found = patcher.rebuild(WHOLE_HISTORY, cheaper)
    assert all(found[full_name(gold.name)] for gold in release.dataset.pipeline.gold if gold.over)
    patcher.apply(patch)
    rows = release.silver()
    assert rows["items"].list.len().sum() == release.read(CHILDREN).height + release.read(BAD).height
    assert [audited(release, gold.name) for gold in release.dataset.pipeline.gold] == [[]] * 6
    patcher.apply(replace(patch, direction=PatchDirection.REVERT))
    after = head_rows(release)
    for table, rows in before.items():
        names = [name for name in rows.columns if name not in ("_first_batch", "_last_batch", "_revision", "rows")]
        assert sorted(map(str, rows.select(names).rows())) == sorted(map(str, after[table].select(names).rows())), table
    _, _, found = patcher.rebuild(WHOLE_HISTORY)
    assert not any(found.values())


@pytest.mark.extended
def test_death_at_each_step_of_a_patch_leaves_each_child_once(release: SmallRelease, tmp_path: Path) -> None:
    patcher, steps = SlicePatcher(release, tmp_path), [step for step in Step if step.value.startswith("patch.")]
    patch, _, _ = patcher.rebuild(WHOLE_HISTORY, cheaper)
    for step in steps[:-1]:
        with pytest.raises(Died), dying_at(step):
            patcher.apply(patch)
        release.restart()
    patcher.apply(patch)
    assert [audited(release, gold.name) for gold in release.dataset.pipeline.gold] == [[]] * 6
    assert children_counted(release)[1] == []


@pytest.mark.extended
def test_compaction_and_the_deep_audit(release: SmallRelease) -> None:
    assert differing(release) == {}
    compact_tables(release.settings, [release.release], 600, EARLY)
    assert differing(release) == {}
    assert_equal_to_oracle(release, EVENTS)
    target = next(target for target in release.release.gold if target.gold.name == CHILDREN)
    rewrite(release, target.table, "select * replace (quantity + 1 as quantity) from rows limit 1")
    assert [each.table for each in recomputed(release).differences if each.counts] == [CHILDREN]


def test_bad_item_rejects_its_record_unless_declared_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    release = fill(opened(spark, tmp_path, edit=lambda text: text.replace(", on_bad_child: reject_child", "")))
    bad = {row["event_id"] for row in expected_shop_tables(EVENTS)[BAD]}
    good = [each for each in EVENTS if json.loads(each)["id"] not in bad]
    assert release.silver().height == len(good)
    expected = expected_shop_tables(good)
    for table in (CHILDREN, "product_days", "best_sellers"):
        assert differing_rows(expected[table], visible(release, table)) == ([], []), table
    reasons = [each for row in release.rejected()["reasons"].to_list() for each in row]
    assert {each["rule"] for each in reasons} >= {"duplicate_child", "range", "required", "type"}
    assert any(each["rule"] == "duplicate_child" and each["column"] == "items[1]" for each in reasons)


@pytest.mark.extended
def test_children_of_both_backends_are_the_same(filled: SmallRelease, spark: SparkSession, tmp_path: Path) -> None:
    by_spark = fill(opened(spark, tmp_path, "spark"))
    assert_same_rows(head_rows(by_spark), head_rows(filled))


def test_identities_differ_by_a_microsecond(spark: SparkSession) -> None:
    children = Children("pings", "pings", ("host", "at"))
    times = [f"timestamp '2026-03-02 08:00:00.000{micros}Z'" for micros in ("001", "002", "001")]
    items = ", ".join(f"named_struct('host', 'a', 'at', {time})" for time in times)
    holds, reasons = is_distinct(children)
    row = spark.sql(f"select array({items}) as pings").select(holds, reasons.alias("reasons")).collect()[0]
    assert [reason.column for reason in row.reasons] == ["pings[2]"]
    assert not row[0]


def test_bad_items_of_records_in_every_form(spark: SparkSession) -> None:
    contract = load_dataset(NAME, DATASETS / NAME).contract
    head = '"id":"e1","time":"2026-03-02T08:00:00Z","source":"s","data":{"order_id":"o1"'
    items = (
        '[{"line_no":1,"sku":"sku-1","quantity":0,"price":1.25,"options":["a"]},'
        '{"line_no":1,"sku":"x","quantity":1,"price":1,"options":null},'
        '{"line_no":3,"sku":"sku-3","quantity":1,"price":"1","options":[]},'
        '{"line_no":4,"sku":"sku-4","quantity":1,"price":1.5,"options":[]},7]'
    )
    address = '"customer":{"id":"c","address":{"city":"B","country":"%s"}}'
    texts = [
        f'{{{head},{address % country},"items":{each}}}}}'
        for country in ("CH", "ch")
        for each in (items, "null", "[]", "{}", items.replace(":", " : "), items.replace(",7]", "]"))
    ]
    arrived = datetime(2026, 3, 2, 9, tzinfo=UTC)
    rows = [("t", 0, place, arrived, bytearray(text.encode()), 0) for place, text in enumerate(texts)]
    frame = spark.createDataFrame(
        rows, "topic string, partition int, offset long, timestamp timestamp, value binary, _batch_id long"
    )
    found = compiled_validator(contract).validated(frame).orderBy("_offset").toArrow().to_pylist()

    def told(reasons: list[Row]) -> list[tuple[str, str]]:
        return [(each["rule"], each["column"]) for each in reasons]

    bad = [
        ("type", "items[2].price"),
        ("type", "items[4]"),
        ("range", "items[0].quantity"),
        ("pattern", "items[1].sku"),
        ("duplicate_child", "items[1]"),
    ]
    of_place = [bad, [], [], [], bad, [each for each in bad if each[1] != "items[4]"]]
    wrong: list[list[tuple[str, str]]] = [[], [], [], [("type", "items")], [], []]
    for place, row in enumerate(found):
        assert sorted(told(row["_bad_children"])) == sorted(of_place[place % 6]), place
        others = [] if wrong[place % 6] or place < 6 else [("pattern", "country")]
        assert told(row["_reasons"]) == wrong[place % 6] + others, place
