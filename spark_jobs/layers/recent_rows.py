"""Rows that this process wrote last, in memory: most duplicates follow their original within a run or two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_jobs.tables.identity_index import Words

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
