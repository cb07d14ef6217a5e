"""A release that takes batch after batch, with a copy of every published table after each batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import polars as pl
from small_release import Record, SmallRelease

from include.read.publication import Publication, read_publication


class BatchSnapshots:
    """A release, and its published tables as of each batch."""

    def __init__(self, release: SmallRelease) -> None:
        self.release = release
        self._tables: list[dict[str, pl.DataFrame]] = []
        self.publications: list[Publication] = []
        """By batch."""

    def take(self, records: Sequence[Record]) -> None:
        """Ingest and refine one batch, then copy the published tables."""
        self.release.take(records)
        self._tables.append({name: self.release.read(name) for name in self.release.versions()})
        self.publications.append(read_publication(self.release.settings, self.release.dataset.name))

    def after(self, batch: int, table: str) -> pl.DataFrame:
        """Return the rows of `table` as published after `batch`."""
        return self._tables[batch][table]


class TakeBatches(Protocol):
    """Refines batches of a dataset in a new release."""

    def __call__(self, dataset: str, batches: Sequence[Sequence[Record]], cut_gold: bool = False) -> BatchSnapshots: ...
