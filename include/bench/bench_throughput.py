"""Throughput of a warm driver, from topic to gold, without a producer running."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from include.bench.bench_events import EventSupply, Preload, SendCost, send_frames
from include.bench.bench_follower import BenchFailed, Ends, PublicationFollower, seconds_per_million
from include.bench.bench_state import DATASET, LogLine
from include.bench.cpu_usage import cpu_seconds, used_between
from include.clients.delta_log import log_versions, read_commit
from include.clients.kafka import log_end_offsets
from include.clients.readable_offsets import readable_end_offsets
from include.paths import bronze_path
from include.settings import Settings


@dataclass(frozen=True)
class WarmUp:
    """Events before the measurement; `seconds` from the first one sent to the last one in gold."""

    events: int
    seconds: float
    sending: SendCost

    @property
    def events_per_second(self) -> float:
        """The rate of the warm-up, with the producer running."""
        return self.events / self.seconds


@dataclass(frozen=True)
class Throughput:
    """`events` became visible at once; `seconds` until the last was published, `ingest_seconds` until it was in bronze.

    `cpu` is CPU seconds per million events by process, `steps` wall seconds of refine per million rows by step, over
    `runs_seen` runs with `rows_seen` rows (the driver reports its last run once a second).
    """

    events: int
    seconds: float
    ingest_seconds: float
    cpu: Mapping[str, float]
    steps: Mapping[str, float]
    runs_seen: int
    rows_seen: int
    preload: SendCost

    @property
    def events_per_second(self) -> float:
        """The throughput."""
        return self.events / self.seconds


def warm_up(settings: Settings, bootstrap: str, supply: EventSupply, events: int, log: LogLine) -> WarmUp:
    """Send `events` and wait until all are published."""
    log(f"warm-up: {events:,} events through the driver …")
    began, follower = time.monotonic(), PublicationFollower(settings)
    sending = send_frames(bootstrap, supply.frames(events))
    ends = readable_end_offsets(bootstrap, DATASET)
    follower.follow(lambda: follower.reached(ends))
    done = WarmUp(events, time.monotonic() - began, sending)
    log(f"warm-up: in gold after {done.seconds:.1f} s ({done.events_per_second:,.0f} events/s, producer running)")
    return done


def measure_throughput(
    settings: Settings, bootstrap: str, supply: EventSupply, events: int, log: LogLine
) -> Throughput:
    """Send `events` into an open transaction, commit it, and measure until the last one is published."""
    log(f"throughput: sending {events:,} events into a transaction, not visible yet …")
    preload, start = Preload(bootstrap), log_end_offsets(bootstrap, DATASET)
    sending = preload.send(supply.frames(events))
    # Not the readable ends after the commit: they lag behind it for a moment.
    ends = log_end_offsets(bootstrap, DATASET)
    require_count(settings, events, start, ends)
    follower = PublicationFollower(settings)
    follower.poll()
    follower.runs.clear()
    log("throughput: committing the transaction, the clock runs …")
    before, clock, began = cpu_seconds(settings), time.monotonic(), time.time()
    preload.commit()
    follower.follow(lambda: follower.reached(ends))
    seconds = time.monotonic() - clock
    used = used_between(before, cpu_seconds(settings))
    _wait_for_last_run(follower)
    runs = follower.runs
    return Throughput(
        events=events,
        seconds=seconds,
        ingest_seconds=last_bronze_commit(settings) - began,
        cpu={role: 1e6 * spent / events for role, spent in used.items()},
        steps=seconds_per_million(runs),
        runs_seen=len(runs),
        rows_seen=sum(run.rows for run in runs),
        preload=sending,
    )


def require_count(settings: Settings, events: int, start: Ends, ends: Ends) -> None:
    """Raise BenchFailed unless the topic holds exactly `events` more than at the start."""
    added = sum(ends.values()) - sum(start.values())
    if added != events:
        raise BenchFailed(f"{events:,} events were sent, but the topic has {added:,} more", settings)


def last_bronze_commit(settings: Settings) -> float:
    """Return the epoch seconds of bronze's last commit."""
    path = bronze_path(settings, DATASET)
    return read_commit(path, log_versions(path)[-1]).timestamp_ms / 1000


def _wait_for_last_run(follower: PublicationFollower) -> None:
    """Wait for the driver's report of its last run, up to a second after the publication."""
    end = time.monotonic() + 1.5
    follower.follow(lambda: time.monotonic() > end)
