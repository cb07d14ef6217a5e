"""A story: batches that come one after the other, and what every table says after each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
from small_release import Record, SmallRelease


class Story:
    """A release, and its published tables as they were after each batch."""

    def __init__(self, release: SmallRelease) -> None:
        self.release = release
        self._seen: list[dict[str, pl.DataFrame]] = []

    def go_on(self, records: Sequence[Record]) -> None:
        """Take one more batch."""
        self.release.take(records)
        self._seen.append({name: self.release.read(name) for name in self.release.versions()})

    def after(self, batch: int, table: str) -> pl.DataFrame:
        """Return the rows of `table` as published after `batch`."""
        return self._seen[batch][table]


Tell = Callable[[str, Sequence[Sequence[Record]]], Story]
