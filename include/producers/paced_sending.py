"""Sends one run of a feed: its events with injected faults, and the manifest.

A run with a manifest can be stopped at any moment: the same run with the same manifest continues after the last
chunk that is known to be in the topic. After a crash (not after Ctrl-C) that chunk is sent a second time; these
records are duplicates, and the manifest records them (`resent`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import polars as pl

from include.ground.kafka import PartitionsNotReady, log_end_offsets, wait_until_usable
from include.producers.event_feed import Feed, InvalidEventRange, events, validate_range
from include.producers.fault_manifest import (
    Ends,
    Journal,
    Line,
    extend_journal,
    open_journal,
    refuse_other_run,
    write_manifest,
)
from include.producers.injected_faults import Shares, inject_faults
from include.producers.kafka_producer import AT_ONCE, DELIVERY_SECONDS, Pace, Position, Produced, SentChunk, produce

LogEnds = Callable[[str, str], Ends]
"""(bootstrap, topic) → the end offset of each partition."""


@dataclass(frozen=True)
class Run:
    """What to send: a slice of a feed (`since <= time < until`), repeated, with faults drawn by `seed`.

    InvalidEventRange when the slice cannot hold an event.
    """

    feed: Feed
    since: datetime | None = None
    until: datetime | None = None
    repeat: int = 1
    shares: Shares = field(default_factory=Shares)
    seed: int = 1

    def __post_init__(self) -> None:
        validate_range(self.since, self.until, self.repeat)

    def facts(self) -> Line:
        """Return the identity of the run, as JSON."""
        return {
            "feed": self.feed.name,
            "topic": self.feed.topic,
            "from": self.since.isoformat() if self.since else None,
            "to": self.until.isoformat() if self.until else None,
            "repeat": self.repeat,
            "shares": asdict(self.shares),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Sent:
    """Result of a run: `produced` by this call; `total` records in the run, `finished` when all are in the topic."""

    produced: Produced
    total: int
    finished: bool
    resumed_at: int = 0


def deliveries(run: Run, now: datetime) -> pl.DataFrame:
    """Return everything the run delivers, in order (columns as `inject_faults`).

    InvalidEventRange when the slice is empty, a repetition would be in the future, after `now`, or records of the feed
    cannot be corrupted.
    """
    if run.shares.corrupt and not run.feed.corruptible:
        raise InvalidEventRange(f"records of {run.feed.name} cannot be corrupted: their times are not in ISO 8601")
    selected = events(run.feed, run.since, run.until, run.repeat)
    if not selected.height:
        raise InvalidEventRange(f"{run.feed.name} has no events in the requested range")
    newest = selected["occurred_at"].max()
    if isinstance(newest, datetime) and newest > now:
        raise InvalidEventRange(f"--repeat {run.repeat} reaches {newest.isoformat()}, which is in the future")
    return inject_faults(selected, run.feed, run.shares, run.seed)


def send(
    run: Run,
    bootstrap: str,
    *,
    now: datetime,
    rows: pl.DataFrame | None = None,
    manifest: Path | None = None,
    pace: Pace = AT_ONCE,
    log_ends: LogEnds | None = None,
) -> Sent:
    """Send the run to its topic (which must exist) and write the manifest of what was delivered.

    `rows`: its `deliveries(run, now)`, if already computed.

    With `manifest`, an interrupted run is continued; ManifestExists when the file belongs to another run or to this
    one and it is finished. After `pace.stop` or a failed delivery the manifest holds what was delivered.
    """
    if manifest:
        refuse_other_run(manifest, run.facts())
    rows = deliveries(run, now) if rows is None else rows
    if not manifest:
        done = produce(bootstrap, run.feed.topic, rows, pace)
        return Sent(done, rows.height, done.next_row == rows.height)
    writer = _JournalWriter(run, rows, manifest, partial(log_ends or ends_with_retry, bootstrap, run.feed.topic))
    start_at = writer.journal.sent
    try:
        done = produce(bootstrap, run.feed.topic, rows, pace, start_at=start_at, on_chunk=writer.record)
    finally:
        write_manifest(manifest, writer.journal, finished=writer.journal.sent == rows.height)
    return Sent(done, rows.height, done.next_row == rows.height, start_at)


def ends_with_retry(bootstrap: str, topic: str) -> Ends:
    """Return the end offset of each partition, with the producer's timeout while a broker restarts."""
    try:
        return log_end_offsets(bootstrap, topic, DELIVERY_SECONDS)
    except PartitionsNotReady:
        wait_until_usable(bootstrap, topic, DELIVERY_SECONDS)
        return log_end_offsets(bootstrap, topic, DELIVERY_SECONDS)


class _JournalWriter:
    """Writes the run's journal, chunk by chunk."""

    def __init__(self, run: Run, rows: pl.DataFrame, manifest: Path, log_ends: Callable[[], Ends]) -> None:
        self.topic, self.rows, self.log_ends = run.feed.topic, rows, log_ends
        found = log_ends()
        self.journal: Journal = open_journal(manifest, run.facts(), found)
        # Records after the journal's end reached the topic before the crash.
        self.crashed = found != self.journal.ends

    def record(self, chunk: SentChunk) -> None:
        """Record a chunk that is in the topic."""
        ends = self.log_ends()
        lines = fault_lines(self.rows, self.topic, chunk.positions)
        if self.crashed:
            lines = [*resent_lines(self.topic, chunk, self.journal.ends, ends), *lines]
            self.crashed = False
        self.journal = extend_journal(self.journal, chunk.end, ends, lines)


def fault_lines(rows: pl.DataFrame, topic: str, positions: dict[int, Position]) -> list[Line]:
    """Return the manifest lines of the delivered marked rows, in order of delivery."""
    landed = sorted(positions)
    marked = rows[landed].select("fault", "kind", "reason", "event_id").to_dicts() if landed else []
    return [
        mark | {"topic": topic, "partition": positions[row][0], "offset": positions[row][1]}
        for row, mark in zip(landed, marked, strict=True)
    ]


def resent_lines(topic: str, chunk: SentChunk, before: Ends, after: Ends) -> list[Line]:
    """Return a `resent` line per partition: rows of the chunk, and the offsets that contain both copies."""
    return [
        {
            "fault": "resent",
            "from": chunk.start,
            "to": chunk.end,
            "topic": topic,
            "partition": partition,
            "offset": before.get(partition, 0),
            "end": end,
        }
        for partition, end in sorted(after.items())
    ]
