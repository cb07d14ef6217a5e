"""Figures that an exporter keeps between scrapes: for how long watermarks have not moved, sizes of tables.

Each scrape reads a table's log only when its version has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from include.observe.ledger_reader import LedgerReader
from include.observe.watermark_status import WatermarkStatus
from include.read.publication import Publication, PublishedTable
from include.read.published_tables import TableStats, table_stats

TABLES_EVERY = timedelta(seconds=30)
"""How long the size of a table counts as current although newer versions exist."""


@dataclass
class WatermarkFigures:
    """A release's watermark; `moved_at` is when it was observed first, `arrived_at` when batch `batch` was."""

    release: str
    batch: int
    watermark: datetime | None
    moved_at: datetime
    arrived_at: datetime

    def observe(self, batch: int, status: WatermarkStatus, now: datetime) -> None:
        """Note the watermark as of a published batch."""
        if batch > self.batch:
            self.batch, self.arrived_at = batch, now
        if status.watermark != self.watermark or not status.is_held:
            self.watermark, self.moved_at = status.watermark, now

    @property
    def held_seconds(self) -> float:
        """For how long batches have been published while a partition held the watermark and others were ahead."""
        return max(0.0, (self.arrived_at - self.moved_at).total_seconds())


@dataclass
class MovingFigures:
    """The memory of one exporter."""

    ledger: LedgerReader
    watermarks: dict[str, WatermarkFigures] = field(default_factory=dict)
    sizes: dict[str, tuple[datetime, TableStats]] = field(default_factory=dict)

    def held_seconds(self, publication: Publication, status: WatermarkStatus, now: datetime) -> float:
        """Return for how long a partition has held the watermark of a publication while records came."""
        name, release, batch = publication.dataset, publication.release, publication.batch
        known = self.watermarks.get(name)
        if known is None or known.release != release:
            known = self.watermarks[name] = WatermarkFigures(release, batch, status.watermark, now, now)
        known.observe(batch, status, now)
        return known.held_seconds

    def table_sizes(self, tables: Iterator[PublishedTable], now: datetime) -> Iterator[TableStats]:
        """Yield the sizes of tables. Raises PublishedVersionGone and errors of delta-rs."""
        for table in tables:
            at, found = self.sizes.get(table.name, (None, None))
            same = found is not None and (found.table.path, found.table.version) == (table.path, table.version)
            if found is None or at is None or found.table.path != table.path or (not same and now - at >= TABLES_EVERY):
                found = table_stats(table)
                self.sizes[table.name] = (now, found)
            yield found
