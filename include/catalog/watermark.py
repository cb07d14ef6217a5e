"""The watermark of a dataset after each run: the event time up to which its data counts as complete. Drops nothing.

The least, over partitions, of the greatest event time minus the lateness. It never moves back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from include.catalog import event_times


@dataclass(frozen=True)
class Watermark:
    """The watermark before and after the run that ended with `batch`; None before the first event."""

    batch: int
    before: datetime | None
    after: datetime | None


@dataclass
class WatermarkProgress:
    """The watermark and each partition's greatest event time; `batch` is the last run's, -1 before the first."""

    lateness: timedelta
    batch: int = -1
    watermark: datetime | None = None
    max_event_times: dict[str, datetime] = field(default_factory=dict)

    def advance(self, batch: int, text: str) -> Watermark:
        """Return the watermark after a run: its last batch, its greatest event times as JSON by partition."""
        before = self.watermark
        for partition, latest in json.loads(text or "{}").items():
            event_time = datetime.fromisoformat(latest)
            self.max_event_times[partition] = max(self.max_event_times.get(partition, event_time), event_time)
        if self.max_event_times:
            reached = event_times.before(min(self.max_event_times.values()), self.lateness)
            self.watermark = reached if before is None else max(before, reached)
        self.batch = batch
        return Watermark(batch, before, self.watermark)


def watermarks(runs: Iterable[tuple[int, str]], lateness: timedelta) -> Iterator[Watermark]:
    """Yield the watermark of each run, given ascending (last batch, event_time_max as JSON by partition)."""
    progress = WatermarkProgress(lateness)
    for batch, text in runs:
        yield progress.advance(batch, text)
