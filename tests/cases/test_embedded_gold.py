"""Gold that DuckDB merges in the driver equals gold that Spark merges, row by row, with provenance (adr-0012)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from declared_gold import meter_release, reading
from pyspark.sql import DataFrame, SparkSession
from small_release import Record, SmallRelease

from include.read import memory_database as databases
from include.read.memory_database import memory_database
from spark_jobs.backends.local import gold as embedded_gold
from spark_jobs.backends.local.backend import adopted
from spark_jobs.backends.local.duckdb_session import SMALL_RUN, DuckSession
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import GoldFailed
from spark_jobs.layers.gold_rows import LatestGoldRows, Source

GOLD = """
  meter_hours:
    kind: additive
    where: litres <> 13
    window: {column: read_at, size: 1 hour, as: hour}
    keys: [device]
    partition: date_format(hour, 'yyyy-MM-dd')
    measures:
      n: {count: "*"}
      known: {count: "nullif(litres % 3, 0)"}
      large: {count_if: litres > 500}
      share: {ratio: {of: large, to: n}}
      none: {ratio: {of: large, to: nothing}}
      nothing: {count_if: litres < 0}
      inverse: {sum: 5000 div (litres - 13)}
      cost: {sum: "cast(litres * 1.07 as decimal(12, 3))"}
      absent: {sum: "cast(null as int)"}
      mean: {avg: litres}
      least: {min: "nullif(litres % 5, 0)"}
      root: {max: sqrt(litres)}
      first: {first: "nullif(litres % 3, 0)"}
      last: {last: litres}
      id_of_most: {max_by: {value: event_id, by: "nullif(litres % 7, 0)"}}
      id_of_least: {min_by: {value: event_id, by: litres}}
  meter_slides:
    kind: additive
    window: {column: read_at, size: 10 minutes, slide: 5 minutes, as: since}
    measures: {litres: {sum: litres}, first: {first: device}}
  meter_weeks:
    kind: additive
    window: {column: read_at, size: 1 week, time_zone: Europe/Berlin, as: week}
    keys: [device]
    measures: {litres: {sum: litres}}
  meter_totals:
    kind: additive
    keys: [device]
    measures:
      top: {top_k: {value: "nullif(litres % 10, 0)", k: 3}}
      kinds: {count_distinct: "nullif(cast(litres % 10 as string), '4')"}
      events: {approx_distinct: event_id}
      sizes: {approx_distinct: litres % 20}
      none: {approx_distinct: "cast(null as string)"}
  meter_now:
    kind: latest
    where: litres % 4 <> 1
    keys: [device]
    order_by: [litres, read_at]
    partition: substring(device, 1, 2)
    columns: {litres: litres, half: "litres / 2", id: event_id}
"""
BATCHES = 5


def batches(rows: int, seed: int) -> list[list[Record]]:
    """Return readings over two days in random order, in batches of different lengths."""
    numbers = random.Random(seed)
    minutes = numbers.sample(range(2 * 1440), rows)
    found = [reading(f"d{numbers.randrange(4)}", minute, numbers.randrange(1000)) for minute in minutes]
    ends = [0, *sorted(numbers.sample(range(1, rows), BATCHES - 1)), rows]
    return [found[low:high] for low, high in zip(ends, ends[1:], strict=False)]


def refined(release: SmallRelease, records: Sequence[Sequence[Record]], *, by_spark: bool) -> dict[str, pl.DataFrame]:
    """Return all columns but sketches of gold after the batches, by table; DuckDB merges every table, or none."""
    assert adopted(release.release.writer).merges.keys() == {target.gold.name for target in release.release.gold}
    if by_spark:
        release.release = replace(release.release, writer=replace(adopted(release.release.writer), merges={}))
    for batch in records:
        release.take(batch)
    tables = {target.gold.name: release.read(target.table.spec.name) for target in release.release.gold}
    kept = {name: rows.select(c for c in rows.columns if not c.endswith("_sketch")) for name, rows in tables.items()}
    return {name: rows.sort(rows.columns[:2]) for name, rows in kept.items()}


@pytest.mark.extended
@pytest.mark.parametrize(("cut", "small_run"), [(False, SMALL_RUN), (True, SMALL_RUN), (False, 0)])
def test_duckdb_merges_gold_as_spark_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool, small_run: int
) -> None:
    monkeypatch.setattr("spark_jobs.backends.local.duckdb_session.SMALL_RUN", small_run)
    found = []
    for by_spark in (False, True):
        release = meter_release(spark, tmp_path / str(by_spark), GOLD)
        if cut:
            release.cut_gold()
        found.append(refined(release, batches(1_500, 3), by_spark=by_spark))
    embedded, expected = found
    for name, rows in expected.items():
        assert rows.height
        assert embedded[name].equals(rows), name
        assert embedded[name].schema == rows.schema


@pytest.mark.extended
def test_a_repeated_run_reads_the_inputs_from_silver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = meter_release(spark, tmp_path / "repeated", GOLD)
    first, second, *_ = batches(200, 4)
    release.take(first)
    monkeypatch.setattr(GoldTable, "write_rows", None)
    release.ingest(second)
    with pytest.raises(TypeError):
        release.refine(1, 1)
    monkeypatch.undo()
    release.restart()
    release.refine(1, 1)
    expected = refined(meter_release(spark, tmp_path / "whole", GOLD), [first, second], by_spark=True)
    for target in release.release.gold:
        rows = release.read(target.table.spec.name)
        rows = rows.select(c for c in rows.columns if not c.endswith("_sketch"))
        assert rows.sort(rows.columns[:2]).equals(expected[target.gold.name])


@pytest.mark.parametrize("by_spark", [False, True], ids=["DuckDB", "Spark"])
def test_of_rows_that_tie_the_one_with_the_greatest_partition_and_offset_is_the_latest(
    spark: SparkSession, tmp_path: Path, by_spark: bool
) -> None:
    gold = """
  meter_now:
    kind: latest
    keys: [device]
    order_by: [read_at]
    columns: {litres: litres}
"""

    def tied(device: str, litres: int, partition: int = 0) -> Record:
        value = reading(device, 5, litres).value
        assert value is not None
        return Record(value.replace(b'"event_id": "', f'"event_id": "{litres}/'.encode()), partition=partition)

    first = [tied("d1", 30), tied("d1", 10), tied("d1", 20), tied("d2", 7, 1), tied("d2", 9), tied("d3", 3)]
    then = [tied("d1", 11), tied("d2", 8), tied("d3", 2, 1)]
    found = [
        refined(meter_release(spark, tmp_path / str(len(batches)), gold), batches, by_spark=by_spark)["meter_now"]
        for batches in ([first], [first, then])
    ]
    assert [dict(rows.select("device", "litres").rows()) for rows in found] == [
        {"d1": 20, "d2": 7, "d3": 3},
        {"d1": 11, "d2": 7, "d3": 2},
    ]


@contextmanager
def _scarce(rows: int) -> Iterator[DuckSession]:
    with closing(DuckSession(memory_database("20MB"))) as duck:
        yield duck


def test_a_merge_for_which_duckdb_lacks_memory_is_made_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = """
  meter_now:
    kind: latest
    keys: [event_id]
    order_by: [read_at]
    columns: {text: "repeat(event_id, 5000)"}
"""
    release = meter_release(spark, tmp_path / "large", gold)
    first, second = ([reading("d1", minute, 1) for minute in range(low, low + 200)] for low in (0, 200))
    release.take(first)
    made_by_spark = list[int]()
    monkeypatch.setattr(embedded_gold, "session_for", _scarce)
    monkeypatch.setattr(databases, "spill_folder", lambda _: tmp_path)

    merged = LatestGoldRows.merged

    def counted(
        rows: LatestGoldRows, old: DataFrame, sources: Sequence[Source], whole: Callable[[], DataFrame], batch: int
    ) -> DataFrame:
        made_by_spark.append(batch)
        return merged(rows, old, sources, whole, batch)

    monkeypatch.setattr(LatestGoldRows, "merged", counted)
    release.take(second)
    assert made_by_spark == [1]
    assert release.read("gold.meter_now").height == 400


def test_an_expression_that_fails_on_a_row_halts_gold_and_rejects_no_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    gold = """
  meter_now:
    kind: latest
    keys: [device]
    order_by: [read_at]
    columns: {inverse: "5000 div (litres - 13)"}
"""
    release = meter_release(spark, tmp_path / "broken", gold)
    release.take([reading("d1", 1, 12)])
    release.ingest([reading("d1", 2, 13), reading("d2", 2, 14)])
    with pytest.raises(GoldFailed, match="meter_now"):
        release.refine(1, 1)
    assert release.release.writer.silver.rows == 3
    assert release.release.writer.rejected.rows == 0


def test_a_sum_that_outgrows_its_type_halts_gold(spark: SparkSession, tmp_path: Path) -> None:
    gold = """
  meter_now:
    kind: additive
    keys: [device]
    measures: {huge: {sum: "cast(litres as bigint) * 9000000000000000"}}
"""
    release = meter_release(spark, tmp_path / "huge", gold)
    release.take([reading("d1", 1, 1000)])
    release.ingest([reading("d1", 2, 1000)])
    with pytest.raises(GoldFailed, match="meter_now"):
        release.refine(1, 1)
