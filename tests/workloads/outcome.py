"""Runs workloads on a real broker and streams: send, wait until published, compare with the oracle and with batch jobs.

Reads: the feeds, published tables. Writes: the topics, a manifest of each feed in `workloads/`. Guarantee: events are
sent once. After a crash: the next call sends the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from include.audit.balance import DatasetAudit
from include.audit.findings import FindingKind
from include.audit.kafka import open_topic
from include.audit.run import audit_dataset, derived_audit
from include.change.jobs import recompute_derived
from include.declare.gold import full_name
from include.ground.errors import Terminal, Transient
from include.ground.kafka import ensure_topic
from include.ground.processes import NoProgress, Waiting
from include.ground.settings import Settings
from include.observe.progress import observe_catch_up
from include.producers.faults import Shares
from include.producers.feed import Feed
from include.producers.manifest import ManifestExists, refuse_other_run
from include.producers.sending import Run, send
from include.read.published_tables import pinned
from include.run.start_stop import down, up
from include.state.process_states import stream_name
from include.state.run_files import bootstrap_servers, process_signs
from workloads.analyses import AnalysisResult, analysed
from workloads.arrival_orders import OrderComparison
from workloads.checks import derived_freshness, freshness, rebuilt, replayed
from workloads.oracle_rows import Expected, differing_rows
from workloads.registry import DERIVED, WORKLOADS, declared_lines, with_sources

WHOLE = ("searches",)
"""Always sent completely: the spikes are in the third week."""
FAULTS = Shares(duplicates=0.01, late=0.02, reorder=0.1)
"""Duplicates, late and reordered records; the oracles know nothing of them."""
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
class Checks:
    """What to check in addition: a `replay` of everything, and this many other orders of arrival."""

    replay: bool = False
    permutations: int = 0


@dataclass(frozen=True)
class WorkloadResult:
    """A workload's events, the published rows of its gold tables, and the tables whose rows differ from the oracle's.

    `batch`, `replay`: rows that a bounded job computes differently from bronze (derived: from its sources), and from
    Kafka. `orders`: of so many other orders of arrival, how many gave the same bytes. `freshness`: seconds from its
    Kafka timestamp to its publication, which 95 % of the records did not exceed. None: not checked. `analyses`
    ran on it.
    """

    name: str
    declared_lines: int
    events: int
    tables: Tables
    differing: dict[str, int]
    audit: DatasetAudit
    freshness: float | None = None
    batch: int | None = None
    replay: int | None = None
    orders: tuple[int, int] | None = None
    analyses: Sequence[AnalysisResult] = ()

    @property
    def is_good(self) -> bool:
        """Whether all that was checked is equal, and the audit found nothing."""
        equal, orders = self.orders or (0, 0)
        is_right = not self.differing and not self.batch and not self.replay and equal == orders
        return is_right and not self.audit.findings and not any(each.differing for each in self.analyses)


@dataclass(frozen=True)
class Group:
    """Workloads that run together: datasets, and what is derived from them; `frames`: the events of each dataset."""

    names: Sequence[str]
    frames: Mapping[str, pl.DataFrame]

    def expected(self, name: str) -> Expected:
        """Return the rows of a workload's gold tables by its oracle."""
        if name in WORKLOADS:
            return WORKLOADS[name].expected(self.frames[name]["value"])
        return DERIVED[name].expected({feed: frame["value"] for feed, frame in self.frames.items()})

    def events(self, name: str) -> int:
        """Return the number of events that a workload is computed from."""
        return sum(frame.height for feed, frame in self.frames.items() if feed in with_sources(name))


def refuse_other_events(settings: Settings, names: Iterable[str], events: int) -> None:
    """Raise OtherEvents when a topic has another number of events, before anything is started."""
    for name in names:
        if name not in WORKLOADS or not _manifest(settings, feed := WORKLOADS[name].feed).exists():
            continue
        try:
            refuse_other_run(_manifest(settings, feed), _sent_run(feed, _events_of(name, events)).facts())
        except ManifestExists as error:
            if not error.finished:
                raise OtherEvents(feed.name, settings) from error


def run_group(
    settings: Settings, names: Sequence[str], events: int, report: Reporter, checks: Checks
) -> list[WorkloadResult]:
    """Run workloads at the same time, with the first `events` events of each feed, and check them one after the other.

    Raises NotPublished.
    """
    feeds = [name for name in names if name in WORKLOADS]
    group = Group(names, {name: _events_of(name, events) for name in feeds})
    up(settings, names, report)
    bootstrap = bootstrap_servers(settings)
    sent = [_send(settings, bootstrap, WORKLOADS[name].feed, frame) for name, frame in group.frames.items()]
    for name in names:
        _await_published(settings, name)
    down(settings, report, names)
    results = [_checked(settings, group, name, checks, report) for name in names]
    if not all(sent):
        # The records of an earlier run may have waited for the derived dataset to be started.
        results = [replace(each, freshness=None) if each.name in DERIVED else each for each in results]
    if not checks.permutations:
        return results
    equal = OrderComparison(settings, group.names, group.frames, report, checks.permutations).run()
    return [replace(each, orders=(equal[each.name], checks.permutations)) for each in results]


def _checked(settings: Settings, group: Group, name: str, checks: Checks, report: Reporter) -> WorkloadResult:
    """Compare a workload with its oracle and with bounded jobs."""
    expected = group.expected(name)
    tables = rows_of_gold(settings, expected)
    differing = {table: sum(map(len, differing_rows(rows, tables[table]))) for table, rows in expected.items()}
    differing = {table: count for table, count in differing.items() if count}
    found = partial(WorkloadResult, name, declared_lines(name), group.events(name), tables, differing)
    report(f"{name}: recomputed by a bounded job …")
    if name in DERIVED:
        return _derived_result(settings, found, name)
    opener = partial(open_topic, bootstrap_servers(settings), jars=settings.jars)
    audit = audit_dataset(settings, name, opener, lambda _: None)
    batch = rebuilt(settings, name, group.frames[name])
    replay = replayed(settings, name) if checks.replay else None
    result = found(audit, freshness(settings, name), batch, replay)
    return replace(result, analyses=analysed(settings, name, group.frames[name]["value"], report))


def _derived_result(settings: Settings, make_result: Callable[..., WorkloadResult], name: str) -> WorkloadResult:
    """Return the result of a derived dataset; its `batch` is None when the audit could not check every table.

    The audit is the batch: a job computes the queries again, over all rows of the sources.
    """
    audit = derived_audit(settings, name, *recompute_derived(settings, name, lambda _: None))
    differing = sum(found.rows for found in audit.findings if found.kind in (FindingKind.missing, FindingKind.surplus))
    return make_result(audit, derived_freshness(settings, name), None if audit.unchecked else differing)


def first_events(feed: Feed, events: int) -> pl.DataFrame:
    """Return the first events of a feed, and those of the same moment as the last one; all when `events` is 0."""
    frame = feed.frame(timedelta(0))
    return frame.filter(pl.col("occurred_at") <= frame["occurred_at"][:events][-1]) if events else frame


def rows_of_gold(settings: Settings, tables: Iterable[str]) -> Tables:
    """Return the published rows of gold tables, without the platform's own columns."""
    reading, found = pinned(settings), Tables()
    for table in tables:
        rows = reading.read(full_name(table)).collect()
        found[table] = rows.select(column for column in rows.columns if not column.startswith("_")).to_dicts()
    return found


def _send(settings: Settings, bootstrap: str, feed: Feed, frame: pl.DataFrame) -> bool:
    """Send what is not sent yet; return whether there was any. Raises OtherEvents."""
    ensure_topic(bootstrap, feed.topic, 2)
    try:
        send(_sent_run(feed, frame), bootstrap, now=datetime.now(UTC), manifest=_manifest(settings, feed))
    except ManifestExists as error:
        if not error.finished:
            raise OtherEvents(feed.name, settings) from error
        return False
    return True


def _manifest(settings: Settings, feed: Feed) -> Path:
    return settings.state / "workloads" / f"{feed.name}.manifest.jsonl"


def _sent_run(feed: Feed, frame: pl.DataFrame) -> Run:
    until: datetime = frame["occurred_at"].max() + ONE_TICK  # type: ignore[operator, assignment]
    return Run(feed, until=until, shares=FAULTS)


def _events_of(name: str, events: int) -> pl.DataFrame:
    return first_events(WORKLOADS[name].feed, 0 if name in WHOLE else events)


def _await_published(settings: Settings, name: str) -> None:
    def has_caught_up() -> bool:
        observed = observe_catch_up(settings, [name])
        if observed.blocked_by and not observed.caught_up:
            raise NotPublished(name, str(observed.blocked_by))
        return observed.caught_up

    try:
        Waiting(name, partial(process_signs, settings, stream_name(name))).holds(has_caught_up, POLL_SECONDS)
    except NoProgress as error:
        raise NotPublished(name, f"not caught up, {error.why}") from error
