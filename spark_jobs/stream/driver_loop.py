"""The driver's main loop: keep the source reading, execute owner requests, runs, and upkeep between them; drain.

One run or request at a time. A run that fails is tried again, and readers keep the last publication. Where runs take
their rows from is a `Source`: Kafka (`kafka_source.py`) or published tables of other datasets (`derived.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from include.state.lease import Lease, LeaseLost
from include.state.owner_requests import OwnerRequest, pending_request
from spark_jobs.stream.back_off import BackOff, attempt
from spark_jobs.stream.expiry import AutomaticDeletion
from spark_jobs.stream.pacing import Tempo
from spark_jobs.stream.progress import StatusReporter, record_run
from spark_jobs.stream.refine import RunReport
from spark_jobs.stream.requests import Owned, receive_request, send_response
from spark_jobs.stream.upkeep import AutomaticCompaction, AutomaticRemoval, declared_compaction
from spark_jobs.tables.log_lines import error_reason, log_line


class Source:
    """Where the runs of a dataset take their rows from."""

    poll_seconds: ClassVar[float]
    """Between two looks for a run."""

    def keep_reading(self) -> None:
        """Start again what reads the source if it has ended. Raises what ends the driver."""

    def run_next(self) -> RunReport | None:
        """Execute the next run; return None when there is none."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Bring up to date what no run does; return whether there was anything."""
        return False

    def step_between_runs(self, *, is_halted: bool) -> bool:
        """Do other work if there is no run, or it waits after a failure (`is_halted`); return whether there was any."""
        return False

    def keep_up(self) -> bool:
        """Do a step of upkeep; return whether there is more."""
        return False

    def rests_at(self) -> Mapping[int, int]:
        """Return where each partition of the topic ends if the driver may sleep until it goes on; else nothing."""
        return {}

    def note_commits(self) -> None:
        """Take note that tables have new commits."""

    def drain(self) -> None:
        """Stop reading at a batch boundary."""

    def close(self) -> None:
        """Finish what was noted, before the driver ends."""


@dataclass
class DriverLoop:
    """The running driver of a dataset; `back_off` is the pause after a failed run."""

    owned: Owned
    source: Source
    lease: Lease
    reporter: StatusReporter
    stop: threading.Event
    tempo: Tempo = Tempo()
    back_off: BackOff = field(default_factory=BackOff)
    compaction: AutomaticCompaction = field(init=False)
    deletion: AutomaticDeletion = field(default_factory=AutomaticDeletion)
    removal: AutomaticRemoval = field(default_factory=AutomaticRemoval)

    def __post_init__(self) -> None:
        self.compaction = declared_compaction(self.owned.settings)

    def run(self) -> str:
        """Run until `stop` or sleep, then drain; return the final state. Raises Terminal and what NOT_RETRIED names."""
        try:
            self._run()
        except BaseException:
            # The process would finish when it exits, after it has reported its end; a shared one goes on.
            with suppress(Exception):
                if self.tempo.gate is not None:
                    self.stop.set()
                    self.source.drain()
            with suppress(Exception):
                self.source.close()
            raise
        self.source.close()
        return "asleep" if self.reporter.status.rests_at else "stopped"

    def _run(self) -> None:
        self.reporter.report("running")
        while not self.stop.is_set():
            self.reporter.note_progress()
            if not self.lease.is_held():
                raise LeaseLost(self.owned.dataset, self.lease.location)
            self.source.keep_reading()
            self._execute_request()
            if not self._work():
                self._may_sleep()
                self.stop.wait(max(self.source.poll_seconds, self.tempo.loop))
        self.reporter.report("draining")
        self.source.drain()

    def _work(self) -> bool:
        """Do a run and a step of upkeep; return whether there was anything."""
        with self.tempo.turn():
            worked = self.advance() or self._step_between_runs()
            if worked:
                self.compaction.note_run()
            return self.keep_up() or worked

    def advance(self) -> bool:
        """Execute the next run, or a refresh, if there is one; return whether there was."""
        if self.back_off.is_pausing:
            return False
        worked = attempt(self._run_next, self._halt)
        if worked is None:
            return False
        if self.back_off.end():
            self.reporter.report("running")
        if worked:
            self.source.note_commits()
        return worked

    def _run_next(self) -> bool | None:
        # A patch that failed half way must be finished before any run.
        self.owned.finish_patch()
        run = self.source.run_next()
        if run is None:
            return self.source.refresh()
        record_run(self.reporter.status, run)
        return True

    def _step_between_runs(self) -> bool:
        is_halted = self.back_off.is_pausing
        return not self.owned.is_patching and self.source.step_between_runs(is_halted=is_halted)

    def keep_up(self) -> bool:
        """Do a step of upkeep, unless a patch must be finished first; return whether there is more.

        Small files are compacted, replaced files and data of ended plans deleted.
        """
        owned = self.owned
        return not owned.is_patching and (
            self.compaction.step(owned.compactable())
            or self.deletion.step(owned.retained)
            or self.removal.step(owned.settings, owned.dataset)
            or self.source.keep_up()
        )

    def _may_sleep(self) -> None:
        """End the loop if nothing is left to do until something comes to the source."""
        owned = self.owned
        if self.back_off.is_pausing or owned.is_patching or pending_request(owned.settings, owned.dataset):
            return
        ends = self.source.rests_at()
        if ends:
            log_line(f"{owned.dataset}: nothing came, the driver sleeps; the runner wakes it")
            self.reporter.status.rests_at = dict(ends)
            # What comes from now on is for the next driver.
            self.stop.set()

    def _execute_request(self) -> None:
        """Execute the pending request, unless a patch must be finished first."""
        owned = self.owned
        if owned.is_patching:
            return
        request = receive_request(owned.settings, owned.dataset, lambda: owned.batch)
        if request is not None:
            self._respond(request)

    def _respond(self, request: OwnerRequest) -> None:
        owned, status = self.owned, self.reporter.status
        before = owned.release_name
        send_response(owned.settings, owned.dataset, request, owned.answer(request))
        if owned.release_name != before:
            log_line(f"plan {request.plan}: release {owned.release_name} is published, {before} before")
            status.release = owned.release_name
            self.back_off.end()
            self.reporter.report("running")
        status.shadows = owned.advanced_names
        self.source.note_commits()

    def _halt(self, error: Exception) -> None:
        pause, batch = self.back_off.lengthen(), self.reporter.status.refined_batch
        log_line(
            f"the run after batch {batch} failed: {error_reason(error)}; retry in {pause:.0f} s, readers keep batch"
            f" {batch}, and what reads the source continues. Next: headrace status",
            error,
        )
        self.reporter.report("halted", error_reason(error))
