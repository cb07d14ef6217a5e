"""Figures that an exporter keeps between scrapes: watermarks, how long they have not moved, sizes of tables.

Each scrape reads only the runs since the last one, and a table's log only when its version has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from include.catalog.dataset import released_dataset
from include.catalog.watermark import WatermarkProgress
from include.ledger.ledger_reader import LedgerReader
from include.reading.publication import PublishedTable
from include.reading.published_tables import TableStats, table_stats
from include.settings import Settings

TABLES_EVERY = timedelta(seconds=30)
"""How long the size of a table counts as current although newer versions exist."""


@dataclass
class WatermarkFigures:
    """A release's watermark; `moved_at` is when it, or the last batch without a newer one, was observed first."""

    release: str
    progress: WatermarkProgress
    moved_at: datetime
    batch_when_moved: int

    def stuck_seconds(self, batch: int, now: datetime) -> float:
        """Return for how long batches have been published without moving the watermark; 0 without such batches."""
        return (now - self.moved_at).total_seconds() if batch > self.batch_when_moved else 0.0


@dataclass
class MovingFigures:
    """The memory of one exporter."""

    settings: Settings
    ledger: LedgerReader
    watermarks: dict[str, WatermarkFigures] = field(default_factory=dict)
    sizes: dict[str, tuple[datetime, TableStats]] = field(default_factory=dict)

    def watermark(self, dataset: str, release: str, batch: int, now: datetime) -> WatermarkFigures:
        """Return the watermark of a release after its runs up to now. Raises the errors of ledger and catalog."""
        known = self.watermarks.get(dataset)
        if known is None or known.release != release:
            lateness = released_dataset(self.settings, dataset, release).pipeline.lateness
            known = self.watermarks[dataset] = WatermarkFigures(release, WatermarkProgress(lateness), now, batch)
        before = known.progress.watermark
        for last, text in self.ledger.event_times(dataset, release, after=known.progress.batch)[0]:
            known.progress.advance(last, text)
        if known.progress.watermark != before or batch <= known.batch_when_moved:
            known.moved_at, known.batch_when_moved = now, batch
        return known

    def table_sizes(self, tables: Iterator[PublishedTable], now: datetime) -> Iterator[TableStats]:
        """Yield the sizes of tables. Raises PublishedVersionGone and errors of delta-rs."""
        for table in tables:
            at, found = self.sizes.get(table.name, (None, None))
            same = found is not None and (found.table.path, found.table.version) == (table.path, table.version)
            if found is None or at is None or found.table.path != table.path or (not same and now - at >= TABLES_EVERY):
                found = table_stats(table)
                self.sizes[table.name] = (now, found)
            yield found
