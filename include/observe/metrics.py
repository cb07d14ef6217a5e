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
from collections.abc import Callable, Iterator, Sequence
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
from include.plans.plan_lookup import open_plans
from include.read.publication import Publication, PublishedTable, find_publication, published_tables
from include.read.published_tables import TableStats, table_stats
from include.state.driver_status import stream_status
from include.state.process_states import ProcessState, ProcessStatus

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
        """Note the watermark as of a published batch."""
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
HELP = {
    "process_up": "whether the process runs",
    "process_failed": "whether the process failed and is not started again",
    "run_seconds": "seconds of the last run by step",
    "run_rows": "records of the last run",
    "rate_rows": "rows per second of the last batch and run",
    "rows": "rows by table; of the topic, offsets",
    "rejected_records": "rejected records by rule",
    "warned_records": "accepted records that broke a rule which only warns",
    "rejected_share": f"share of rejected records in the last {RECENT_RUNS} runs, 0 to 1",
    "lag_records": "offsets in Kafka that are not published",
    "lag_seconds": "age of the oldest record that is not published",
    "stalled_seconds": "for how long a running driver has made no progress",
    "published_batch": "the last published batch",
    "freshness_seconds": "seconds since the last publication",
    "watermark_timestamp_seconds": "event time up to which records count as complete",
    "watermark_stuck_seconds": "for how long batches were published while this partition held the watermark",
    "partition_event_timestamp_seconds": "the greatest event time of a partition",
    "partition_idle": "whether a partition is idle, so that it holds no watermark back",
    "plans": "open plans by stage",
    "audit_balanced": "whether the last audit was balanced",
    "audit_timestamp_seconds": "when the last audit ended",
    "table_bytes": "bytes of the current files of a published table",
    "table_files": "current files of a published table",
    "table_version": "the published version of a table",
    "disk_free_bytes": "free bytes of the state folder's disk",
    "disk_free_share": "free share of the state folder's disk, 0 to 1",
    "derived_batches_behind": "published batches of a source that a derived dataset has not used",
    "unknown_figures": "figures that could not be read",
}


@dataclass(eq=False)
class HeadraceCollector(Collector):
    """Collects the figures of one state folder at each scrape."""

    settings: Settings
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    notes: list[str] = field(default_factory=list)
    """Why figures of the last scrape are unknown."""

    def __post_init__(self) -> None:
        self.ledger = open_reader(self.settings)
        self.moving = MovingFigures(self.ledger)

    def describe(self) -> list[Metric]:
        """Return nothing: registering the collector must not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family with its current figures."""
        scrape = _Scrape(self.settings, self.moving, self.clock())
        yield from scrape.families()
        self.notes = scrape.notes


class _Scrape:
    """The samples of one scrape, by metric."""

    def __init__(self, settings: Settings, moving: MovingFigures, now: datetime) -> None:
        self.settings, self.moving, self.now = settings, moving, now
        self.found: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in HELP}
        self.restarts: list[tuple[str, int]] = []
        self.notes: list[str] = []

    def families(self) -> Iterator[Metric]:
        progress = observe_progress(self.settings, self.moving.ledger)
        self.notes += progress.notes
        for process in progress.processes:
            self._process(process)
        for dataset in progress.datasets:
            self._known(self._dataset, dataset)
        self._known(self._derived, progress)
        self._known(self._sizes)
        self._known(self._plans)
        self._disk()
        self._add("unknown_figures", len(self.notes))
        for name, samples in self.found.items():
            yield _family(f"headrace_{name}", HELP[name], samples)
        restarts = CounterMetricFamily("headrace_process_restarts", "restarts after failures", labels=["process"])
        for process_name, count in self.restarts:
            restarts.add_metric([process_name], count)
        yield restarts

    def _known(self, question: Callable[..., None], *of: Any) -> None:
        """Ask for figures; the error of one source becomes a note."""
        try:
            question(*of)
        except HeadraceError as error:
            self.notes.append(error.what)

    def _add(self, name: str, value: float | None, **labels: str | None) -> None:
        if value is not None:
            self.found[name].append(({key: label or "" for key, label in labels.items()}, float(value)))

    def _process(self, process: ProcessStatus) -> None:
        self._add("process_up", process.pid is not None, process=process.name)
        self._add("process_failed", process.state is ProcessState.FAILED, process=process.name)
        self.restarts.append((process.name, process.restarts))

    def _dataset(self, each: DatasetProgress) -> None:
        labels = {"dataset": each.dataset, "release": each.release}
        for step, seconds in each.last_batch.steps.items() if each.last_batch else ():
            self._add("run_seconds", seconds, **labels, step=step)
        self._add("run_rows", each.last_batch.rows if each.last_batch else None, **labels)
        for step, rate in each.rates.items():
            self._add("rate_rows", rate, **labels, step=step)
        for table, rows in each.rows.items():
            self._add("rows", rows, **labels, table=table)
        for rule, count in each.rejected.items():
            self._add("rejected_records", count, **labels, rule=rule)
        for rule, count in each.warned.items():
            self._add("warned_records", count, **labels, rule=rule)
        self._add("lag_records", each.lag.offsets, **labels)
        self._add("lag_seconds", each.lag.seconds, **labels)
        reported = stream_status(self.settings, each.dataset)
        if each.process.pid is None:
            # A driver that was ended does not hang; without a sample its alert would never resolve.
            self._add("stalled_seconds", 0.0, **labels)
        elif reported.progress_at is not None:
            self._add("stalled_seconds", max(0.0, (self.now - reported.progress_at).total_seconds()), **labels)
        publication = find_publication(self.settings, each.dataset)
        if publication is not None:
            self._published(publication, each.watermark)

    def _published(self, publication: Publication, watermark: WatermarkStatus | None) -> None:
        dataset, release, batch = publication.dataset, publication.release, publication.batch
        labels = {"dataset": dataset, "release": release}
        self._add("published_batch", batch, **labels)
        self._add("freshness_seconds", max(0.0, (self.now - publication.published_at).total_seconds()), **labels)
        self._known(self._audit, dataset)
        self._known(self._recent_runs, publication, labels)
        if watermark is not None and watermark.holder is not None:
            self._watermark(publication, watermark, labels)

    def _recent_runs(self, publication: Publication, labels: dict[str, str]) -> None:
        runs = self.moving.ledger.runs_before(publication.dataset, publication.release, None, RECENT_RUNS)
        if came := sum(run.rows_in for run in runs):
            self._add("rejected_share", sum(run.rejected for run in runs) / came, **labels)

    def _watermark(self, publication: Publication, found: WatermarkStatus, labels: dict[str, str]) -> None:
        if found.watermark is not None:
            self._add("watermark_timestamp_seconds", found.watermark.timestamp(), **labels)
        held = self.moving.held_seconds(publication, found, self.now)
        for each in found.partitions:
            one = {**labels, "partition": str(each.partition)}
            # Of all partitions: without a sample the alert of one that holds it no longer would never resolve.
            self._add("watermark_stuck_seconds", held if each.holds else 0.0, **one)
            if each.latest is not None:
                self._add("partition_event_timestamp_seconds", each.latest.timestamp(), **one)
            self._add("partition_idle", each.state is PartitionState.IDLE, **one)

    def _audit(self, dataset: str) -> None:
        outcome = last_outcome(self.settings, dataset)
        if outcome is not None:
            self._add("audit_balanced", outcome.findings == 0, dataset=dataset)
            self._add("audit_timestamp_seconds", outcome.at.timestamp(), dataset=dataset)

    def _derived(self, progress: Progress) -> None:
        for each in progress.derived:
            labels = {"dataset": each.dataset, "release": each.release}
            self._known(self._audit, each.dataset)
            self._add("lag_seconds", each.seconds, **labels)
            self._add("published_batch", each.run, **labels)
            for table, rows in each.rows.items():
                self._add("rows", rows, **labels, table=table)
            for source, behind in each.behind.items():
                self._add("derived_batches_behind", behind, dataset=each.dataset, source=source)

    def _sizes(self) -> None:
        for found in self.moving.table_sizes(iter(published_tables(self.settings).values()), self.now):
            labels = {"dataset": found.table.dataset, "release": found.table.release, "table": found.table.name}
            self._add("table_bytes", found.size, **labels)
            self._add("table_files", found.files, **labels)
            self._add("table_version", found.table.version, **labels)

    def _plans(self) -> None:
        counts = Counter((record.plan.dataset, str(record.stage)) for record in open_plans(self.settings))
        for (dataset, stage), count in counts.items():
            self._add("plans", count, dataset=dataset, stage=stage)

    def _disk(self) -> None:
        if self.settings.state.is_dir():
            use = shutil.disk_usage(self.settings.state)
            self._add("disk_free_bytes", use.free)
            self._add("disk_free_share", use.free / use.total)


def _family(name: str, text: str, samples: list[tuple[dict[str, str], float]]) -> Metric:
    names = list(samples[0][0]) if samples else []
    family = GaugeMetricFamily(name, text, labels=names)
    for labels, value in samples:
        family.add_metric([labels[each] for each in names], value)
    return family


class OneAtATime(HeadraceCollector):
    """A collector for a server of several threads: the figures that it keeps belong to one observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lock = threading.Lock()

    def collect(self) -> list[Metric]:  # type: ignore[override]
        """Return every metric family with its current figures."""
        with self.lock:
            return list(super().collect())


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
    registry.register(OneAtATime(settings))
    serve_application(metrics_application(registry), host, port)


def main(arguments: Sequence[str]) -> int:
    """Serve until the process is ended; return the exit code."""
    host, port = arguments
    serve(load_settings(), host, int(port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
