"""Bronze by row group: each is decoded once, none is left out, and no row of another partition or range is returned."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from include.audit.bronze import RECORD_COLUMNS, PartitionRows, partition_rows

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("_batch_id", pa.int64()),
    ]
)
GROUP = 10
LAST = 100
MANY = 1 << 30
YEAR_10000 = 253_402_300_800_000_000
"""Its begin, in microseconds."""


def write(path: Path, places: list[tuple[int | None, int]], year_10000: bool = False, **writing: Any) -> None:
    """Write a file of bronze with the records at these places (partition, offset), GROUP in each row group."""
    rows = [
        {"partition": partition, "offset": offset, "timestamp": offset, "timestamp_type": 1, "value": b"%d" % offset}
        for partition, offset in places
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    if year_10000:
        times = pa.repeat(pa.scalar(YEAR_10000), len(table)).cast(SCHEMA.field("timestamp").type)
        table = table.set_column(2, SCHEMA.field("timestamp"), times)
    pq.write_table(table, path, row_group_size=GROUP, **writing)


def offsets(rows: PartitionRows, start: int, end: int) -> list[int]:
    frame = rows.frame(start, end)
    assert frame.columns == RECORD_COLUMNS
    found: list[int] = frame["offset"].to_list()
    assert frame["value"].to_list() == [b"%d" % offset for offset in found]
    return found


def of(folder: Path, partition: int = 0, start: int = 0) -> PartitionRows:
    return partition_rows(ds.dataset(folder, schema=SCHEMA), partition, start)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write offsets of partition 0, the later ones first; a row group, up to 39, has some of partition 1 too."""
    write(tmp_path / "a.parquet", [(0, offset) for offset in range(40, LAST)])
    write(tmp_path / "b.parquet", [(0, offset) for offset in range(25)])
    write(tmp_path / "c.parquet", [(0, offset) for offset in range(25, 40)] + [(1, offset) for offset in range(30)])
    return tmp_path


def test_rows_of_files_in_another_order_ascend(folder: Path) -> None:
    assert offsets(of(folder), 0, LAST) == list(range(LAST))


def test_range_that_cuts_row_groups_has_no_other_rows(folder: Path) -> None:
    assert offsets(of(folder), 3, 58) == list(range(3, 58))
    assert offsets(of(folder), LAST, LAST + 5) == []


def test_row_group_with_rows_of_two_partitions_is_divided(folder: Path) -> None:
    assert offsets(of(folder, 1), 0, LAST) == list(range(30))


def test_partition_without_rows_has_an_empty_frame(folder: Path) -> None:
    assert offsets(of(folder, 2), 0, LAST) == []


def test_overlapping_rows_are_all_returned(folder: Path) -> None:
    write(folder / "d.parquet", [(0, offset) for offset in range(50, 55)])
    assert offsets(of(folder), 49, 56) == [49, 50, 50, 51, 51, 52, 52, 53, 53, 54, 54, 55]


def test_file_without_statistics_is_read(folder: Path) -> None:
    write(folder / "d.parquet", [(0, LAST), (1, 40)], write_statistics=False)
    assert offsets(of(folder), 0, LAST + 1) == list(range(LAST + 1))
    assert offsets(of(folder, 1), 0, LAST) == [*range(30), 40]


def test_ranges_between_ends_decode_each_row_group_once(folder: Path) -> None:
    rows = of(folder)
    bounds = [0, *rows.ends(30, MANY), LAST]
    assert bounds == [0, 40, 70, LAST]
    decoded = [group for start, end in pairwise(bounds) for group in rows.groups_of(start, end)]
    assert sorted(group.offsets for group in decoded) == [group.offsets for group in rows.groups]


def test_no_range_ends_in_a_row_group_that_overlaps_others(folder: Path) -> None:
    write(folder / "d.parquet", [(0, offset) for offset in range(15, 75, 10)])
    assert list(of(folder).ends(30, MANY)) == [70]


def test_range_of_large_rows_ends_sooner(folder: Path) -> None:
    rows = of(folder)
    two = 2 * max(group.size for group in rows.groups)
    assert list(rows.ends(30, two)) == [40, 60, 80]


def test_row_without_a_partition_is_in_no_other(folder: Path) -> None:
    write(folder / "d.parquet", [(0, LAST), (None, LAST + 1)])
    assert offsets(of(folder), LAST, LAST + 5) == [LAST]


def test_time_that_python_does_not_have_is_read(folder: Path) -> None:
    write(folder / "d.parquet", [(0, LAST)], year_10000=True)
    frame = of(folder).frame(LAST, LAST + 1)
    assert frame["timestamp"].to_list() == [YEAR_10000]
