"""Rows of silver at places of Kafka records: from memory if this process wrote them last, else from row groups.

Most duplicates follow their original within a run or two. Files are immutable, so the bounds of their row groups are
read once for a process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from include.ground.record_coordinates import POSITION
from spark_jobs.backends.local.identity_index import Words, packed_places, unpacked_places
from spark_jobs.tables.data_files import Bounds, DataFile, bounds_of
from spark_jobs.tables.delta_table import Table

GROUPS_AT_ONCE = 32
MOST_PARTITIONS = 64
"""Up to so many partitions of a row group have a span each; a group of more is one, as most of it is read anyway."""
Offsets = Mapping[int, NDArray[np.int64]]
"""Sorted offsets by Kafka partition."""
Spans = NDArray[np.int64]
"""First partition and offset, last partition and offset: a row of four for each file, row group or part of one."""
ANYWHERE = (0, 0, 2**62, 2**62)


def rows_at(places: Words, table: Table, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
    """Return the rows of these files at the sorted places, with these columns."""
    whole = to_arrow_schema(table.spec.data_schema, timezone="UTC")
    schema = pa.schema([whole.field(name) for name in columns])
    by_partition = _by_partition(places)
    found = [schema.empty_table()]
    for number in np.flatnonzero(_may_have(by_partition, _spans([(file.low, file.high) for file in files]))).tolist():
        found.extend(_rows_of_file(table.spec.path / files[number].path, places, by_partition, schema))
    return pa.concat_tables(found, promote_options="permissive")


def _rows_of_file(path: Path, places: Words, by_partition: Offsets, schema: pa.Schema) -> Iterator[pa.Table]:
    groups = _groups_with(path, by_partition)
    if not groups:
        return
    with pq.ParquetFile(path, pre_buffer=False) as source:
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            chosen = groups[first : first + GROUPS_AT_ONCE]
            rows = source.read_row_groups(chosen, columns=schema.names, use_threads=False).select(schema.names)
            if pa.string_view() in rows.schema.types:
                # As delta-rs writes texts; Arrow cannot filter them.
                rows = rows.cast(schema)
            here = packed_places(*(rows[name].to_numpy() for name in POSITION))
            yield rows.filter(pc.is_in(pa.array(here), pa.array(places)))


def _groups_with(path: Path, by_partition: Offsets) -> list[int]:
    """Return the row groups of a file that may have one of the offsets.

    A group of several Kafka partitions counts by its span of each: one span over all has nearly every place, once the
    offsets of partitions are far apart.
    """
    spans = _group_spans(path)
    near = np.flatnonzero(_may_have(by_partition, spans)).tolist()
    is_mixed = spans[:, 0] != spans[:, 2]
    return [
        group for group in near if not is_mixed[group] or _may_have(by_partition, _spans_in_group(path, group)).any()
    ]


@lru_cache(maxsize=1_000)
def _group_spans(path: Path) -> Spans:
    return _spans(bounds_of(path, POSITION))


@lru_cache(maxsize=10_000)
def _spans_in_group(path: Path, group: int) -> Spans:
    """Return the spans of each Kafka partition in a row group, that of the group if it has very many."""
    partition, offset = POSITION
    with pq.ParquetFile(path, pre_buffer=False) as source:
        rows = source.read_row_group(group, columns=list(POSITION), use_threads=False)
    found = rows.group_by(partition).aggregate([(offset, "min"), (offset, "max")])
    if found.num_rows > MOST_PARTITIONS:
        return _group_spans(path)[group : group + 1]
    columns = (found[name] for name in (partition, f"{offset}_min", partition, f"{offset}_max"))
    return np.stack([column.to_numpy().astype(np.int64) for column in columns], axis=1)


def _spans(bounds: Sequence[tuple[Bounds, Bounds]]) -> Spans:
    """Return spans; one whose bounds are unknown has every place."""
    found = [
        tuple(int(str(side[name])) for side in (low, high) for name in POSITION)
        if all(name in low for name in POSITION)
        else ANYWHERE
        for low, high in bounds
    ]
    return np.array(found, np.int64).reshape(-1, 4)


def _by_partition(places: Words) -> Offsets:
    partitions, offsets = unpacked_places(places)
    return {int(partition): offsets[partitions == partition] for partition in np.unique(partitions)}


def _may_have(by_partition: Offsets, spans: Spans) -> NDArray[np.bool_]:
    """Return which of the spans may have one of the offsets."""
    first, start, last, end = spans.T
    found = np.zeros(len(spans), bool)
    for partition, offsets in by_partition.items():
        has_one = np.searchsorted(offsets, start) < np.searchsorted(offsets, end, side="right")
        found |= (first <= partition) & (partition <= last) & has_one
    return found


RECENT_BYTES = 64_000_000
"""Of all rows together, with their places; more than that at once leave none."""
SHARE_OF_CHUNK = 8
"""A chunk that has this share of the bytes is not merged any more: the oldest are forgotten by whole chunks."""


@dataclass(frozen=True)
class _Chunk:
    """Rows, their sorted places, and which row is at each of these."""

    places: Words
    rows: pa.Table
    row_at: NDArray[np.int64]
    size: int
    """Bytes of the columns."""


class RecentRows:
    """The rows that were added last, as many as have `most_bytes` together, by place of their Kafka record.

    Small chunks are merged, so that there are as many as the logarithm of the rows, however small runs are.
    """

    def __init__(self, most_bytes: int = RECENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._chunks: list[_Chunk] = []

    def add(self, places: Words, rows: pa.Table) -> None:
        """Add rows at these places; forget the oldest chunks that exceed the limit."""
        if not len(places):
            return
        chunks = [*self._chunks, _chunk(places, rows)]
        while len(chunks) > 1 and self._may_merge(*chunks[-2:]):
            last = chunks.pop()
            chunks[-1] = _merged(chunks[-1], last)
        size = sum(chunk.size for chunk in chunks)
        while size > self._most_bytes:
            size -= chunks.pop(0).size
        self._chunks = chunks

    def clear(self) -> None:
        """Forget all rows."""
        self._chunks = []

    def find(self, places: Words) -> tuple[list[pa.Table], Words]:
        """Return the rows at some of these places, and the places that have none here."""
        found, missing = list[pa.Table](), places
        for chunk in self._chunks:
            at = np.searchsorted(chunk.places, missing)
            is_here = chunk.places.take(at, mode="clip") == missing
            if is_here.any():
                found.append(chunk.rows.take(chunk.row_at[at[is_here]]))
                missing = missing[~is_here]
        return found, missing

    def _may_merge(self, older: _Chunk, newer: _Chunk) -> bool:
        return len(older.places) <= 2 * len(newer.places) and older.size <= self._most_bytes // SHARE_OF_CHUNK


def _chunk(places: Words, rows: pa.Table) -> _Chunk:
    return _sorted(places, rows, np.arange(len(places)))


def _merged(older: _Chunk, newer: _Chunk) -> _Chunk:
    places, rows = np.concatenate([older.places, newer.places]), pa.concat_tables([older.rows, newer.rows])
    return _sorted(places, rows, np.concatenate([older.row_at, newer.row_at + older.rows.num_rows]))


def _sorted(places: Words, rows: pa.Table, row_at: NDArray[np.int64]) -> _Chunk:
    """Return a chunk of rows, which stay where they are: to gather texts takes longer than all the rest."""
    # A stable sort takes places that ascend in a few long runs as they are, and merges them.
    order, whole = np.argsort(places, kind="stable"), rows.combine_chunks()
    return _Chunk(places[order], whole, row_at[order], int(places.nbytes + whole.nbytes + order.nbytes))
