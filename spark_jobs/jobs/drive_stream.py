"""What a driver does under its lease: waits for the store, opens its source, runs its loop, reports how it ended."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from include.declare.derived_dataset import derived_names
from include.ground.errors import HeadraceError, Terminal
from include.ground.object_store import StoreUnavailable
from include.ground.paths import status_path
from include.ground.settings import Settings
from include.read.fetch_dataset import own_in_store
from include.state.lease import Lease, LeaseLost
from include.state.process_states import stream_name
from spark_jobs.jobs.bounded_job import DONE, FAILED, REFUSED
from spark_jobs.stream.back_off import BackOff
from spark_jobs.stream.derived import DerivedSource, open_derived
from spark_jobs.stream.driver_loop import DriverLoop
from spark_jobs.stream.kafka_source import open_kafka_source
from spark_jobs.stream.pacing import DriverProcess
from spark_jobs.stream.preflight import fence_earlier_owner
from spark_jobs.stream.progress import StatusReporter
from spark_jobs.tables.failpoints import step_listeners
from spark_jobs.tables.log_lines import error_reason, log_line


def drive(settings: Settings, name: str, lease: Lease, process: DriverProcess) -> int:
    """Prepare and run the driver under its lease, report the final status, and return the exit code."""
    status = status_path(settings, stream_name(name))
    reporter = StatusReporter(status, lease.is_held, process.pid, process.tempo.report)
    run: Callable[[], str] | None = None
    step_listeners.append(reporter.note_step)
    try:
        run = prepare(settings, name, lease, reporter, process)
        end = run()
    except HeadraceError as error:
        log_line(str(error))
        reporter.finish("failed", error.what, terminal=isinstance(error, Terminal))
        return REFUSED if run is None else FAILED
    except Exception as error:  # noqa: BLE001  (whatever it is, the final status must be written)
        log_line(f"{name}: the driver failed: {error_reason(error)}. Next: headrace status", error)
        reporter.finish("failed", error_reason(error))
        return FAILED
    finally:
        step_listeners.remove(reporter.note_step)
    reporter.finish(end)
    return DONE


def prepare(
    settings: Settings, name: str, lease: Lease, reporter: StatusReporter, process: DriverProcess
) -> Callable[[], str]:
    """Return the loop of the driver, ready to run, which returns its final state."""
    stop, reporter.status.epoch = process.stop, lease.epoch
    reporter.start()
    if not await_store(settings, name, lease, reporter, stop):
        return lambda: "stopped"
    fence_earlier_owner(settings, name, lease.epoch)
    if name in derived_names(settings):
        release = open_derived(settings, name, process.opened(), lease)
        reporter.status.release = release.release_name
        return DriverLoop(release, DerivedSource(release, reporter), lease, reporter, stop, process.tempo).run
    source, lease = open_kafka_source(settings, name, lease, reporter, process)
    return DriverLoop(source.active, source, lease, reporter, stop, process.tempo).run


def await_store(settings: Settings, name: str, lease: Lease, reporter: StatusReporter, stop: threading.Event) -> bool:
    """Wait until the object store answers; return False when `stop` was set first. Raises LeaseLost, StoreConflict."""
    back_off, reported = BackOff(), ""
    while not stop.is_set():
        # A pause may be longer than a lease lasts.
        if not lease.is_held():
            raise LeaseLost(name, lease.location)
        try:
            if taken := own_in_store(settings, name, datetime.now(UTC)):
                log_line(f"{name}: taken over from another host at batch {taken.batch}")
        except StoreUnavailable as error:
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
