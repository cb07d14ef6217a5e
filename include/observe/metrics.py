"""The figures of all datasets and processes as metric families of Prometheus, and the endpoint `/metrics`.

`python -m include.observe.metrics HOST PORT`. Scrapes are answered one after the other. A figure that cannot be read is
left out; `headrace_unknown_figures` counts the reasons.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from asyncio import Task, create_task, shield, to_thread
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from include.audit.run import last_outcome
from include.ground.errors import HeadraceError
from include.ground.http_server import serve_application
from include.ground.settings import Settings, load_settings
from include.observe.ledger_reader import LedgerReader, open_reader
from include.observe.progress import DatasetProgress, Progress, observe_progress
from include.observe.watermark import PartitionState, WatermarkStatus
from include.plans.journal import open_plans
from include.read.publication import Publication, PublishedTable, find_publication, published_tables
from include.read.published_tables import TableStats, table_stats
from include.state.process_states import ProcessState

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


RECENT_RUNS = 20
"""Runs over which the share of rejected records is taken."""
Labels = dict[str, str | None]
Value = float | None
Values = Value | Mapping[str, Value]
"""One value, or one for each value of a label."""


@dataclass(frozen=True)
class Figure:
    """A metric: its name, its meaning, and how each kind of subject has a value of it; `by`: the label of several."""

    name: str
    about: str
    of: Mapping[str, Callable[[Any], Values]]
    by: str = ""
    is_counter: bool = False

    def family(self, subjects: Iterable[tuple[str, Any, Labels]]) -> Metric:
        """Return the metric with the values of these subjects, each with its kind and its labels."""
        found: list[tuple[dict[str, str], float]] = []
        for kind, subject, labels in subjects:
            value = self.of[kind](subject) if kind in self.of else None
            values = value if isinstance(value, Mapping) else {"": value}
            for key, one in values.items():
                if one is not None:
                    own = labels | ({self.by: key} if self.by else {})
                    found.append(({name: text or "" for name, text in own.items()}, float(one)))
        names = list(found[0][0]) if found else ["process"] if self.is_counter else []
        kind_of = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = kind_of(f"headrace_{self.name}", self.about, labels=names)
        for texts, number in found:
            family.add_metric([texts[name] for name in names], number)
        return family


def _figure(name: str, about: str, by: str = "", **of: Callable[[Any], Values]) -> Figure:
    return Figure(name, about, of, by)


FIGURES = (
    _figure("process_up", "whether the process runs", process=lambda p: p.pid is not None),
    _figure(
        "process_failed",
        "whether the process failed and is not started again",
        process=lambda p: p.state is ProcessState.FAILED,
    ),
    _figure(
        "run_seconds",
        "seconds of the last run by step",
        "step",
        stream=lambda s: s.reported.last_batch.steps if s.reported.last_batch else None,
    ),
    _figure(
        "run_rows",
        "records of the last run",
        stream=lambda s: s.reported.last_batch.rows if s.reported.last_batch else None,
    ),
    _figure("rate_rows", "rows per second of the last batch and run", "step", stream=lambda s: s.rates),
    _figure("rows", "rows by table; of the topic, offsets", "table", stream=lambda s: s.rows, derived=lambda d: d.rows),
    _figure("rejected_records", "rejected records by rule", "rule", stream=lambda s: s.rejected),
    _figure("warned_records", "accepted records that broke a rule which only warns", "rule", stream=lambda s: s.warned),
    _figure("rejected_share", f"share of rejected records in the last {RECENT_RUNS} runs, 0 to 1", recent=lambda r: r),
    _figure("lag_records", "offsets in Kafka that are not published", stream=lambda s: s.lag.offsets),
    _figure(
        "lag_seconds",
        "age of the oldest record that is not published",
        stream=lambda s: s.lag.seconds,
        derived=lambda d: d.seconds,
    ),
    _figure("stalled_seconds", "for how long a running driver has made no progress", stalled=lambda seconds: seconds),
    _figure("published_batch", "the last published batch", published=lambda p: p.batch, derived=lambda d: d.run),
    _figure("freshness_seconds", "seconds since the last publication", fresh=lambda seconds: seconds),
    _figure(
        "watermark_timestamp_seconds",
        "event time up to which records count as complete",
        watermark=lambda w: w.watermark.timestamp() if w.watermark else None,
    ),
    _figure(
        "watermark_stuck_seconds",
        "for how long batches were published while this partition held the watermark",
        held=lambda seconds: seconds,
    ),
    _figure(
        "partition_event_timestamp_seconds",
        "the greatest event time of a partition",
        partition=lambda p: p.latest.timestamp() if p.latest else None,
    ),
    _figure(
        "partition_idle",
        "whether a partition is idle, so that it holds no watermark back",
        partition=lambda p: p.state is PartitionState.IDLE,
    ),
    _figure("plans", "open plans by stage", plans=lambda count: count),
    _figure("audit_balanced", "whether the last audit was balanced", audit=lambda a: a.findings == 0),
    _figure("audit_timestamp_seconds", "when the last audit ended", audit=lambda a: a.at.timestamp()),
    _figure("table_bytes", "bytes of the current files of a published table", table=lambda t: t.size),
    _figure("table_files", "current files of a published table", table=lambda t: t.files),
    _figure("table_version", "the published version of a table", table=lambda t: t.table.version),
    _figure("disk_free_bytes", "free bytes of the state folder's disk", disk=lambda use: use.free),
    _figure("disk_free_share", "free share of the state folder's disk, 0 to 1", disk=lambda use: use.free / use.total),
    _figure(
        "derived_batches_behind",
        "published batches of a source that a derived dataset has not used",
        "source",
        sources=lambda d: d.behind,
    ),
    _figure("unknown_figures", "figures that could not be read", notes=len),
    Figure("process_restarts", "restarts after failures", {"process": lambda p: p.restarts}, is_counter=True),
)
"""An entry for each metric, in the order of a scrape."""


@dataclass(eq=False)
class HeadraceCollector(Collector):
    """Collects the figures of one state folder at each scrape, one scrape at a time."""

    settings: Settings
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    notes: list[str] = field(default_factory=list)
    """Why figures of the last scrape are unknown."""

    def __post_init__(self) -> None:
        self.ledger = open_reader(self.settings)
        self.moving, self.lock = MovingFigures(self.ledger), threading.Lock()

    def describe(self) -> list[Metric]:
        """Return nothing: registering the collector must not collect."""
        return []

    def collect(self) -> list[Metric]:
        with self.lock:
            scrape = _Scrape(self.settings, self.moving, self.clock())
            families = scrape.families()
            self.notes = scrape.notes
        return families


class _Scrape:
    """The subjects of one scrape, of which the figures are."""

    def __init__(self, settings: Settings, moving: MovingFigures, now: datetime) -> None:
        self.settings, self.moving, self.now = settings, moving, now
        self.found: list[tuple[str, Any, Labels]] = []
        self.notes: list[str] = []

    def families(self) -> list[Metric]:
        progress = observe_progress(self.settings, self.moving.ledger)
        self.notes += progress.notes
        for process in progress.processes:
            self._add("process", process, process=process.name)
        for dataset in progress.datasets:
            self._known(self._stream, dataset)
        self._known(self._derived, progress)
        self._known(self._tables)
        self._known(self._plans)
        if self.settings.state.is_dir():
            self._add("disk", shutil.disk_usage(self.settings.state))
        self._add("notes", self.notes)
        return [figure.family(self.found) for figure in FIGURES]

    def _known(self, question: Callable[..., None], *of: Any) -> None:
        """Ask for subjects; the error of one source becomes a note."""
        try:
            question(*of)
        except HeadraceError as error:
            self.notes.append(error.what)

    def _add(self, kind: str, subject: Any, **labels: str | None) -> None:
        if subject is not None:
            self.found.append((kind, subject, labels))

    def _stream(self, each: DatasetProgress) -> None:
        labels = {"dataset": each.dataset, "release": each.release}
        self._add("stream", each, **labels)
        if each.process.pid is None:
            # A driver that was ended does not hang; without a sample its alert would never resolve.
            self._add("stalled", 0.0, **labels)
        elif each.reported.progress_at is not None:
            self._add("stalled", self._seconds_since(each.reported.progress_at), **labels)
        publication = find_publication(self.settings, each.dataset)
        if publication is not None:
            self._published(publication, each.watermark)

    def _seconds_since(self, at: datetime) -> float:
        return max(0.0, (self.now - at).total_seconds())

    def _published(self, publication: Publication, watermark: WatermarkStatus | None) -> None:
        dataset, release = publication.dataset, publication.release
        labels = {"dataset": dataset, "release": release}
        self._add("published", publication, **labels)
        self._add("fresh", self._seconds_since(publication.published_at), **labels)
        self._add("audit", last_outcome(self.settings, dataset), dataset=dataset)
        self._known(self._recent_runs, publication, labels)
        if watermark is not None and watermark.holder is not None:
            self._add("watermark", watermark, **labels)
            held = self.moving.held_seconds(publication, watermark, self.now)
            for each in watermark.partitions:
                one = {**labels, "partition": str(each.partition)}
                # Of all partitions: without a sample the alert of one that holds it no longer would never resolve.
                self._add("held", held if each.holds else 0.0, **one)
                self._add("partition", each, **one)

    def _recent_runs(self, publication: Publication, labels: Labels) -> None:
        runs = self.moving.ledger.runs_before(publication.dataset, publication.release, None, RECENT_RUNS)
        if came := sum(run.rows_in for run in runs):
            self._add("recent", sum(run.rejected for run in runs) / came, **labels)

    def _derived(self, progress: Progress) -> None:
        for each in progress.derived:
            self._add("audit", last_outcome(self.settings, each.dataset), dataset=each.dataset)
            self._add("derived", each, dataset=each.dataset, release=each.release)
            self._add("sources", each, dataset=each.dataset)

    def _tables(self) -> None:
        for found in self.moving.table_sizes(iter(published_tables(self.settings).values()), self.now):
            table = found.table
            self._add("table", found, dataset=table.dataset, release=table.release, table=table.name)

    def _plans(self) -> None:
        counts = Counter((record.plan.dataset, str(record.stage)) for record in open_plans(self.settings))
        for (dataset, stage), count in counts.items():
            self._add("plans", count, dataset=dataset, stage=stage)


def metrics_application(registry: CollectorRegistry) -> Any:
    """Return the application that answers each request with all figures.

    Requests that come while the figures are read share the result: clients that leave would queue a scrape each.
    """
    running = dict[str, Task[bytes]]()

    async def answer(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        accepted = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
        encode, kind = choose_encoder(accepted)
        if kind not in running:
            running[kind] = create_task(to_thread(encode, registry))
            running[kind].add_done_callback(lambda _: running.pop(kind))
        body = await shield(running[kind])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": body})

    return answer


def serve(settings: Settings, host: str, port: int) -> None:
    """Answer scrapes until SIGTERM or Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # The server stops at it, then sends it to this process once more.
        signal.signal(number, lambda *_: None)
    registry = CollectorRegistry()
    registry.register(HeadraceCollector(settings))
    serve_application(metrics_application(registry), host, port)


def main(arguments: Sequence[str]) -> int:
    """Serve until the process is ended; return the exit code."""
    host, port = arguments
    serve(load_settings(), host, int(port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
