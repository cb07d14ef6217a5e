"""Kafka as the source of runs: the ingest query and its restarts, and the ledger of what is committed.

Bronze continues while a run fails, and runs while ingest is down. Commits enter the ledger in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar

from pyspark.sql.streaming.query import StreamingQuery

from include.declare.dataset import Dataset, snapshot_dataset
from include.declare.reference_tables import create_reference_tables
from include.ground.delta_log import has_commit
from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.kafka import KafkaRefused, TopicMissing, ensure_topic, log_end_offsets, topic_concerns
from include.ground.paths import checkpoint_path
from include.ground.settings import Settings
from include.observe.ledger_schema import LedgerMismatch
from include.observe.ledger_writer import LedgerWriter, open_writer, project_dataset, rebuild
from include.read.publication import batches_behind, find_publication
from include.state.lease import Lease
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.release import BronzeEnd, claim_tables, open_bronze
from spark_jobs.stream.active_releases import ActiveReleases, open_active_releases
from spark_jobs.stream.back_off import BackOff
from spark_jobs.stream.driver_loop import Source
from spark_jobs.stream.ingest import DRAINED, Ingest
from spark_jobs.stream.loading import LOAD_SECONDS, Loads
from spark_jobs.stream.pacing import BatchLimitChanged, BronzePacing, DriverProcess
from spark_jobs.stream.preflight import BronzeHead, bronze_head, refuse_changed_topic, refuse_lost_bronze
from spark_jobs.stream.progress import StatusReporter, refresh_progress
from spark_jobs.stream.recovery import current_dataset, republish, roll_back_tables, usable_generation
from spark_jobs.stream.refine import RunReport
from spark_jobs.stream.upkeep import AutomaticExpiry, AutomaticHistory, QuietCommits, is_awaited
from spark_jobs.tables.checkpoint import Generation, ensure_generation
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.log_lines import error_reason, log_line

INTERVAL = 1.0
"""Least seconds between two calls: at two runs a second each call would enter one, at 19 ms of CPU."""


@dataclass
class LedgerProjection:
    """The projection of one dataset; at most one call runs and one waits."""

    ledger: LedgerWriter
    settings: Settings
    dataset: str
    interval: float = INTERVAL
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "ledger"))
    _last: Future[None] | None = None
    _is_waiting: bool = False
    """Whether the last call has yet to read what was committed."""
    _not_before: float = 0.0
    _is_finishing: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Enter new commits in the thread; a waiting call will include them. Raises what an earlier one raised."""
        if self._last is not None and self._last.done():
            self._last.result()
        if not self._is_waiting:
            self._is_waiting = True
            self._last = self._thread.submit(self._project)

    def finish(self) -> None:
        """Return when the commits up to the last `begin` are entered, or the ledger did not answer."""
        self._is_finishing.set()
        try:
            if self._last is not None:
                self._last.result()
        finally:
            self._is_finishing.clear()

    def _project(self) -> None:
        """Enter the commits; if the ledger does not answer, a later call catches up."""
        self._is_finishing.wait(self._not_before - time.monotonic())
        self._is_waiting = False
        try:
            project_dataset(self.ledger, self.settings, self.dataset)
        except HeadraceError as error:
            log_line(f"ledger not updated, the next batch tries again: {error.what}")
        except Exception as error:
            # `begin` may replace this future before its error is read.
            log_line(f"ledger not updated: {error_reason(error)}", error)
            raise
        finally:
            self._not_before = time.monotonic() + self.interval


MAX_FAILURES = 6
"""Failures in a row after the same batch."""
DRAIN_SECONDS = 50.0
REST_CHECK = 1.0


@dataclass
class IngestSupervisor:
    """The ingest query, and the pause before it is restarted."""

    ingest: Ingest
    reporter: StatusReporter
    query: StreamingQuery = field(init=False)
    has_ended: bool = False
    back_off: BackOff = field(default_factory=BackOff)
    failures: int = 0
    failed_after: int = -2
    """Bronze batch that `failures` counts for."""

    def start(self, bootstrap: str) -> None:
        self.query = self.ingest.start(bootstrap)
        self.has_ended = False

    def restart_ended(self) -> None:
        """Start an ended query again, once its pause is over, bronze can be read, and the broker has its topic.

        Raises Terminal (`ingest-failed`, or the query's own), TopicReplaced, TablesDisagree, or RecordsReplaced. Refine
        continues meanwhile.
        """
        if not self.has_ended and not self.query.isActive:
            self._note_end()
        if self.has_ended and not self.back_off.is_pausing and self._can_start():
            self.start(bootstrap_servers(self.ingest.settings))
            self.reporter.report("running")

    def drain(self) -> None:
        """End the query at a batch boundary: a running batch is committed, a planned one stays planned."""
        if self.has_ended:
            self.ingest.close()
            return
        self.ingest.mute()
        end = time.monotonic() + DRAIN_SECONDS
        while self.query.isActive and time.monotonic() < end:
            status = self.query.status
            if not status["isTriggerActive"] and not status["isDataAvailable"]:
                break
            time.sleep(0.05)
        self.query.stop()
        self.ingest.close()
        error = self.query.exception()
        # Without a broker the last batch stays planned, like one that the drain interrupts.
        expected = isinstance(self.ingest.failure, (Transient, BatchLimitChanged))
        if error is not None and DRAINED not in str(error) and not expected:
            raise error

    def _note_end(self) -> None:
        self.has_ended, batch = True, self.ingest.last_batch
        # The pause, or the broker's outage, may be long.
        self.ingest.close()
        error = self.ingest.failure or self.query.exception()
        if isinstance(error, Terminal) and not isinstance(error, TopicMissing):
            raise error
        if isinstance(error, BatchLimitChanged):
            log_line(f"ingest starts again after bronze batch {batch}: {error}")
            return
        reason = error_reason(error) if error else "the query ended without an error"
        if self.failed_after != batch:
            self._forget_failures()
            self.failed_after = batch
        self.failures += 1
        if self.failures > MAX_FAILURES:
            name, reading = self.ingest.dataset.name, sorted(self.ingest.reading.items())
            ranges = ", ".join(f"partition {p} offsets [{start}, {end})" for p, (start, end) in reading)
            raise Terminal(
                f"{name}: ingest failed {self.failures} times in a row after bronze batch {batch}: {reason}; the driver"
                f" ends, what is published stays readable, and the batch stays planned ({ranges or 'none was begun'})",
                f"headrace doctor, then headrace up {name}",
                code="ingest-failed",
                dataset=name,
                batch=batch,
            )
        pause = self.back_off.lengthen()
        log_line(f"ingest stopped after bronze batch {batch}: {reason}; restart in {pause:.0f} s, refine continues")
        self.reporter.report("waiting", f"ingest restarts in {pause:.0f} s: {reason}")

    def _forget_failures(self) -> None:
        self.failures = 0
        self.back_off.end()

    def _can_start(self) -> bool:
        """Wait for a store, broker or topic that is away, without limit; none counts as a failure of ingest.

        A broker or topic may return as another topic, or without its newest records.
        """
        ingest = self.ingest
        try:
            # A store that does not answer raises StoreUnavailable.
            has_commit(ingest.bronze.spec.path, ingest.bronze.version)
            bootstrap = bootstrap_servers(ingest.settings)
            log_end_offsets(bootstrap, ingest.generation.topic, timeout=2.0)
            refuse_changed_topic(ingest.dataset, ingest.bronze, ingest.generation, bootstrap)
            return True
        except (Transient, TopicMissing, KafkaRefused) as error:
            self._forget_failures()
            self.back_off.lengthen()
            self.reporter.report("waiting", error.what)
            return False


@dataclass
class KafkaSource(Source):
    """Kafka's offsets: ingest commits them to bronze in a thread of its own, and runs refine its batches."""

    active: ActiveReleases
    supervisor: IngestSupervisor
    projection: LedgerProjection
    expiry: AutomaticExpiry = field(default_factory=AutomaticExpiry)
    history: AutomaticHistory = field(default_factory=AutomaticHistory)
    quiet: QuietCommits = field(default_factory=QuietCommits)
    pacing: BronzePacing = field(default_factory=BronzePacing)
    rest_check: float = 0.0
    """When, by the monotonic clock, the driver looks next whether it may sleep."""
    poll_seconds: ClassVar[float] = 0.02

    def __post_init__(self) -> None:
        self.supervisor.ingest.pacing = self.pacing
        self.active.loads = Loads(
            self.active.settings, self.active.bronze, self.supervisor.ingest.turn, seconds=LOAD_SECONDS
        )

    def keep_reading(self) -> None:
        self.supervisor.restart_ended()

    def run_next(self) -> RunReport | None:
        run = None
        try:
            last, ahead = self.supervisor.ingest.last_batch, self.active.published.validated
            self.pacing.begin_run(ahead.batches[1] if ahead else last, is_validated=ahead is not None)
            run = self.active.published.refine_next(
                self.active.settings, last, publishing=True, bronze_end=self._bronze_end, validations=self.pacing
            )
        finally:
            self.pacing.end_run(has_run=run is not None)
        return run

    def _bronze_end(self) -> BronzeEnd:
        """Return the end of bronze; a drain has no batch there, so that no further run begins."""
        ingest = self.supervisor.ingest
        if ingest.stop.is_set():
            return BronzeEnd(-1)
        # In this order: ingest knows a batch's idle partitions before it says that it is the last one.
        return BronzeEnd(ingest.last_batch, ingest.has_backlog, ingest.idle.woken)

    def refresh(self) -> bool:
        return self.active.published.refresh(self.active.settings, publishing=True)

    def step_between_runs(self, *, is_halted: bool) -> bool:
        """Advance a shadow release, or commit a batch that says that partitions are idle, if a table waits for it."""
        if self.active.advance_shadow():
            self.projection.begin()
            return True
        return not is_halted and self.quiet.step(self.supervisor.ingest, self.active.opened())

    def keep_up(self) -> bool:
        """Expire batches, or move commits into the history."""
        settings, releases = self.active.settings, self.active.opened()
        return self.expiry.step(settings, releases) or self.history.step(settings, releases)

    def rests_at(self) -> Mapping[int, int]:
        """Return where the topic ends once it has been quiet for `sleep_after` and no table waits for anything."""
        ingest, after = self.supervisor.ingest, self.active.published.release.dataset.pipeline.sleep_after
        if after is None or self.supervisor.has_ended or time.monotonic() < self.rest_check:
            return {}
        self.rest_check = time.monotonic() + REST_CHECK
        ends = ingest.quiet.resting(after)
        return ends if ends and not self._is_awaited() else {}

    def _is_awaited(self) -> bool:
        """Whether a release lacks a batch, or a table waits for its refresh, or for what idle partitions let pass."""
        ingest, releases = self.supervisor.ingest, self.active.opened()
        if any(each.refined_batch != ingest.last_batch for each in releases):
            return True
        publication = find_publication(self.active.settings, self.active.dataset)
        idle = ingest.quiet.quiet() | ingest.idle.partitions
        return bool(publication is not None and batches_behind(publication)) or any(
            is_awaited(each, idle, ingest.ingested) for each in releases
        )

    def note_commits(self) -> None:
        self.projection.begin()

    def drain(self) -> None:
        self.supervisor.drain()

    def close(self) -> None:
        try:
            self.projection.finish()
        finally:
            self.active.close()


def open_kafka_source(
    settings: Settings, name: str, lease: Lease, reporter: StatusReporter, process: DriverProcess
) -> tuple[KafkaSource, Lease]:
    """Preflight (step 2), then start ingest and open the releases' tables; return the source, and the lease as claimed.

    Bronze is independent of releases, so the first batch is read while they are opened, which takes seconds.
    """
    status = reporter.status
    dataset = current_dataset(settings, name, snapshot_dataset)
    status.release = dataset.release
    bootstrap = bootstrap_servers(settings)
    topic = status.topic = dataset.pipeline.topic
    ensure_topic(bootstrap, topic, dataset.pipeline.partitions, may_create=settings.kafka_create_topics)
    for concern in topic_concerns(bootstrap, topic) if settings.kafka_bootstrap else ():
        log_line(f"topic {topic}: {concern}")
    bronze, head, generation, recovered, lease = preflight(settings, dataset, bootstrap, lease)
    lease = lease.with_minimum_epoch(head.epoch + 1 if head else 1)
    status.epoch = lease.epoch
    ledger, mismatch = open_writer(settings), None
    try:
        project_dataset(ledger, settings, name)
    except Transient as error:
        log_line(f"ledger not updated, the first batch tries again: {error.what}")
    except LedgerMismatch as error:
        mismatch = error
    pass_step(Step.PREFLIGHT_PASSED)
    spark = process.opened()
    ingest = Ingest(spark, settings, dataset, bronze, generation, lease.epoch, process.stop, process.tempo)
    if head is not None:
        ingest.continue_after(head)
    supervisor, found_version = IngestSupervisor(ingest, reporter), bronze.version
    # The first batch's commit names the versions of the reference tables.
    create_reference_tables(settings, dataset)
    supervisor.start(bootstrap)
    with drained_on_error(supervisor) as failed:
        active = open_active_releases(spark, settings, dataset, bronze)
        failed.callback(active.close)
        status.shadows = active.advanced_names
        rolled_back = republish(settings, active.published.release, found_version)
        if mismatch is not None:
            # A loss of commits that is explained: the ledger has them still.
            if not (recovered or rolled_back):
                raise mismatch
            rebuild(settings)
            log_line("the ledger was rebuilt from the tables")
        lost = f"never read, accepted by headrace repair: {generation.lost_ranges}" if generation.lost else None
        status.event = "; ".join(filter(None, [recovered, rolled_back, lost])) or None
        if status.event:
            log_line(f"{name}: {status.event}")
        reporter.refresh = lambda: refresh_progress(reporter, ingest, active)
        reporter.ingest_idle = lambda: time.monotonic() - ingest.progress
        return KafkaSource(active, supervisor, LedgerProjection(ledger, settings, name)), lease


@contextmanager
def drained_on_error(supervisor: IngestSupervisor) -> Iterator[ExitStack]:
    """End ingest at a batch boundary when the driver cannot continue, then close the stack; committed batches stay."""
    with ExitStack() as failed:
        try:
            yield failed
        except BaseException:
            supervisor.ingest.stop.set()
            try:
                supervisor.drain()
            except Exception as error:  # noqa: BLE001  (what ended the driver is more than how ingest ended)
                log_line(f"ingest ended with an error meanwhile: {error_reason(error)}", error)
            raise
        failed.pop_all()


def preflight(
    settings: Settings, dataset: Dataset, bootstrap: str, lease: Lease
) -> tuple[Table, BronzeHead | None, Generation, str | None, Lease]:
    """Open bronze, validate checkpoint, tables and topic; return bronze, its last batch, and the generation to use.

    The next value describes what was recovered after a power cut; None for nothing. The last one is the lease with
    which bronze was claimed.
    """
    refuse_lost_bronze(settings, dataset.name)
    rolled_back = roll_back_tables(settings, dataset, bootstrap, datetime.now(UTC))
    bronze = open_bronze(settings, dataset.name)
    # Where bronze ends is read after the claim: a commit of an earlier owner may come just before it.
    lease = claim_tables([bronze], lease)
    head = bronze_head(bronze)
    generation, replaced = usable_generation(settings, dataset, bronze, head, bootstrap)
    ensure_generation(checkpoint_path(settings, dataset.name), generation)
    return bronze, head, generation, "; ".join(filter(None, [rolled_back, replaced])) or None, lease
