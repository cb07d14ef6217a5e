"""Rows of bronze by partition and range of offsets, read by row group, so that each group is decoded only once.

Reads: bronze's data files.  Writes: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

RECORD_COLUMNS = ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
UNBOUNDED = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file; `partitions` and `offsets` are the least and the greatest, UNBOUNDED without statistics.

    `file` is Arrow's fragment of the file.
    """

    file: Any
    number: int
    rows: int
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def may_have(self, partition: int) -> bool:
        """Whether rows of the partition may be in it."""
        return self.partitions[0] <= partition <= self.partitions[1]

    def meets(self, start: int, end: int) -> bool:
        """Whether rows with offsets in [start, end) may be in it."""
        return self.offsets[0] < end and self.offsets[1] >= start

    def is_inside(self, partition: int, start: int, end: int) -> bool:
        """Whether all of its rows are of the partition, with offsets in [start, end)."""
        return self.partitions == (partition, partition) and start <= self.offsets[0] and self.offsets[1] < end


@dataclass(frozen=True)
class PartitionRows:
    """The rows of one partition: `groups` may have some, ascending by their first offsets; `schema` is the table's."""

    partition: int
    groups: Sequence[RowGroup]
    schema: pa.Schema

    def ends(self, most: int) -> Iterator[int]:
        """Yield offsets, ascending, that lie in no row group, with about `most` rows from one to the next."""
        rows, reached = 0, UNBOUNDED[0]
        for group in self.groups:
            if rows and rows + group.rows > most and reached < group.offsets[0]:
                yield group.offsets[0]
                rows = 0
            rows, reached = rows + group.rows, max(reached, group.offsets[1])

    def frame(self, start: int, end: int) -> pl.DataFrame:
        """Return the rows with offsets in [start, end), ascending, with the columns and units of a Kafka chunk."""
        read = [group for group in self.groups if group.meets(start, end)]
        whole = all(group.is_inside(self.partition, start, end) for group in read)
        offset, partition = pc.field("offset"), pc.field("partition")
        within = None if whole else (partition == self.partition) & (offset >= start) & (offset < end)
        parts = [self._decoded(groups, within) for _, groups in groupby(read, lambda each: each.file.path)]
        rows = pa.concat_tables(parts) if parts else self.schema.empty_table().select(RECORD_COLUMNS)
        frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(pl.col("timestamp").dt.timestamp("us"))
        return frame if frame["offset"].is_sorted() else frame.sort("offset")

    def _decoded(self, groups: Iterable[RowGroup], within: Any) -> pa.Table:
        """Return the rows of some groups of one file."""
        listed = list(groups)
        part = listed[0].file.subset(row_group_ids=[group.number for group in listed])
        return part.to_table(schema=self.schema, columns=RECORD_COLUMNS, filter=within)


def bronze_rows(dataset: Any, partitions: Iterable[int]) -> dict[int, PartitionRows]:
    """Return the rows of bronze, an Arrow dataset, by partition. Nothing but the files' footers is read yet."""
    groups = sorted(row_groups(dataset), key=lambda each: each.offsets)
    return {
        partition: PartitionRows(partition, [group for group in groups if group.may_have(partition)], dataset.schema)
        for partition in partitions
    }


def row_groups(dataset: Any) -> Iterator[RowGroup]:
    """Yield the row groups of a dataset's files."""
    for file in dataset.get_fragments():
        for group in file.row_groups:
            bounds = group.statistics or {}
            partitions, offsets = (_bounds(bounds.get(name)) for name in ("partition", "offset"))
            yield RowGroup(file, group.id, group.num_rows, partitions, offsets)


def _bounds(found: dict[str, int] | None) -> tuple[int, int]:
    return UNBOUNDED if found is None else (found["min"], found["max"])
