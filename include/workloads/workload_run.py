"""Runs one workload on a real broker and stream: send, wait until published, compare with the oracle, audit.

Reads: the feed, published tables. Writes: the topic, and a manifest in `workloads/`. Guarantee: events are sent once.
After a crash: the next call sends the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import polars as pl

from include.audit.audit_run import audit_dataset
from include.audit.balance import DatasetAudit
from include.audit.kafka_records import open_topic
from include.cli.audit_command import audited_derived
from include.clients.kafka import ensure_topic
from include.errors import Terminal, Transient
from include.process_control.start_stop import down, up
from include.producers.event_feed import Feed
from include.producers.fault_manifest import ManifestExists
from include.producers.injected_faults import Shares
from include.producers.paced_sending import Run, send
from include.reading import pinned
from include.settings import Settings
from include.state.broker_address import bootstrap_servers
from include.status.stream_progress import observe_catch_up
from include.workloads.oracle_rows import Expected, differing_rows
from include.workloads.workload_checks import bytes_of_gold, freshness, permuted, replayed
from include.workloads.workload_registry import DERIVED, WORKLOADS, Workload, declared_lines

FAULTS = Shares(duplicates=0.01, late=0.02, reorder=0.1)
"""Duplicates, late and reordered records; the oracles know nothing of them."""
CAUGHT_UP_WITHIN = 600.0
POLL_SECONDS = 0.5
ONE_TICK = timedelta(microseconds=1)
Reporter = Callable[[str], None]
Tables = dict[str, list[dict[str, Any]]]


class NotPublished(Transient):
    """A workload's records were not published in time; `dataset` names it."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; the stream keeps running", "the same command again, or: headrace status")
        self.dataset = dataset


class OtherEvents(Terminal):
    """The topic has another number of a workload's events; the oracle would expect other rows."""

    def __init__(self, dataset: str, settings: Settings) -> None:
        super().__init__(
            f"{settings.state} has another number of events of {dataset}; nothing was sent",
            "the same --events as before, or another state folder: HEADRACE_STATE=… make demo-workloads",
        )
        self.dataset = dataset


@dataclass(frozen=True)
class WorkloadResult:
    """A workload's events, the published rows of its gold tables, and the tables whose rows differ from the oracle's.

    `seconds` is from the first record sent to the publication of all; None when an earlier run had sent them.
    `freshness`: seconds from its Kafka timestamp to its publication, which 95 % of the records did not exceed.
    `replay`: rows that a replay of everything changes. `orders`: of so many other orders of arrival, how many gave the
    same bytes. None: not checked.
    """

    name: str
    declared_lines: int
    events: int
    tables: Tables
    differing: dict[str, int]
    seconds: float | None
    audit: DatasetAudit
    freshness: float | None = None
    replay: int | None = None
    orders: tuple[int, int] | None = None


@dataclass(frozen=True)
class Checks:
    """What to check in addition to the oracle: a `replay` of everything, and this many other orders of arrival."""

    replay: bool = False
    permutations: int = 0


def run_workload(settings: Settings, name: str, events: int, report: Reporter, checks: Checks) -> WorkloadResult:
    """Run a workload with its first `events` events (0: all of them). Raises NotPublished."""
    workload = WORKLOADS[name]
    frame = first_events(workload.feed, events)
    up(settings, [name], report)
    bootstrap = bootstrap_servers(settings)
    seconds = _sent_and_published(settings, workload, frame, bootstrap)
    tables, differing = _compared(settings, workload.expected(frame["value"]))
    audit = audit_dataset(settings, name, partial(open_topic, bootstrap), lambda _: None)
    replay = replayed(settings, name) if checks.replay else None
    down(settings, report, [name])
    orders = _permuted(settings, workload, frame, report, checks.permutations) if checks.permutations else None
    found = WorkloadResult(name, declared_lines(name), frame.height, tables, differing, seconds, audit)
    return replace(found, freshness=freshness(settings, name), replay=replay, orders=orders)


def _permuted(
    settings: Settings, workload: Workload, frame: pl.DataFrame, report: Reporter, count: int
) -> tuple[int, int]:
    """Return how many of `count` orders of arrival gave the bytes that are published, and `count`."""
    expected, equal = bytes_of_gold(settings, workload.feed.name), 0
    for seed in range(1, count + 1):
        found = permuted(settings, workload.feed, frame, seed, _await_published, lambda _: None)
        equal += found == expected
        report(f"order {seed} of {count}: {'equal' if found == expected else 'other bytes'}")
    return equal, count


def run_derived(settings: Settings, name: str, events: int, report: Reporter) -> WorkloadResult:
    """Run a derived dataset over sources that the first `events` events of their feeds made. Raises NotPublished."""
    derived, began = DERIVED[name], time.monotonic()
    up(settings, [name], report)
    _await_published(settings, name)
    seconds = time.monotonic() - began
    frames = {feed.name: first_events(feed, events) for feed in derived.feeds}
    tables, differing = _compared(settings, derived.expected({feed: frame["value"] for feed, frame in frames.items()}))
    down(settings, report, [name])
    audit, count = audited_derived(settings, name, lambda _: None), sum(frame.height for frame in frames.values())
    return WorkloadResult(name, declared_lines(name), count, tables, differing, seconds, audit)


def _compared(settings: Settings, expected: Expected) -> tuple[Tables, dict[str, int]]:
    """Return the published rows of the tables that an oracle expects, and how many differ in each that does."""
    tables = rows_of_gold(settings, expected)
    differing = {table: sum(map(len, differing_rows(rows, tables[table]))) for table, rows in expected.items()}
    return tables, {table: count for table, count in differing.items() if count}


def first_events(feed: Feed, events: int) -> pl.DataFrame:
    """Return the first events of a feed; all when `events` is 0."""
    frame = feed.frame(timedelta(0))
    return frame.head(events) if events else frame


def rows_of_gold(settings: Settings, tables: Iterable[str]) -> Tables:
    """Return the published rows of gold tables, without the platform's own columns."""
    reading, found = pinned(settings), Tables()
    for table in tables:
        rows = reading.read(f"gold.{table}").collect()
        found[table] = rows.select(column for column in rows.columns if not column.startswith("_")).to_dicts()
    return found


def _sent_and_published(settings: Settings, workload: Workload, frame: pl.DataFrame, bootstrap: str) -> float | None:
    """Send what is not sent yet and wait; return the seconds, None when an earlier run had sent everything."""
    feed, began = workload.feed, time.monotonic()
    ensure_topic(bootstrap, feed.topic, 2)
    manifest = settings.state / "workloads" / f"{feed.name}.manifest.jsonl"
    until: datetime = frame["occurred_at"].max() + ONE_TICK  # type: ignore[operator, assignment]
    is_sent = False
    try:
        send(Run(feed, until=until, shares=FAULTS), bootstrap, now=datetime.now(UTC), manifest=manifest)
    except ManifestExists as error:
        if not error.finished:
            raise OtherEvents(feed.name, settings) from error
        is_sent = True
    _await_published(settings, feed.name)
    return None if is_sent else time.monotonic() - began


def _await_published(settings: Settings, name: str) -> None:
    end = time.monotonic() + CAUGHT_UP_WITHIN
    while not (observed := observe_catch_up(settings, [name])).caught_up:
        if observed.blocked_by:
            raise NotPublished(name, str(observed.blocked_by))
        if time.monotonic() > end:
            raise NotPublished(name, f"not caught up after {CAUGHT_UP_WITHIN:g} s")
        time.sleep(POLL_SECONDS)
