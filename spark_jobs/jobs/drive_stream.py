"""What a driver does under its lease: waits for the store, validates the dataset's state, and runs its loop.

Reads: checkpoint, tables, topic, publication. Writes: the status; tables as `driver_loop.py` and `derived_loop.py` do.
Guarantee: nothing of the tables is written before checkpoint, tables and topic agree.
After a crash: the next start recovers a power cut's loss, or refuses with the command that repairs it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from include.declare.dataset import Dataset, released_dataset, snapshot_dataset
from include.declare.derived_dataset import derived_names
from include.declare.reference_tables import create_reference_tables
from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.kafka import ensure_topic, topic_concerns
from include.ground.object_store import StoreUnavailable
from include.ground.paths import checkpoint_path, status_path
from include.ground.settings import Settings
from include.observe.ledger_schema import LedgerMismatch
from include.observe.ledger_writer import open_writer, project_dataset, rebuild
from include.read.publication import find_publication
from include.read.publish_to_store import refuse_start
from include.state.lease import Lease, LeaseLost
from include.state.process_states import stream_name
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.release import claim_tables, open_bronze
from spark_jobs.backends.session_start import Opened
from spark_jobs.jobs.bounded_job import DONE, FAILED, REFUSED
from spark_jobs.stream.active_releases import open_active_releases
from spark_jobs.stream.back_off import BackOff
from spark_jobs.stream.derived_loop import open_derived_loop
from spark_jobs.stream.driver_loop import DriverLoop, IngestSupervisor
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.preflight import BronzeHead, bronze_head, fence_earlier_owner, refuse_lost_bronze
from spark_jobs.stream.progress import StatusReporter, refresh_progress
from spark_jobs.stream.recovery import last_active_release, republish, roll_back_tables, usable_generation
from spark_jobs.tables.checkpoint import Generation, ensure_generation
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import INGEST_STEPS, Step, pass_step, step_listeners
from spark_jobs.tables.log_lines import error_reason, log_line


def drive(settings: Settings, name: str, lease: Lease, stop: threading.Event, opened: Opened) -> int:
    """Prepare and run the driver under its lease, report the final status, and return the exit code.

    `opened` returns the session, which is being opened meanwhile.
    """
    reporter = StatusReporter(status_path(settings, stream_name(name)), lease.is_held)
    run: Callable[[], None] | None = None
    try:
        run = prepare(settings, name, lease, reporter, stop, opened)
        run()
    except HeadraceError as error:
        log_line(str(error))
        reporter.finish("failed", error.what, terminal=isinstance(error, Terminal))
        return REFUSED if run is None else FAILED
    except Exception as error:  # noqa: BLE001  (whatever it is, the final status must be written)
        log_line(f"{name}: the driver failed: {error_reason(error)}. Next: headrace status", error)
        reporter.finish("failed", error_reason(error))
        return FAILED
    reporter.finish("stopped")
    return DONE


def prepare(
    settings: Settings, name: str, lease: Lease, reporter: StatusReporter, stop: threading.Event, opened: Opened
) -> Callable[[], None]:
    """Return the loop of the driver, ready to run."""
    reporter.status.epoch = lease.epoch
    reporter.start()
    step_listeners.append(lambda step: None if step in INGEST_STEPS else reporter.note_progress())
    if not await_store(settings, name, lease, reporter, stop):
        return lambda: None
    fence_earlier_owner(settings, name, lease.epoch)
    if name in derived_names(settings):
        return open_derived_loop(settings, name, lease, reporter, stop, opened).run
    return prepare_stream(settings, name, lease, reporter, stop, opened).run


def await_store(settings: Settings, name: str, lease: Lease, reporter: StatusReporter, stop: threading.Event) -> bool:
    """Wait until the object store answers; return False when `stop` was set first. Raises LeaseLost, StoreConflict."""
    back_off, reported = BackOff(), ""
    while not stop.is_set():
        try:
            refuse_start(settings, name)
        except StoreUnavailable as error:
            if not lease.is_held():
                raise LeaseLost(name, lease.location) from error
            reason = f"waiting for the store: {error.what}"
            reporter.report("waiting", reason)
            if without_attempt(reason) != without_attempt(reported):
                log_line(f"{name}: {reason}")
            reported = reason
            stop.wait(back_off.lengthen())
        else:
            if back_off.end():
                log_line(f"{name}: the store answers again")
                reporter.report("starting")
            return True
    return False


def without_attempt(reason: str) -> str:
    """Return why a store does not answer, without what differs in each attempt: durations, and the probe's id."""
    return re.sub(r"\b[0-9a-f]{32}\b|\b\d+(\.\d+)?(s|ms|µs)\b", "", reason)


def prepare_stream(
    settings: Settings, name: str, lease: Lease, reporter: StatusReporter, stop: threading.Event, opened: Opened
) -> DriverLoop:
    """Preflight (step 2), then start ingest and open the releases' tables; return the loop, ready to run.

    Bronze is independent of releases, so the first batch is read while they are opened, which takes seconds.
    """
    status = reporter.status
    dataset = current_dataset(settings, name)
    status.release = dataset.release
    bootstrap = bootstrap_servers(settings)
    topic = dataset.pipeline.topic
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
    spark = opened()
    ingest = Ingest(spark, settings, dataset, bronze, generation, lease.epoch, stop)
    if head is not None:
        ingest.continue_after(head)
    supervisor, found_version = IngestSupervisor(ingest, reporter), bronze.version
    # The first batch's commit names the versions of the reference tables.
    create_reference_tables(settings, dataset)
    supervisor.start(bootstrap)
    with drained_on_error(supervisor):
        active = open_active_releases(spark, settings, dataset, bronze)
        status.shadows = [shadow.name for shadow in active.shadows]
        rolled_back = republish(settings, active.published.release, found_version)
        if mismatch is not None:
            follow_tables(settings, mismatch, recovered or rolled_back)
        lost = f"never read, accepted by headrace repair: {generation.lost_ranges}" if generation.lost else None
        status.event = "; ".join(filter(None, [recovered, rolled_back, lost])) or None
        if status.event:
            log_line(f"{name}: {status.event}")
        reporter.refresh = lambda: refresh_progress(reporter, ingest, active)
        reporter.ingest_idle = lambda: time.monotonic() - ingest.progress
        return DriverLoop(settings, name, lease, active, supervisor, ledger, reporter, stop)


@contextmanager
def drained_on_error(supervisor: IngestSupervisor) -> Iterator[None]:
    """End ingest at a batch boundary when the driver cannot continue; committed batches stay."""
    try:
        yield
    except BaseException:
        supervisor.ingest.stop.set()
        try:
            supervisor.drain()
        except Exception as error:  # noqa: BLE001  (what ended the driver is more than how ingest ended)
            log_line(f"ingest ended with an error meanwhile: {error_reason(error)}", error)
        raise


def follow_tables(settings: Settings, mismatch: LedgerMismatch, event: str | None) -> None:
    """Rebuild a ledger with commits that the tables lost, if `event` explains the loss; else raise `mismatch`."""
    if event is None:
        raise mismatch
    rebuild(settings)
    log_line("the ledger was rebuilt from the tables")


def current_dataset(settings: Settings, name: str) -> Dataset:
    """Return the dataset as the published release declares it; before the first publication, as its folder does."""
    publication = find_publication(settings, name)
    # If publication.json was deleted, the last active release is published again.
    release = publication.release if publication else last_active_release(settings, name)
    return released_dataset(settings, name, release) if release else snapshot_dataset(settings, name)


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
