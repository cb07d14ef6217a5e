"""The content of bronze and silver, from their Delta logs and statistics, for planning a slice.

Reads: commits and add actions of the published tables; of data files only offsets, and only where rows are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from include.ground.delta_log import add_actions
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.read.memory_database import memory_database
from include.read.publication import PublishedTable
from include.read.published_tables import BatchOffsets, open_dataset, open_table
from include.read.published_tables import batch_offsets as read_batch_offsets


@dataclass(frozen=True)
class FileFacts:
    """One data file: path, rows, bytes, and the bounds of its columns as the log has them."""

    path: str
    rows: int
    size: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]


@dataclass(frozen=True)
class PublishedHistory:
    """A dataset's published bronze and silver."""

    bronze: PublishedTable
    silver: PublishedTable

    @cached_property
    def batch_offsets(self) -> list[BatchOffsets]:
        """The offsets that bronze's commits name, up to the published batch."""
        return read_batch_offsets(self.bronze.path, self.bronze.batch)

    @cached_property
    def bronze_files(self) -> list[FileFacts]:
        """Bronze's files."""
        return list(files_of(self.bronze))

    @cached_property
    def silver_files(self) -> list[FileFacts]:
        """Silver's files."""
        return list(files_of(self.silver))

    @cached_property
    def ends(self) -> dict[int, int]:
        """The published end of each partition."""
        return {part.partition: part.end for part in sorted(self.batch_offsets, key=lambda part: part.end)}

    def missing(self, parts: Iterable[BatchOffsets]) -> list[BatchOffsets]:
        """Return the batches' offsets of which bronze has fewer rows than their commit counted."""
        found: Counter[tuple[int, int]] = Counter()
        for file in self.bronze_files:
            if _is_of_one_batch(file):
                found[file.low["_batch_id"], file.low["partition"]] += file.rows
        compacted = [file for file in self.bronze_files if not _is_of_one_batch(file)]
        counted = rows_of_files(self.bronze, compacted, '_batch_id, "partition", count(*)', "true", "group by all")
        found.update({(batch, partition): rows for batch, partition, rows in counted})
        return [part for part in parts if found[part.batch, part.partition] < part.rows]

    def absent(self, part: BatchOffsets) -> list[tuple[int, int]]:
        """Return the ranges [start, end) of a batch's offsets for which bronze has no row."""
        import pyarrow.compute as pc

        condition = (pc.field("_batch_id") == part.batch) & (pc.field("partition") == part.partition)
        found = open_dataset(self.bronze).to_table(columns=["offset"], filter=condition)["offset"]
        return list(holes(sorted(found.to_pylist()), part.start, part.end))

    def batches_with_events(self, columns: Sequence[str], since: datetime, until: datetime) -> set[int]:
        """Return the batches that may have a silver row with one of `columns` in [since, until)."""
        files = [f for f in self.silver_files if any(_may_lie(f, column, since, until) for column in columns)]
        low, high = (sql_literal(moment.isoformat()) for moment in (since, until))
        inside = " or ".join(f"({c} >= {low} and {c} < {high})" for c in map(sql_identifier, columns))
        mixed = [file for file in files if not _is_of_one_batch(file)]
        exact = rows_of_files(self.silver, mixed, "distinct _batch_id", inside)
        return {file.low["_batch_id"] for file in files if _is_of_one_batch(file)} | {batch for (batch,) in exact}


def holes(offsets: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of [start, end) between ascending `offsets`."""
    at = start
    for offset in offsets:
        if offset > at:
            yield at, offset
        at = offset + 1
    if at < end:
        yield at, end


def files_of(table: PublishedTable) -> Iterator[FileFacts]:
    """Yield the table's files at its published version."""
    found = add_actions(open_table(table))
    low, high = (_bounds(found, part) for part in ("min.", "max."))
    facts = (_values(found[name]) for name in ("path", "num_records", "size_bytes"))
    for path, rows, size, lower, upper in zip(*facts, low, high, strict=True):
        yield FileFacts(unquote(path), rows, size, lower, upper)


def rows_of_files(
    table: PublishedTable, files: Sequence[FileFacts], columns: str, condition: str, rest: str = ""
) -> list[tuple[Any, ...]]:
    """Return the result of a query over some of a table's files, which DuckDB reads; empty without files."""
    if not files:
        return []
    paths = ", ".join(sql_literal(str(table.path / file.path)) for file in files)
    source = f"read_parquet([{paths}], hive_partitioning = false, union_by_name = true)"
    with closing(memory_database()) as database:
        return list(database.execute(f"select {columns} from {source} where {condition} {rest}").fetchall())


def _is_of_one_batch(file: FileFacts) -> bool:
    """Whether a file's rows are of one batch; false for compacted files, and for those of a run of several batches."""
    return bool(file.low["_batch_id"] == file.high["_batch_id"])


def _bounds(found: Any, part: str) -> list[dict[str, Any]]:
    """Return one of the two bounds of each file by column; thousands of files, so a column at a time."""
    names = [name for name in found.column_names if name.startswith(part)]
    columns = [name.removeprefix(part) for name in names]
    if not names:
        return [{} for _ in range(found.num_rows)]
    return [dict(zip(columns, row, strict=True)) for row in zip(*(_values(found[name]) for name in names), strict=True)]


def _values(column: Any) -> list[Any]:
    """Return a column as Python values. Arrow would return nanoseconds as pandas objects, and import pandas for it."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz))
    return list(column.to_pylist())


def _may_lie(file: FileFacts, column: str, since: datetime, until: datetime) -> bool:
    low, high = file.low.get(column), file.high.get(column)
    return low is None or high is None or (low < until and high >= since)
