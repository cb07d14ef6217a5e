"""Drain: events become visible to a warm driver at once, without a producer running, until the last is published."""

from __future__ import annotations

import time

from benchmarks.cpu_usage import per_million, stream_cpu, used_between
from benchmarks.follower import BenchFailed, Ends, seconds_per_million
from benchmarks.result import Figures
from benchmarks.sending import Preload
from benchmarks.session import BenchSession
from include.ground.delta_log import log_versions, read_commit
from include.ground.kafka import log_end_offsets
from include.ground.paths import bronze_path
from include.ground.settings import Settings


def measure_drain(session: BenchSession, events: int) -> Figures:
    """Send `events` into an open transaction, commit it, and measure until the last one is published."""
    topic, settings = session.target.topic, session.settings
    session.log(f"drain: sending {events:,} events into a transaction, not visible yet …")
    preload, start = Preload(session.target), log_end_offsets(session.bootstrap, topic)
    preload.send(session.supply.frames(events))
    # Not the readable ends after the commit: they lag behind it for a moment.
    ends = log_end_offsets(session.bootstrap, topic)
    require_count(session, events, start, ends)
    follower = session.follower()
    follower.poll()
    follower.runs.clear()
    session.log("drain: committing the transaction, the clock runs …")
    before, clock, began = stream_cpu(settings, session.dataset), time.monotonic(), time.time()
    preload.commit()
    follower.follow(lambda: follower.reached(ends))
    seconds = time.monotonic() - clock
    used = used_between(before, stream_cpu(settings, session.dataset))
    # The driver reports its last run up to a second after the publication.
    end = time.monotonic() + 1.5
    follower.follow(lambda: time.monotonic() > end)
    steps = {f"s/M, {name}": seconds for name, seconds in seconds_per_million(follower.runs).items()}
    ingest = events / (last_bronze_commit(settings, session.dataset) - began)
    return {"events/s": events / seconds, "events/s into bronze": ingest} | per_million(used, events) | steps


def require_count(session: BenchSession, events: int, start: Ends, ends: Ends) -> None:
    """Raise BenchFailed unless the topic holds exactly `events` more than at the start."""
    added = sum(ends.values()) - sum(start.values())
    if added != events:
        why = f"{events:,} events were sent, but the topic has {added:,} more"
        raise BenchFailed(why, session.settings, session.dataset)


def last_bronze_commit(settings: Settings, dataset: str) -> float:
    """Return the epoch seconds of bronze's last commit."""
    path = bronze_path(settings, dataset)
    return read_commit(path, log_versions(path)[-1]).timestamp_ms / 1000
