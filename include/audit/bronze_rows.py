"""Rows of bronze by partition and range of offsets, read by row group, so that most groups are decoded only once.

Reads: bronze's data files.  Writes: nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from include.audit.kafka_records import RECORD

RECORD_COLUMNS = list(RECORD)
UNBOUNDED = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file: its rows and their bytes in memory; `file` is Arrow's fragment of the file.

    `partitions` and `offsets` are the least and the greatest, UNBOUNDED if some are null or without statistics.
    """

    file: Any
    number: int
    rows: int
    size: int
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def may_have(self, partition: int) -> bool:
        """Whether rows of the partition may be in it."""
        return self.partitions[0] <= partition <= self.partitions[1]

    def is_inside(self, partition: int, start: int, end: int) -> bool:
        """Whether all of its rows are of the partition, with offsets in [start, end)."""
        return self.partitions == (partition, partition) and start <= self.offsets[0] and self.offsets[1] < end


@dataclass(frozen=True)
class PartitionRows:
    """The rows of one partition: `groups` may have some, ascending by their first offsets; `schema` is the table's.

    `reached`: the greatest offset of each group and those before it.
    """

    partition: int
    groups: Sequence[RowGroup]
    reached: Sequence[int]
    schema: pa.Schema

    def ends(self, most: int, most_bytes: int) -> Iterator[int]:
        """Yield offsets, ascending, that lie in no row group, with up to so many rows and bytes from one to the next.

        There are more if one group has more, or if groups overlap.
        """
        rows, size = 0, 0
        for group, before in zip(self.groups, [UNBOUNDED[0], *self.reached], strict=False):
            is_full = rows + group.rows > most or size + group.size > most_bytes
            if rows and is_full and before < group.offsets[0]:
                yield group.offsets[0]
                rows, size = 0, 0
            rows, size = rows + group.rows, size + group.size

    def groups_of(self, start: int, end: int) -> list[RowGroup]:
        """Return the row groups that may have offsets in [start, end)."""
        first = bisect_left(self.reached, start)
        last = bisect_left(self.groups, end, key=lambda group: group.offsets[0])
        return [group for group in self.groups[first:last] if group.offsets[1] >= start]

    def frame(self, start: int, end: int) -> pl.DataFrame:
        """Return the rows with offsets in [start, end), ascending, with the columns and units of a Kafka chunk."""
        read = self.groups_of(start, end)
        whole = all(group.is_inside(self.partition, start, end) for group in read)
        within = None if whole else _condition(self.partition, start) & (pc.field("offset") < end)
        parts = [self._decoded(groups, within) for _, groups in groupby(read, lambda each: each.file.path)]
        rows = pa.concat_tables(parts) if parts else self.schema.empty_table().select(RECORD_COLUMNS)
        frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(pl.col("timestamp").dt.timestamp("us"))
        return frame if frame["offset"].is_sorted() else frame.sort("offset")

    def _decoded(self, groups: Iterable[RowGroup], within: Any) -> pa.Table:
        """Return the rows of some groups of one file."""
        listed = list(groups)
        part = listed[0].file.subset(row_group_ids=[group.number for group in listed])
        return part.to_table(schema=self.schema, columns=RECORD_COLUMNS, filter=within)


def partition_rows(dataset: Any, partition: int, start: int) -> PartitionRows:
    """Return a partition's rows of bronze, an Arrow dataset, from an offset on. Only footers of files are read yet.

    Files that have none of these rows by their bounds in the Delta log are not opened.
    """
    files = dataset.get_fragments(filter=_condition(partition, start))
    groups = [group for file in files for group in row_groups(file) if group.may_have(partition)]
    groups.sort(key=lambda each: each.offsets)
    reached = list(accumulate((group.offsets[1] for group in groups), max))
    return PartitionRows(partition, groups, reached, dataset.schema)


def row_groups(file: Any) -> Iterator[RowGroup]:
    """Yield the row groups of a file that have rows."""
    footer = file.metadata
    columns = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        # Of these columns only: Python has no date of the year 10000, which the bounds of others may be.
        partitions, offsets = (_bounds(group.column(columns[name])) for name in ("partition", "offset"))
        if group.num_rows:
            yield RowGroup(file, number, group.num_rows, group.total_byte_size, partitions, offsets)


def _bounds(column: Any) -> tuple[int, int]:
    found = column.statistics
    known = found is not None and found.has_min_max and found.has_null_count and not found.null_count
    return (found.min, found.max) if known else UNBOUNDED


def _condition(partition: int, start: int) -> Any:
    return (pc.field("partition") == partition) & (pc.field("offset") >= start)
