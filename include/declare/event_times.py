"""Arithmetic on event times that stops at the ends of the calendar: records of the years 1 and 9999 are valid.

The watermark of a dataset after each run: the event time up to which its data counts as complete. Drops nothing.

The least, over partitions, of the greatest event time minus the lateness. A partition that is idle does not count,
unless all are: then the greatest event time of all decides. One that is not idle and has no row in silver yet, as of
rejected records, holds the watermark where it is. The watermark never moves back.

Which partitions are idle is in the commits (`spark_jobs/stream/ingest.py`), so that a replay, an audit or
another release computes the same watermark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def utc_text(at: datetime, timespec: str = "seconds") -> str:
    """Return a time in UTC like `0001-02-03 04:05:06`; `strftime` writes years before 1000 with fewer digits."""
    moment = at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at
    return moment.isoformat(" ", timespec)


def before(moment: datetime, span: timedelta) -> datetime:
    """Return the aware `moment` less `span`, FIRST at the earliest."""
    return moment - span if moment - FIRST > span else FIRST


def after(moment: datetime, span: timedelta) -> datetime:
    """Return the aware `moment` plus `span`, LAST at the latest."""
    return moment + span if LAST - moment > span else LAST


IDLE = "idle"
"""The key of the idle partitions; those of the greatest event times are numbers of partitions."""

ROWLESS = "rowless"
"""The key of the partitions that are not idle, and of which silver has no row."""

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
    `rowless`: the partitions that are not idle and have no row there.
    """

    lateness: timedelta
    batch: int = -1
    watermark: datetime | None = None
    max_event_times: dict[str, datetime] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    brought: dict[str, int] = field(default_factory=dict)
    rowless: frozenset[str] = frozenset()

    def advance(self, batch: int, text: str) -> Watermark:
        """Return the watermark after a run: its last batch, and what its commit says as JSON (`watermark_facts`)."""
        before, found = self.watermark, json.loads(text or "{}")
        self.idle = frozenset(map(str, found.pop(IDLE, ())))
        self.rowless = frozenset(found.pop(ROWLESS, ()))
        for partition, latest in found.items():
            event_time = datetime.fromisoformat(latest)
            self.max_event_times[partition] = max(self.max_event_times.get(partition, event_time), event_time)
            self.brought[partition] = batch
        self.watermark, self.batch = self.reached(self.idle, self.rowless), batch
        return Watermark(batch, before, self.watermark)

    def reached(self, idle: Collection[str], rowless: Collection[str]) -> datetime | None:
        """Return the watermark if these partitions are idle, or without rows ; idle ones do not count."""
        if not self.max_event_times or not set(rowless) <= set(idle):
            return self.watermark
        found = before(self.max_event_times[self._holding(idle)], self.lateness)
        return found if self.watermark is None else max(self.watermark, found)

    def without_rows(self, partitions: Iterable[str]) -> frozenset[str]:
        """Return those of the partitions of which silver has no row."""
        return frozenset(partitions) - self.max_event_times.keys()

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
        return {**facts, IDLE: sorted(self.idle), **({ROWLESS: sorted(self.rowless)} if self.rowless else {})}

    @property
    def holder(self) -> str | None:
        """The partition that decides the watermark; None before the first event."""
        if not self.max_event_times:
            return None
        return min(self.rowless, default=None) or self._holding(self.idle)

    def _holding(self, idle: Iterable[str]) -> str:
        awake = self.max_event_times.keys() - set(idle)
        choose = min if awake else max
        return choose(awake or self.max_event_times, key=lambda partition: (self.max_event_times[partition], partition))


def watermark_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the watermark depends on in the metadata of a commit to silver."""
    return {**metadata["event_time_max"], **{key: metadata[key] for key in (IDLE, ROWLESS) if metadata.get(key)}}


def read_progress(lateness: timedelta, metadata: Mapping[str, Any]) -> WatermarkProgress | None:
    """Return the progress after the run of a commit to silver; None for a commit of an earlier version."""
    found = metadata.get(PROGRESS)
    if found is None:
        return None
    latest = {partition: datetime.fromisoformat(text) for partition, text in found["event_times"].items()}
    at = datetime.fromisoformat(found["at"]) if found["at"] else None
    idle, rowless = frozenset(found[IDLE]), frozenset(found.get(ROWLESS, ()))
    return WatermarkProgress(lateness, found["batch"], at, latest, idle, dict(found["brought"]), rowless)


def watermarks(runs: Iterable[tuple[int, str]], lateness: timedelta) -> Iterator[Watermark]:
    """Yield the watermark of each run, given ascending (last batch, `watermark_facts` as JSON)."""
    progress = WatermarkProgress(lateness)
    for batch, text in runs:
        yield progress.advance(batch, text)
