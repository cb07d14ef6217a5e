"""Who supervises a state folder: one runner, by an OS lock, or by a lease when runners of several hosts stand by."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from include.ground.errors import Terminal, Transient
from include.ground.paths import runner_lock_path
from include.ground.processes import boot_of, host_name, process_label, this_boot
from include.ground.settings import Settings
from include.observe.processes import started_datasets
from include.state.json_file import StateFileUnreadable
from include.state.lease import Lease, LeaseHeld, LeaseRole, LockHeld, is_held, take_lease, take_lock
from include.state.lease_table import held_leases, revoke_streams_elsewhere
from include.state.process_states import BROKER, CONSOLE, METRICS, OPENLINEAGE, RUNNER, stream_name
from include.state.run_files import read_run_file, remove_run_file

STANDBY_SECONDS = 1.0
"""Between two attempts of a runner that stands by."""
Reporter = Callable[[str], None]


class RunnerAlreadyRunning(Terminal):
    """Another runner supervises this state folder; `holder` is what it wrote into the lock."""

    def __init__(self, settings: Settings, holder: str) -> None:
        super().__init__(f"{settings.state} has another runner, {holder}; nothing was done", "headrace status")
        self.holder = holder


@contextmanager
def sole_runner(settings: Settings) -> Iterator[Callable[[], bool]]:
    """Supervise a state folder alone; yield a function that returns whether this process still may.

    Raises RunnerAlreadyRunning, LeaseServerUnavailable.
    """
    path = runner_lock_path(settings)
    if settings.lease_url:
        with _lease(settings, LeaseRole.RUNNER) as lease:
            yield lease.is_held
        return
    try:
        lock = take_lock(path, f"{process_label()} since {datetime.now(UTC):%FT%TZ}")
    except LockHeld as error:
        raise RunnerAlreadyRunning(settings, error.holder) from error
    with lock:
        yield lambda: is_held(lock)


@contextmanager
def _lease(settings: Settings, role: LeaseRole) -> Iterator[Lease]:
    path = runner_lock_path(settings)
    path = path if role is LeaseRole.RUNNER else path.with_name(f"standby-{host_name()}-{os.getpid()}.lock")
    try:
        lease = take_lease(settings, path, f"the supervision of {settings.state}", datetime.now(UTC), role)
    except LeaseHeld as error:
        if role is LeaseRole.STANDBY:
            # Left by a process of the same host name and pid, such as a container's that was restarted: it expires.
            raise
        raise RunnerAlreadyRunning(settings, f"pid {error.holder.get('pid')} on {error.holder.get('host')}") from error
    try:
        yield lease
    finally:
        lease.release()


def supervising_host(settings: Settings) -> str:
    """Return the host that supervises while this one stands by with a state folder of its own, "" otherwise."""
    rows = held_leases(settings) if settings.lease_domain else []
    here = [row for row in rows if row.host == host_name() and not row.is_gone]
    elsewhere = (row.host for row in rows if row.role == LeaseRole.RUNNER and row.host != host_name())
    return next(elsewhere, "") if any(row.role == LeaseRole.STANDBY for row in here) else ""


def stand_by(settings: Settings, serve: Callable[[], None], stop: threading.Event, report: Reporter) -> None:
    """Call `serve` whenever no other runner supervises, until `stop` is set; `status` shows who stands by."""
    reported = ""
    while not stop.is_set():
        try:
            with _lease(settings, LeaseRole.STANDBY) as standby:
                reported = _serve_in_turn(serve, standby, stop, report)
        except Transient as error:
            if error.what != reported:
                report(reported := error.what)
            stop.wait(STANDBY_SECONDS)


def _serve_in_turn(serve: Callable[[], None], standby: Lease, stop: threading.Event, report: Reporter) -> str:
    """Try to serve while this process holds its lease of a standby; return the last report."""
    reported = ""
    while not stop.is_set() and standby.is_held():
        try:
            serve()
        except RunnerAlreadyRunning as error:
            if error.holder != reported:
                report(f"stands by: {(reported := error.holder)} supervises")
        stop.wait(STANDBY_SECONDS)
    return reported


def take_over(settings: Settings, report: Reporter) -> None:
    """Make sure that the drivers of other runners end. Raises RunnerAlreadyRunning."""
    if settings.lease_url:
        revoke_streams_elsewhere(settings)
    else:
        refuse_other_host(settings)
    forget_other_places(settings, report)


def refuse_other_host(settings: Settings) -> None:
    """Raise RunnerAlreadyRunning while a runner of another machine is alive: its locks may be invisible here."""
    with suppress(StateFileUnreadable):
        run = read_run_file(settings, RUNNER)
        if run is not None and run.is_elsewhere() and boot_of(run.place) != this_boot() and run.is_alive():
            raise RunnerAlreadyRunning(settings, f"pid {run.pid} on {run.host}")


def forget_other_places(settings: Settings, report: Reporter) -> None:
    """Remove the records that an earlier runner in another container left: they ended with it, and its lock is ours."""
    for name in (BROKER, CONSOLE, METRICS, OPENLINEAGE, *map(stream_name, started_datasets(settings))):
        with suppress(StateFileUnreadable):
            run = read_run_file(settings, name)
            if run is not None and run.is_elsewhere():
                report(f"{name}: forgotten, it was pid {run.pid} on {run.host}")
                remove_run_file(settings, name)
