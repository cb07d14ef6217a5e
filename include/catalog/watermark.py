"""The watermark of a dataset after each run: the event time up to which its data counts as complete. Drops nothing.

The least, over partitions, of the greatest event time minus the lateness. A partition that is idle does not count,
unless all are: then the greatest event time of all decides. The watermark never moves back.

Which partitions are idle is in the commits (`spark_jobs/engine/quiet_partitions.py`), so that a replay, an audit or
another release computes the same watermark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from include.catalog import event_times

IDLE = "idle"
"""The key of the idle partitions; those of the greatest event times are numbers of partitions."""


PROGRESS = "watermark"
"""The key of the progress in the metadata of a commit to silver, so that nobody needs all commits before it."""


@dataclass(frozen=True)
class Watermark:
    """The watermark before and after the run that ended with `batch`; None before the first event."""

    batch: int
    before: datetime | None
    after: datetime | None


@dataclass
class WatermarkProgress:
    """The watermark, each partition's greatest event time, and the partitions that are idle.

    `batch` is the last run's, -1 before the first. `brought`: by partition the last run with a row of it in silver.
    """

    lateness: timedelta
    batch: int = -1
    watermark: datetime | None = None
    max_event_times: dict[str, datetime] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    brought: dict[str, int] = field(default_factory=dict)

    def advance(self, batch: int, text: str) -> Watermark:
        """Return the watermark after a run: its last batch, and what its commit says as JSON (`watermark_facts`)."""
        before, found = self.watermark, json.loads(text or "{}")
        self.idle = frozenset(map(str, found.pop(IDLE, ())))
        for partition, latest in found.items():
            event_time = datetime.fromisoformat(latest)
            self.max_event_times[partition] = max(self.max_event_times.get(partition, event_time), event_time)
            self.brought[partition] = batch
        self.watermark, self.batch = self.reached(self.idle), batch
        return Watermark(batch, before, self.watermark)

    def reached(self, idle: Iterable[str]) -> datetime | None:
        """Return the watermark if these partitions are idle."""
        if not self.max_event_times:
            return None
        found = event_times.before(self.max_event_times[self._holding(idle)], self.lateness)
        return found if self.watermark is None else max(self.watermark, found)

    def as_json(self) -> dict[str, Any]:
        """Return it as the metadata of a commit to silver has it; the lateness is declared."""
        latest = {partition: time.isoformat() for partition, time in sorted(self.max_event_times.items())}
        reached = self.watermark.isoformat() if self.watermark else None
        facts = {
            "batch": self.batch,
            "at": reached,
            "event_times": latest,
            "brought": dict(sorted(self.brought.items())),
        }
        return {**facts, IDLE: sorted(self.idle)}

    @property
    def holder(self) -> str | None:
        """The partition that decides the watermark; None before the first event."""
        return self._holding(self.idle) if self.max_event_times else None

    def _holding(self, idle: Iterable[str]) -> str:
        awake = self.max_event_times.keys() - set(idle)
        choose = min if awake else max
        return choose(awake or self.max_event_times, key=lambda partition: (self.max_event_times[partition], partition))


def watermark_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the watermark depends on in the metadata of a commit to silver."""
    return {**metadata["event_time_max"], **({IDLE: metadata[IDLE]} if metadata.get(IDLE) else {})}


def read_progress(lateness: timedelta, metadata: Mapping[str, Any]) -> WatermarkProgress | None:
    """Return the progress after the run of a commit to silver; None for a commit of an earlier version."""
    found = metadata.get(PROGRESS)
    if found is None:
        return None
    latest = {partition: datetime.fromisoformat(text) for partition, text in found["event_times"].items()}
    at = datetime.fromisoformat(found["at"]) if found["at"] else None
    return WatermarkProgress(lateness, found["batch"], at, latest, frozenset(found[IDLE]), dict(found["brought"]))


def watermarks(runs: Iterable[tuple[int, str]], lateness: timedelta) -> Iterator[Watermark]:
    """Yield the watermark of each run, given ascending (last batch, `watermark_facts` as JSON)."""
    progress = WatermarkProgress(lateness)
    for batch, text in runs:
        yield progress.advance(batch, text)
