"""The driver's status file, replaced about once a second and at every change of state: batches, rates, offsets, lag.

It is written only while this process holds the lease. A status that cannot be written never ends the driver; on a full
disk it overwrites the file in place. After a crash its `pid` and `at` show that it is stale.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from include.ground.delta_log import batch_commit
from include.ground.errors import HeadraceError
from include.ground.kafka import log_end_offsets, readable_end_offsets
from include.ground.record_coordinates import arrivals, is_arrival
from include.state.json_file import adapter
from include.state.run_files import bootstrap_servers, identity_of
from include.state.streams import DriverStatus, LastRun
from spark_jobs.stream.active_releases import ActiveReleases
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.refine import RunReport
from spark_jobs.tables.data_files import BATCH, DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import INGEST_STEPS, Step
from spark_jobs.tables.log_lines import log_line


class StatusReporter:
    """Writes a process's status while `owns` returns True; `refresh` updates progress before each periodic write."""

    def __init__(self, path: Path, owns: Callable[[], bool], pid: int = 0, every: float = 1.0) -> None:
        pid = pid or os.getpid()
        self.status = DriverStatus(pid=pid, identity=identity_of(pid))
        self._every, self._worker = every, threading.get_ident()
        self.refresh: Callable[[], None] = lambda: None
        self.waiting_for: str | None = None
        """An outage outside this process: while it lasts, state `running` is reported as `waiting`."""
        self.ingest_idle: Callable[[], float] = lambda: 0.0
        """Seconds for which ingest has committed nothing although Kafka has records for it."""
        self._progress = time.monotonic()
        self._path = path
        self._owns = owns
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def start(self) -> None:
        """Write the status now, then once a second."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self.report(self.status.state)
        self._thread.start()

    def report(self, state: str, reason: str | None = None) -> None:
        """Change the state and write it at once."""
        self.note_progress()
        with self._lock:
            self.status.state, self.status.reason = state, reason
            self._write()

    def note_progress(self) -> None:
        """Note that the main loop has completed an iteration or a step, which this thread's reports do not show."""
        self._progress = time.monotonic()

    def note_step(self, step: Step) -> None:
        """Note a step of this driver's own: the datasets of a shared one have threads of their own."""
        if step not in INGEST_STEPS and threading.get_ident() == self._worker:
            self.note_progress()

    def finish(self, state: str, reason: str | None = None, *, terminal: bool = False) -> None:
        """Write the final status; nothing is written after it."""
        self._finished.set()
        self.status.terminal = terminal
        self.report(state, reason)

    def _run(self) -> None:
        while not self._finished.wait(self._every):
            try:
                self.refresh()
            except Exception as error:  # noqa: BLE001  (a failed refresh must not end the status thread)
                log_line("status not refreshed; tried again at the next report", error)
            with self._lock:
                if not self._finished.is_set():
                    self._write()

    def _write(self) -> None:
        self.status.at, status = datetime.now(UTC), self.status
        idle = max(time.monotonic() - self._progress, self.ingest_idle())
        status.progress_at = self.status.at - timedelta(seconds=idle)
        if self.waiting_for and status.state == "running":
            status = replace(status, state="waiting", reason=self.waiting_for)
        text = adapter(DriverStatus).dump_json(status)
        with suppress(OSError):
            if self._owns():
                self._replace(text)

    def _replace(self, text: bytes) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(text)
            fresh.replace(self._path)
        except OSError:
            # A full disk has no blocks for a second file, but the existing file keeps its own.
            with self._path.open("r+b") as file:
                file.write(text.ljust(self._path.stat().st_size))


READABLE_AFTER = 30.0
"""Seconds without a batch after which the driver checks whether an open transaction holds the records back."""


def refresh_progress(reporter: StatusReporter, ingest: Ingest, active: ActiveReleases) -> None:
    """Update the status from tables and Kafka; a broker that does not answer leaves the lag unknown (None)."""
    status, refined = reporter.status, active.published.release.refined_batch
    status.ingested_batch = ingest.last_batch
    status.refined_batch = max(status.refined_batch, refined)
    status.ingested = dict(ingest.ingested)
    status.left_to_spark = dict(sum((each.release.needed_spark for each in active.all_releases), Counter()))
    run = status.last_batch or LastRun(0, 0.0, {})
    status.rates["ingest"] = round(ingest.rows / ingest.seconds, 1) if ingest.seconds else 0.0
    status.rates["refine"] = round(run.rows / run.seconds, 1) if run.seconds else 0.0
    try:
        topic = ingest.dataset.pipeline.topic
        ends = log_end_offsets(bootstrap_servers(ingest.settings), topic, timeout=2.0)
    except HeadraceError as error:
        reporter.waiting_for, status.lag_seconds = error.what, None
        ingest.progress = time.monotonic()
        ingest.quiet.forget()
        return
    reporter.waiting_for = None
    status.log_end = dict(ends)
    ingest.quiet.look(ingest.ingested, ends)
    status.lag_seconds = lag_seconds(ingest, refined, ends, time.time())
    if not has_records(ingest, ends):
        ingest.progress = time.monotonic()


def has_records(ingest: Ingest, log_end: Mapping[int, int]) -> bool:
    """Whether Kafka has records for ingest; behind an open transaction it has none."""
    behind = any(ingest.ingested.get(p, ingest.generation.start.get(p, 0)) < end for p, end in log_end.items())
    if not behind or time.monotonic() - ingest.progress < READABLE_AFTER:
        return behind
    ends = readable_end_offsets(bootstrap_servers(ingest.settings), ingest.generation.topic, timeout=2.0)
    return any(ingest.ingested.get(p, ingest.generation.start.get(p, 0)) < end for p, end in ends.items())


def lag_seconds(ingest: Ingest, refined: int, log_end: Mapping[int, int], now: float) -> float | None:
    """Return the age of the oldest record of bronze after `refined`; 0: none waits, None: some, outside of bronze."""
    waiting = ingest.bronze.batch_files(refined + 1, sys.maxsize)
    if waiting:
        return round(max(0.0, now - _oldest_arrival_ms(ingest.bronze, waiting, refined + 1, now * 1000) / 1000), 3)
    return 0.0 if all(ingest.ingested.get(p, 0) >= end for p, end in log_end.items()) else None


def _oldest_arrival_ms(bronze: Table, files: Sequence[DataFile], first: int, now_ms: float) -> int:
    """Return when the first record of batches from `first` on arrived, by the bounds of their files."""
    times = [(file, _times_ms(file)) for file in files]
    # Commits ascend, so that of the first batch with a time that is no arrival counts for all of these.
    unknown = [file for file, found in times if not all(is_arrival(time, now_ms) for time in found)]
    batches = [max(first, int(str(file.low.get(BATCH, first)))) for file in unknown]
    committed_ms = batch_commit(bronze.spec.path, min(batches)).timestamp_ms if batches else 0
    return arrivals([time for _, found in times for time in found], committed_ms, now_ms)[0]


def _times_ms(file: DataFile) -> list[int]:
    """Return the least and the greatest Kafka time in a file, 0 when they are not known."""
    found: list[Any] = [each["timestamp"] for each in (file.low, file.high) if "timestamp" in each]
    return [int(time.timestamp() * 1000) for time in found] or [0]


def record_run(status: DriverStatus, run: RunReport) -> None:
    """Put a finished run into the status."""
    seconds = sum(run.steps.values())
    status.refined_batch = run.batches[1]
    status.last_batch = LastRun(run.rows, round(seconds, 3), dict(run.steps))
