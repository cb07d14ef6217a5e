"""The driver's main loop: restart ingest, execute owner requests, refine, advance shadow releases, compact, drain.

Reads: bronze, owner requests. Writes: silver, rejected, gold, the publication, the ledger, the status.
Guarantee: one run or request at a time; bronze continues while refine fails, and refine while ingest is down.
After a crash: `open_active_releases` and the first run complete what was begun.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from include.ground.settings import Settings
from include.observe.ledger_writer import LedgerWriter
from include.state.lease import Lease
from include.state.lease_errors import LeaseLost
from include.state.owner_requests import OwnerRequest
from spark_jobs.layers.release import BronzeEnd, refined_batch
from spark_jobs.stream.active_releases import ActiveReleases
from spark_jobs.stream.automatic_compaction import AutomaticCompaction, declared_compaction
from spark_jobs.stream.automatic_expiry import AutomaticExpiry
from spark_jobs.stream.automatic_history import AutomaticHistory
from spark_jobs.stream.automatic_removal import AutomaticRemoval
from spark_jobs.stream.back_off import BackOff, attempt
from spark_jobs.stream.bronze_pacing import BronzePacing
from spark_jobs.stream.compact_tables import compactable_tables
from spark_jobs.stream.driver_progress import record_run
from spark_jobs.stream.execute_request import execute
from spark_jobs.stream.ingest_supervisor import IngestSupervisor
from spark_jobs.stream.ledger_projection import LedgerProjection
from spark_jobs.stream.obsolete_files import AutomaticDeletion, retained_tables
from spark_jobs.stream.quiet_commits import QuietCommits
from spark_jobs.stream.refine import RunReport
from spark_jobs.stream.request_exchange import receive_request, send_response
from spark_jobs.stream.status_reporter import StatusReporter
from spark_jobs.tables.log_lines import error_reason, log_line


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
