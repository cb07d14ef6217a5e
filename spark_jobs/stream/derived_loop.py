"""The main loop of a derived dataset's driver: follow the publications of its sources, compact, clean up, drain.

Reads: publications and tables of the sources. Writes: the dataset's gold, its publication, the status.
Guarantee: one run at a time; a run that fails is repeated, and readers keep the last publication.
After a crash: a patch that was begun is finished, then `DerivedRelease.next_run` returns the unfinished run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from include.declare.derived_dataset import released_derived, snapshot_derived
from include.ground.settings import Settings
from include.read.publication import find_publication
from include.state.driver_status import LastRun
from include.state.lease import Lease
from include.state.lease_errors import LeaseLost
from spark_jobs.backends.session_start import Opened
from spark_jobs.stream.automatic_compaction import declared_compaction
from spark_jobs.stream.back_off import BackOff, attempt
from spark_jobs.stream.derived_patch import finish_derived_patch
from spark_jobs.stream.derived_requests import execute_derived
from spark_jobs.stream.derived_run import DerivedRelease
from spark_jobs.stream.derived_upkeep import DerivedUpkeep
from spark_jobs.stream.request_exchange import receive_request, send_response
from spark_jobs.stream.status_reporter import StatusReporter
from spark_jobs.tables.log_lines import error_reason, log_line

POLL_SECONDS = 0.1
"""Between two reads of the sources' publications."""


@dataclass
class DerivedLoop:
    """The running driver of a derived dataset; `back_off` is that of a failed run."""

    release: DerivedRelease
    lease: Lease
    reporter: StatusReporter
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic
    behind_since: float | None = None
    back_off: BackOff = field(init=False)
    upkeep: DerivedUpkeep = field(init=False)

    def __post_init__(self) -> None:
        self.back_off = BackOff(self.clock)
        self.upkeep = DerivedUpkeep(declared_compaction(self.release.settings))

    def run(self) -> None:
        """Run until `stop` is set. Raises LeaseLost and what NOT_RETRIED names."""
        self.reporter.refresh = self._refresh
        while not self.stop.is_set():
            self.reporter.note_progress()
            if not self.lease.is_held():
                raise LeaseLost(self.release.derived.name, self.lease.location)
            self._execute_request()
            worked = self._advance()
            if not self.upkeep.step(self.release, self.reporter.status.refined_batch) and not worked:
                self.stop.wait(POLL_SECONDS)

    def _execute_request(self) -> None:
        settings, name = self.release.settings, self.release.derived.name
        request = receive_request(settings, name, lambda: self.reporter.status.refined_batch)
        if request is None:
            return
        before = self.release.derived.release
        self.release, response = execute_derived(self.release, request)
        after = self.reporter.status.release = self.release.derived.release
        if after != before:
            log_line(f"plan {request.plan}: release {after} is published, {before} before")
        send_response(settings, name, request, response)

    def _advance(self) -> bool:
        """Execute the next run, if there is one; return whether there was."""
        if self.back_off.is_pausing:
            return False
        if missing := self.release.missing_sources():
            self.reporter.waiting_for = f"nothing has published {', '.join(missing)} yet"
            self._report_running()
            return False
        self.reporter.waiting_for = self.release.awaited or None
        worked = attempt(self._execute_next, self._halt)
        if worked is None:
            return False
        self.back_off.end()
        self._report_running()
        return worked

    def _execute_next(self) -> bool:
        finish_derived_patch(self.release)
        run = self.release.next_run()
        if run is None:
            self.behind_since = None
            return False
        self.behind_since, started = self.behind_since or self.clock(), self.clock()
        self.release.execute(run)
        seconds, status = self.clock() - started, self.reporter.status
        rows = sum(table.target.table.rows for table in self.release.tables)
        status.refined_batch = run.number
        status.last_batch = LastRun(rows, round(seconds, 3), {"gold": round(seconds, 3)})
        self.upkeep.compaction.note_run()
        return True

    def _report_running(self) -> None:
        if self.reporter.status.state != "running":
            self.reporter.report("running")

    def _refresh(self) -> None:
        since = self.behind_since
        self.reporter.status.lag_seconds = 0.0 if since is None else round(self.clock() - since, 3)

    def _halt(self, error: Exception) -> None:
        pause = self.back_off.lengthen()
        log_line(
            f"the run failed: {error_reason(error)}; retry in {pause:.0f} s, readers keep the last publication."
            " Next: headrace status",
            error,
        )
        self.reporter.report("halted", error_reason(error))


def open_derived_loop(
    settings: Settings, name: str, lease: Lease, reporter: StatusReporter, stop: threading.Event, opened: Opened
) -> DerivedLoop:
    """Return the loop of the published release, or of the folder's before the first publication."""
    publication = find_publication(settings, name)
    derived = released_derived(settings, name, publication.release) if publication else snapshot_derived(settings, name)
    reporter.status.release = derived.release
    return DerivedLoop(DerivedRelease(settings, derived, opened(), lease.epoch), lease, reporter, stop)
