"""The stream job: one driver per dataset, from Kafka to the publication.

Reads: the dataset's topic. Writes: bronze, silver, rejected, gold, the publication, the ledger.
Guarantee: every record of the topic is in bronze once, and in silver or rejected once (DESIGN §4).
After a crash: started again, it finishes what was begun and goes on; nothing is lost or doubled.
Does not: give up on bronze when refine fails: the release is halted, the error is told, and it is tried again.

Two threads of work: Spark's own commits bronze (ingest.py); this one refines whole bronze batches, as many as have
come since the last run and fit (adr-0001). SIGTERM drains both at a batch boundary.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from include.catalog.dataset import Dataset, released_dataset, snapshot_dataset
from include.clients.kafka import ensure_topic, log_end_offsets
from include.errors import HeadraceError, Terminal, Transient
from include.host.java_runtime import find_java
from include.ledger.ledger_writer import LedgerWriter, open_writer
from include.ledger.project_commits import project_dataset
from include.paths import checkpoint_path, lease_path, status_path
from include.reading.publication import PublicationAhead, find_publication
from include.settings import Settings, load_settings
from include.state.broker_address import bootstrap_servers
from include.state.owner_requests import InvalidRequest, dismiss_invalid, pending_request, respond
from include.state.process_states import stream_name
from spark_jobs.engine.active_releases import ActiveReleases, open_active_releases, recorded_releases, republish
from spark_jobs.engine.ingest import DRAINED, Ingest
from spark_jobs.engine.preflight import BronzeHead, bronze_head, refuse_lost_bronze, validated_generation
from spark_jobs.engine.refine import RunReport, refined_batch
from spark_jobs.engine.spark_session import open_session
from spark_jobs.engine.status_reporter import DriverStatus, StatusReporter, error_reason, log_line
from spark_jobs.layers.bronze_layer import batch_files, bronze_spec
from spark_jobs.storage.checkpoint_generation import Generation, keep_generation
from spark_jobs.storage.delta_table import OwnershipLost, Table
from spark_jobs.storage.failpoints import Step, pass_step
from spark_jobs.storage.lease import Lease, LeaseLost, take_lease

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
QUICK_FAILURES = 5


@dataclass
class Driver:
    """A dataset's driver at work."""

    settings: Settings
    dataset: Dataset
    lease: Lease
    live: ActiveReleases
    ingest: Ingest
    ledger: LedgerWriter
    reporter: StatusReporter
    stop: threading.Event
    pause: float = 0.0
    """Seconds until a failed refine is tried again; 0 when the last one succeeded."""
    not_before: float = 0.0
    ended: StreamingQuery | None = None
    """The ingest query that ended last, and when a new one is started (monotonic seconds)."""
    again_at: float = 0.0
    failures: int = 0
    """How often in a row ingest ended after batch `failed_at`."""
    failed_at: int = -2

    def run(self, bootstrap: str) -> None:
        """Ingest and refine until told to stop; raises what ended it otherwise."""
        query = self.ingest.start(bootstrap)
        self.reporter.report("running")
        while not self.stop.is_set():
            if not self.lease.is_held():
                raise LeaseLost(self.dataset.name, self.lease.path)
            if not query.isActive:
                query = self._restarted(query)
            self._obey()
            if not self._refine_next() and not self._follow_next():
                self.stop.wait(0.02)
        self.reporter.report("draining")
        # A query that had ended before has nothing left to drain, and its reason has been told.
        if query is not self.ended:
            self.ingest.silence()
            drain(query)

    def _refine_next(self) -> bool:
        """Refine the next batches, if there are any and it is time; return whether there was work."""
        if time.monotonic() < self.not_before:
            return False
        try:
            # A correction that failed half way comes first, whoever began it.
            self.live.finish_patch()
            report = self.live.published.refine_next(self.settings, self.ingest.last_batch, publishing=True)
        except (OwnershipLost, PublicationAhead):
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, bronze goes on)
            self._halt(error)
            return False
        if report is None:
            return False
        self._went_on(report)
        return True

    def _follow_next(self) -> bool:
        """Bring a release beside the published one on, if there is any and it is behind."""
        worked = not self.live.is_patching and self.live.catch_up_shadow()
        if worked:
            project(self.ledger, self.settings, self.dataset.name)
        return worked

    def _obey(self) -> None:
        """Between two runs: do what a plan asks of the owner, and answer."""
        if self.live.is_patching:
            return
        try:
            order = pending_request(self.settings, self.dataset.name)
        except InvalidRequest as error:
            log_line(f"headrace: {error}")
            dismiss_invalid(self.settings, self.dataset.name, error, refined_batch(self.live.published.release))
            return
        if order is None:
            return
        before = self.live.published
        answer = self.live.execute(order)
        try:
            respond(self.settings, self.dataset.name, answer)
        except OSError as error:
            # The order stays, and obeying it twice is obeying it once.
            log_line(f"the order of {order.requester} could not be answered", error)
        if self.live.published is not before:
            log_line(f"plan {order.plan}: readers see release {self.live.published.name} now, not {before.name}")
            self.reporter.status.release = self.live.published.name
            self.pause = self.not_before = 0.0
            self.reporter.report("running")
        self.reporter.status.shadows = [live.name for live in self.live.shadows]
        project(self.ledger, self.settings, self.dataset.name)

    def _halt(self, error: Exception) -> None:
        self.pause = min(max(self.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self.not_before = time.monotonic() + self.pause
        log_line(f"refine failed, tried again in {self.pause:.0f} s", error)
        self.reporter.report("halted", error_reason(error))

    def _went_on(self, report: RunReport) -> None:
        if self.pause:
            self.reporter.report("running")
        self.pause = 0.0
        seconds = sum(report.steps.values())
        self.reporter.status.refined_batch = report.batches[1]
        self.reporter.status.last_batch = {"rows": report.rows, "seconds": round(seconds, 3), "steps": report.steps}
        self.reporter.status.rates["refine"] = round(report.rows / seconds, 1) if seconds else 0.0
        project(self.ledger, self.settings, self.dataset.name)

    def _restarted(self, query: StreamingQuery) -> StreamingQuery:
        """Return the ingest query to go on with: a new one when it is time for it, until then the one that ended.

        Raises when trying again cannot help. Refine goes on meanwhile.
        """
        if query is not self.ended:
            self._note_end(query)
        if time.monotonic() < self.again_at or not self._broker_is_there():
            return query
        started = self.ingest.start(bootstrap_servers(self.settings))
        self.reporter.report("running")
        return started

    def _note_end(self, query: StreamingQuery) -> None:
        self.ended = query
        error = self.ingest.failure or query.exception()
        if isinstance(error, Terminal):
            raise error
        reason = error_reason(error) if error else "the query ended"
        self.failures = self.failures + 1 if self.failed_at == self.ingest.last_batch else 1
        self.failed_at = self.ingest.last_batch
        if self.failures > QUICK_FAILURES:
            raise Terminal(f"ingest failed {self.failures} times at one place: {reason}", "headrace status")
        self.again_at = time.monotonic() + min(FIRST_PAUSE * 2**self.failures, LONGEST_PAUSE)
        log_line(f"ingest stopped after batch {self.failed_at}: {reason}")
        self.reporter.report("waiting", f"ingest starts again: {reason}")

    def _broker_is_there(self) -> bool:
        """A broker that is away is waited for as long as it takes, and is no failure of ours."""
        try:
            log_end_offsets(bootstrap_servers(self.settings), self.dataset.pipeline.topic, timeout=2.0)
            return True
        except HeadraceError as error:
            self.failures, self.again_at = 0, time.monotonic() + FIRST_PAUSE
            self.reporter.report("waiting", error.what)
            return False


def drain(query: StreamingQuery, within: float = 50.0) -> None:
    """End the query at a batch boundary: a running batch is finished, a planned one stays planned."""
    end = time.monotonic() + within
    while query.isActive and time.monotonic() < end:
        status = query.status
        if not status["isTriggerActive"] and not status["isDataAvailable"]:
            break
        time.sleep(0.05)
    query.stop()
    error = query.exception()
    if error is not None and DRAINED not in str(error):
        raise error


def project(ledger: LedgerWriter, settings: Settings, dataset: str) -> None:
    """Bring the ledger up to the tables; a ledger that is not there is told and caught up with later."""
    try:
        project_dataset(ledger, settings, dataset)
    except HeadraceError as error:
        log_line(f"ledger not brought on: {error.what}")


def current_release(settings: Settings, name: str) -> Dataset:
    """Return the dataset as the published release has it; before the first publication, as its folder says now."""
    publication = find_publication(settings, name)
    # A publication that somebody removed is made again of the release that it was of.
    release = publication.release if publication else next(iter(recorded_releases(settings, name)), None)
    return released_dataset(settings, name, release) if release else snapshot_dataset(settings, name)


def main(arguments: Sequence[str]) -> int:
    """Run the driver of one dataset; return 0 drained, 1 failed, 2 refused before anything was read."""
    (name,) = arguments
    _run_in_utc()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = load_settings()
        lease = take_lease(lease_path(settings, name), name, datetime.now(UTC))
    except HeadraceError as error:
        log_line(f"headrace: {error}")
        return 2
    except OSError as error:
        log_line(f"headrace: the lease cannot be taken: {error}")
        return 1
    pass_step(Step.LEASED)
    return owned(settings, name, lease, stop)


def owned(settings: Settings, name: str, lease: Lease, stop: threading.Event) -> int:
    """Do what only the lease's holder may, and say how it ended; return the exit code."""
    teller = StatusReporter(status_path(settings, stream_name(name)), lease.is_held)
    driver: Driver | None = None
    try:
        driver, bootstrap = prepare(settings, name, lease, teller, stop)
        driver.run(bootstrap)
    except HeadraceError as error:
        log_line(f"headrace: {error}")
        teller.finish("failed", error.what, terminal=isinstance(error, Terminal))
        return 2 if driver is None else 1
    except Exception as error:  # noqa: BLE001  (the last word must be said, whatever it was)
        log_line("the driver failed", error)
        teller.finish("failed", error_reason(error))
        return 1
    teller.finish("stopped")
    return 0


def prepare(
    settings: Settings, name: str, lease: Lease, teller: StatusReporter, stop: threading.Event
) -> tuple[Driver, str]:
    """Step 2: doctor, then the session; return the driver, ready to run, and the broker's address."""
    teller.status.epoch = lease.epoch
    teller.start()
    find_java(os.environ)
    dataset = current_release(settings, name)
    teller.status.release = dataset.release
    bootstrap = bootstrap_servers(settings)
    ensure_topic(bootstrap, dataset.pipeline.topic, dataset.pipeline.partitions)
    bronze, head, generation = examined(settings, dataset, bootstrap)
    lease = lease.raised(head.epoch + 1 if head else 1)
    teller.status.epoch = lease.epoch
    ledger = open_writer(settings)
    try:
        project_dataset(ledger, settings, name)
    except Transient as error:
        log_line(f"ledger not brought on: {error.what}")
    pass_step(Step.EXAMINED)
    spark = open_session(settings, f"headrace {name}")
    live = open_active_releases(spark, settings, dataset, bronze)
    teller.status.shadows = [one.name for one in live.shadows]
    ingest = Ingest(spark, settings, dataset, bronze, generation, lease.epoch, stop)
    if head is not None:
        ingest.last_batch, ingest.ingested = head.batch, dict(head.ends)
    driver = Driver(settings, dataset, lease, live, ingest, ledger, teller, stop)
    republish(settings, live.published.release)
    teller.refresh = lambda word: refresh(word, driver)
    return driver, bootstrap


def examined(settings: Settings, dataset: Dataset, bootstrap: str) -> tuple[Table, BronzeHead | None, Generation]:
    """Open bronze and have everything examined; return it with its last batch and the generation to go on with."""
    refuse_lost_bronze(settings, dataset.name)
    bronze = Table(bronze_spec(settings, dataset.name))
    head = bronze_head(bronze)
    generation = validated_generation(settings, dataset, bronze, head, bootstrap)
    keep_generation(checkpoint_path(settings, dataset.name), generation)
    return bronze, head, generation


def refresh(word: DriverStatus, driver: Driver) -> None:
    """Fill in what a driver's state of work says: batches, rates, lag."""
    ingest = driver.ingest
    word.ingested_batch = ingest.last_batch
    word.refined_batch = max(word.refined_batch, refined_batch(driver.live.published.release))
    word.ingested = {str(p): end for p, end in ingest.ingested.items()}
    word.rates["ingest"] = round(ingest.rows / ingest.seconds, 1) if ingest.seconds else 0.0
    try:
        ends = log_end_offsets(bootstrap_servers(driver.settings), driver.dataset.pipeline.topic, timeout=2.0)
    except HeadraceError as error:
        driver.reporter.waiting_for, word.lag_seconds = error.what, None
        return
    driver.reporter.waiting_for = None
    word.log_end = {str(p): end for p, end in ends.items()}
    word.lag_seconds = lag_seconds(driver, ends, time.time())


def lag_seconds(driver: Driver, ends: dict[int, int], now: float) -> float | None:
    """Return the age of the oldest record that is in Kafka and not published; 0 when all is published."""
    bronze = driver.ingest.bronze
    waiting = batch_files(bronze, refined_batch(driver.live.published.release) + 1, sys.maxsize)
    times: list[Any] = [file.low["timestamp"] for file in waiting]
    if times:
        return float(round(max(0.0, now - min(time.timestamp() for time in times)), 3))
    if all(driver.ingest.ingested.get(p, 0) >= end for p, end in ends.items()):
        return 0.0
    return None


def _run_in_utc() -> None:
    """PySpark hands times to Python in the process's own zone."""
    os.environ["TZ"] = "UTC"
    time.tzset()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
