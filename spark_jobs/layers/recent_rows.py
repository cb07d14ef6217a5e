"""Rows that this process wrote last, in memory: most duplicates follow their original within a run or two."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_jobs.storage.identity_index import Words

MOST_BYTES = 64_000_000
"""Of the rows of all runs together; a run that has more is not kept."""


@dataclass(frozen=True)
class _Chunk:
    """Rows, their sorted places, and which row is at each of these."""

    places: Words
    rows: pa.Table
    row_at: NDArray[np.int64]


class RecentRows:
    """The rows that were added last, as many as have `most_bytes` together, by place of their Kafka record."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._chunks: deque[_Chunk] = deque()

    def add(self, places: Words, rows: pa.Table) -> None:
        """Add rows at these places; forget the oldest ones that exceed the limit."""
        order = np.argsort(places, kind="stable")
        self._chunks.append(_Chunk(places[order], rows.combine_chunks(), order))
        while sum(chunk.rows.nbytes for chunk in self._chunks) > self._most_bytes:
            self._chunks.popleft()

    def clear(self) -> None:
        """Forget all rows."""
        self._chunks.clear()

    def find(self, places: Words) -> tuple[list[pa.Table], Words]:
        """Return the rows at some of these places, and the places that have none here."""
        found, missing = list[pa.Table](), places
        for chunk in self._chunks:
            at = np.searchsorted(chunk.places, missing)
            is_here = chunk.places.take(at, mode="clip") == missing if len(chunk.places) else np.zeros(len(at), bool)
            found.append(chunk.rows.take(chunk.row_at[at[is_here]]))
            missing = missing[~is_here]
        return found, missing
