"""A batch or run whose rows do not add up is refused; files of a window's silver are found by their bounds."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from include.declare.windows import Window, parsed_size
from spark_jobs.backends.backend import DecisionCounts
from spark_jobs.layers.bronze import BronzeBatch, validate_ranges
from spark_jobs.layers.gold_files import files_within
from spark_jobs.stream.refine import refuse_unaccounted
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import RowsUnaccounted, Table

COLUMNS = StructType().add("at", TimestampType()).add("n", LongType()).add("_month", StringType())


@pytest.mark.parametrize("rows_in", [4, 6])
def test_records_that_are_in_no_table_or_in_two_are_refused(rows_in: int) -> None:
    with pytest.raises(RowsUnaccounted, match=f"{rows_in} records came in, 3 are accepted and 2 rejected") as refused:
        refuse_unaccounted("silver.small", (4, 7), DecisionCounts(rows_in, 3, 2, {}, {}, {}, {}))
    assert refused.value.batches == (4, 7)
    refuse_unaccounted("silver.small", (4, 7), DecisionCounts(5, 3, 2, {}, {}, {}, {}))


def bronze_file(partitions: tuple[int, int], offsets: tuple[int, int], rows: int) -> DataFile:
    low, high = ({"partition": p, "offset": o} for p, o in zip(partitions, offsets, strict=True))
    return DataFile("part.parquet", "2024-01-05", rows, 100, low, high)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([bronze_file((0, 1), (10, 12), 3)], "partition 0 has offsets 10 to 12"),
        ([bronze_file((0, 0), (9, 12), 3)], "partition 0 has offsets 9 to 12, not \\[10, 13\\)"),
        ([bronze_file((0, 0), (10, 13), 3)], "partition 0 has offsets 10 to 13, not \\[10, 13\\)"),
        ([bronze_file((2, 2), (0, 0), 1)], "partition 2 has offsets 0 to 0, not \\[0, 0\\)"),
        ([bronze_file((0, 0), (10, 12), 2)] * 2, "4 rows in \\[10, 13\\)"),
    ],
    ids=["two partitions in a file", "before the range", "after the range", "of no range", "a record twice"],
)
def test_batch_of_bronze_with_other_records_than_its_ranges_is_refused(written: list[DataFile], reason: str) -> None:
    batch = BronzeBatch(7, "small/bronze/1", 7, {0: (10, 13), 1: (0, 5)}, {})
    validate_ranges("bronze.small", [bronze_file((0, 0), (10, 12), 2), bronze_file((1, 1), (0, 4), 5)], batch)
    with pytest.raises(RowsUnaccounted, match=reason):
        validate_ranges("bronze.small", written, batch)


@pytest.mark.parametrize(
    ("size", "start", "hour"),
    [
        ("1 hour", datetime(2024, 1, 5, 23, tzinfo=UTC), 23),
        ("1 day", date(2024, 1, 5), 23),
        ("1 day", date(2024, 1, 5), 0),
    ],
)
def test_file_of_an_hour_is_of_its_hour_and_of_its_day(
    tmp_path: Path, size: str, start: datetime | date, hour: int
) -> None:
    """A file may lie wholly in the last hour of a day, or within one hour."""
    window = Window("at", parsed_size(size), "since")
    moments = [datetime(2024, 1, 5, hour, minute, tzinfo=UTC) for minute in (10, 50)]
    low, high = ({"at": moment} for moment in moments)
    table = Table(TableSpec("silver.small", tmp_path / "silver", COLUMNS, "_month", ("at",)))
    table.commit("app", 0, {}, [DataFile("f.parquet", "2024-01", 3, 100, low, high)])
    assert files_within(table, "at", [(window.begin(start), window.end(start))]) == table.files()
    later = (window.end(start), window.end(start))
    assert files_within(table, "at", [later]) == []
