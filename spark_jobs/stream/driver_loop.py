"""The driver's main loop: keep ingest running, execute owner requests, refine, advance shadow releases, drain.

One run or request at a time; bronze continues while refine fails, and refine while ingest is down. Commits enter the
ledger in a thread. After a crash `open_active_releases` and the first run complete what was begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql.streaming.query import StreamingQuery

from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.kafka import KafkaRefused, TopicMissing, log_end_offsets
from include.ground.settings import Settings
from include.observe.ledger_writer import LedgerWriter, project_dataset
from include.state.lease import Lease, LeaseLost
from include.state.owner_requests import OwnerRequest
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.release import BronzeEnd, refined_batch
from spark_jobs.stream.active_releases import ActiveReleases
from spark_jobs.stream.back_off import BackOff, attempt
from spark_jobs.stream.compaction import compactable_tables
from spark_jobs.stream.expiry import AutomaticDeletion, retained_tables
from spark_jobs.stream.ingest import DRAINED, Ingest
from spark_jobs.stream.pacing import BatchLimitChanged, BronzePacing
from spark_jobs.stream.preflight import refuse_changed_topic
from spark_jobs.stream.progress import StatusReporter, record_run
from spark_jobs.stream.refine import RunReport
from spark_jobs.stream.requests import execute, receive_request, send_response
from spark_jobs.stream.upkeep import (
    AutomaticCompaction,
    AutomaticExpiry,
    AutomaticHistory,
    AutomaticRemoval,
    QuietCommits,
    declared_compaction,
)
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


class IngestFailed(Terminal):
    """Ingest failed `failures` times in a row after bronze batch `batch`; `reason` is the last failure.

    `reading`: the half-open ranges of offsets, by partition, of the batch that failed.
    """

    def __init__(
        self, dataset: str, failures: int, batch: int, reason: str, reading: Mapping[int, tuple[int, int]]
    ) -> None:
        ranges = ", ".join(f"partition {p} offsets [{start}, {end})" for p, (start, end) in sorted(reading.items()))
        super().__init__(
            f"{dataset}: ingest failed {failures} times in a row after bronze batch {batch}: {reason}; the driver ends,"
            f" what is published stays readable, and the batch stays planned ({ranges or 'none was begun'})",
            f"headrace doctor, then headrace up {dataset}",
        )
        self.dataset, self.failures, self.batch, self.reason = dataset, failures, batch, reason


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
        """Start the query."""
        self.query = self.ingest.start(bootstrap)
        self.has_ended = False

    def restart_ended(self) -> None:
        """Start an ended query again, once its pause is over and the broker answers with the topic that bronze has.

        Raises IngestFailed, the query's own Terminal error, TopicReplaced, TablesDisagree, or RecordsReplaced. Refine
        continues meanwhile.
        """
        if not self.has_ended and not self.query.isActive:
            self._note_end()
        if self.has_ended and not self.back_off.is_pausing and self._topic_answers():
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
            raise IngestFailed(self.ingest.dataset.name, self.failures, batch, reason, self.ingest.reading)
        pause = self.back_off.lengthen()
        log_line(f"ingest stopped after bronze batch {batch}: {reason}; restart in {pause:.0f} s, refine continues")
        self.reporter.report("waiting", f"ingest restarts in {pause:.0f} s: {reason}")

    def _forget_failures(self) -> None:
        self.failures = 0
        self.back_off.end()

    def _topic_answers(self) -> bool:
        """Wait for an unreachable broker or a missing topic without limit; neither counts as a failure of ingest.

        Either may return with another topic, or without its newest records.
        """
        ingest = self.ingest
        try:
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
class DriverLoop:
    """The running driver of a dataset; `back_off` is that of a failed refine."""

    settings: Settings
    dataset: str
    lease: Lease
    active: ActiveReleases
    supervisor: IngestSupervisor
    ledger: LedgerWriter
    reporter: StatusReporter
    stop: threading.Event
    compaction: AutomaticCompaction = field(init=False)
    projection: LedgerProjection = field(init=False)
    deletion: AutomaticDeletion = field(default_factory=AutomaticDeletion)
    removal: AutomaticRemoval = field(default_factory=AutomaticRemoval)
    expiry: AutomaticExpiry = field(default_factory=AutomaticExpiry)
    history: AutomaticHistory = field(default_factory=AutomaticHistory)
    quiet: QuietCommits = field(default_factory=QuietCommits)
    pacing: BronzePacing = field(default_factory=BronzePacing)
    back_off: BackOff = field(default_factory=BackOff)

    def __post_init__(self) -> None:
        self.supervisor.ingest.pacing = self.pacing
        self.compaction = declared_compaction(self.settings)
        self.projection = LedgerProjection(self.ledger, self.settings, self.dataset)

    def run(self) -> None:
        """Run until `stop` is set, then drain. Raises LeaseLost, IngestFailed and what NOT_RETRIED names."""
        try:
            self._run()
        except BaseException:
            # The process would enter the last commits when it exits, after it has reported its end.
            with suppress(Exception):
                self.projection.finish()
            raise
        self.projection.finish()

    def _run(self) -> None:
        self.reporter.report("running")
        while not self.stop.is_set():
            self.reporter.note_progress()
            if not self.lease.is_held():
                raise LeaseLost(self.dataset, self.lease.location)
            self.supervisor.restart_ended()
            self._execute_request()
            worked = self._refine_next() or self._refresh() or self._advance_shadow() or self._commit_quiet()
            if worked:
                self.compaction.note_run()
            if not self._compact() and not self._clean_up() and not worked:
                self.stop.wait(0.02)
        self.reporter.report("draining")
        self.supervisor.drain()

    def _refine_next(self) -> bool:
        """Execute the published release's next run, if there is one; return whether there was work."""
        if self.back_off.is_pausing:
            return False
        run = attempt(self._run_of_published, self._halt)
        self.pacing.end_run(has_run=run is not None)
        if run is None:
            return False
        self._note_run(run)
        return True

    def _run_of_published(self) -> RunReport | None:
        """Execute the published release's next run; None when there is none."""
        # A patch that failed half way must be finished before any run.
        self.active.finish_patch()
        last, ahead = self.supervisor.ingest.last_batch, self.active.published.validated
        self.pacing.begin_run(ahead.batches[1] if ahead else last, is_validated=ahead is not None)
        return self.active.published.refine_next(
            self.settings, last, publishing=True, bronze_end=self._bronze_end, validations=self.pacing
        )

    def _bronze_end(self) -> BronzeEnd:
        """Return the end of bronze; a drain has no batch there, so that no further run begins."""
        ingest = self.supervisor.ingest
        if self.stop.is_set():
            return BronzeEnd(-1)
        # In this order: ingest knows a batch's idle partitions before it says that it is the last one.
        return BronzeEnd(ingest.last_batch, ingest.has_backlog, ingest.idle.woken)

    def _refresh(self) -> bool:
        """Refresh gold tables whose interval is over; return whether there was one."""
        if self.back_off.is_pausing or self.active.is_patching:
            return False
        refresh = partial(self.active.published.refresh, self.settings, publishing=True)
        if not attempt(refresh, self._halt):
            return False
        self._resume()
        self.projection.begin()
        return True

    def _advance_shadow(self) -> bool:
        worked = not self.active.is_patching and self.active.advance_shadow()
        if worked:
            self.projection.begin()
        return worked

    def _commit_quiet(self) -> bool:
        """Commit a batch that says that partitions are idle, if a table waits for it; return whether there is one."""
        if self.back_off.is_pausing or self.active.is_patching:
            return False
        return self.quiet.step(self.supervisor.ingest, [each.release for each in self.active.all_releases])

    def _compact(self) -> bool:
        """Compact one group of small files, if there is one; not while a patch must be finished first."""
        active = self.active
        releases = [each.release for each in active.all_releases]
        return not active.is_patching and self.compaction.step(compactable_tables(releases))

    def _clean_up(self) -> bool:
        """Expire batches, delete replaced files, data of ended plans, or commits that the history holds; return whether
        there is more.

        Not while a patch must be finished first.
        """
        if self.active.is_patching:
            return False
        releases = [each.release for each in self.active.all_releases]
        return (
            self.expiry.step(self.settings, releases)
            or self.deletion.step(lambda: retained_tables(self.settings, releases))
            or self.removal.step(self.settings, self.dataset)
            or self.history.step(self.settings, releases)
        )

    def _execute_request(self) -> None:
        """Execute the pending request, unless a patch must be finished first."""
        if self.active.is_patching:
            return
        request = receive_request(self.settings, self.dataset, lambda: refined_batch(self.active.published.release))
        if request is not None:
            self._respond(request)

    def _respond(self, request: OwnerRequest) -> None:
        before = self.active.published
        response = execute(self.active, request)
        send_response(self.settings, self.dataset, request, response)
        published, status = self.active.published, self.reporter.status
        if published is not before:
            log_line(f"plan {request.plan}: release {published.name} is published, {before.name} before")
            status.release = published.name
            self.back_off.end()
            self.reporter.report("running")
        status.shadows = [shadow.name for shadow in self.active.shadows]
        self.projection.begin()

    def _halt(self, error: Exception) -> None:
        pause = self.back_off.lengthen()
        batch = refined_batch(self.active.published.release)
        log_line(
            f"refine failed after batch {batch}: {error_reason(error)}; retry in {pause:.0f} s, ingest continues,"
            f" readers keep batch {batch}. Next: headrace status",
            error,
        )
        self.reporter.report("halted", error_reason(error))

    def _resume(self) -> None:
        """End the pauses after a failure."""
        if self.back_off.end():
            self.reporter.report("running")

    def _note_run(self, run: RunReport) -> None:
        self._resume()
        record_run(self.reporter.status, run)
        self.projection.begin()
