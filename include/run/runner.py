"""The runner: keeps the broker and the desired streams running. `python -m include.run.runner`

Guarantee: one runner per state folder. Drivers end with it, the broker continues (adr-0001). SIGTERM drains all
drivers at a batch boundary, stops the broker, then exits.
After a crash: the next runner finds the broker by its run file and restarts the drivers; failure counts start at zero.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from include.ground.errors import MASK, HeadraceError, Terminal, mask_secrets
from include.ground.paths import console_path, lease_path, metrics_path, run_path
from include.ground.ports import LOOPBACK, chosen_port, given_port
from include.ground.processes import NoProgress, Waiting, stop_on
from include.ground.settings import CLONE, Settings, list_settings, load_settings
from include.observe.processes import (
    stalled_seconds,
    started_datasets,
    started_drivers,
    switched_on,
    unsupervised_status,
)
from include.run.child_process import (
    driver_environment,
    end_children,
    exit_code,
    shared_driver,
    spawn,
    start_blocker,
    start_driver,
    start_shared_driver,
    tethered,
)
from include.run.kafka_broker import start_broker
from include.run.log_trimming import trim_logs
from include.run.reconcile import (
    Action,
    Attempts,
    ClearRunFile,
    Drain,
    Kill,
    Nothing,
    Observation,
    Policy,
    Start,
    reconcile,
)
from include.run.runner_lease import sole_runner, stand_by, take_over
from include.run.sleeping_streams import SleepingStreams, topic_ends
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.lease import LeaseServerUnavailable, is_lease_free
from include.state.migrate_state import migrate_state
from include.state.process_states import (
    BROKER,
    CONSOLE,
    DRIVER,
    METRICS,
    OPENLINEAGE,
    RUNNER,
    STREAM,
    WORKING_STATES,
    ProcessRecord,
    ProcessState,
    ProcessStatus,
    RunnerRecord,
    last_line,
    log_size,
    runner_record_file,
    stream_name,
)
from include.state.run_files import (
    RunFile,
    beat,
    identity_of,
    process_signs,
    read_run_file,
    remove_run_file,
    started_at,
    write_run_file,
)
from include.state.streams import (
    DesiredStream,
    DriverStatus,
    desired_stream,
    last_change,
    read_reported_status,
    recorded_datasets,
)

PAGE_IDLE = 30.0


@dataclass(frozen=True)
class ConsolePort:
    """The port of the last start."""

    port: int = 0


OPTIONAL = {
    CONSOLE: "include.serve.console",
    METRICS: "include.observe.metrics",
    OPENLINEAGE: "include.observe.lineage_sender",
}
"""The modules of the processes that settings switch on; each dies with the runner."""


def start_optional(settings: Settings, name: str) -> RunFile:
    """Start an optional process, the ones with a page on loopback. Raises PortInUse, StateFileUnreadable."""
    address, extra = list[str](), dict[str, object]()
    if name == OPENLINEAGE:
        extra = {"receiver": mask_secrets(settings.openlineage_url)}
    else:
        port = page_port(settings, name)
        address = [LOOPBACK, str(port)]
        extra = {"port": port, "page": f"http://{LOOPBACK}:{port}{'/metrics' if name == METRICS else ''}"}
    argv = tethered([sys.executable, "-m", OPTIONAL[name], *address])
    return spawn(settings, name, argv, CLONE, driver_environment(settings), extra)


def page_port(settings: Settings, name: str) -> int:
    """Return the port of the console or the metrics for the next start, and keep it. Raises PortInUse."""
    folder, given = (metrics_path, settings.metrics) if name == METRICS else (console_path, settings.console)
    path = folder(settings) / "port.json"
    file = JsonFile(path, ConsolePort, remedy=f'rm "{path}"', consequence=f"{name} was not started")
    stored = file.read() or ConsolePort()
    port = chosen_port(stored.port, given_port(given), name, f"HEADRACE_{name.upper()}")
    file.write(ConsolePort(port))
    return port


def await_page(
    settings: Settings, observe: Callable[[Settings], ProcessStatus], report: Callable[[str], object]
) -> ProcessStatus:
    """Return a page's status once it answers or has failed, or when it makes no progress."""
    status = observe(settings)

    def has_settled() -> bool:
        nonlocal status
        status = observe(settings)
        return status.state is ProcessState.RUNNING or status.state.terminal

    with suppress(NoProgress):
        Waiting(status.name, lambda: process_signs(settings, status.name), report, PAGE_IDLE).holds(has_settled)
    return status


STEP_SECONDS, UNSETTLED_STEP_SECONDS = 1.0, 0.2
FIRST_TRIM, TRIM_EVERY = 60.0, 3600.0
BROKER_STOP_WITHIN = 30.0
# Without a lease they commit nothing any more.
DRIVERS_END_WITHIN = 5.0
REFUSED = 2
Reporter = Callable[[str], None]


@dataclass
class Runner:
    """The runner's memory: attempts by process, and the last exit of each.

    `only` restricts it to these datasets, without the broker; empty: everything. `stopping`: drain everything.
    """

    settings: Settings
    policy: Policy
    report: Reporter
    only: frozenset[str] = frozenset()
    stopping: bool = False
    tries: dict[str, Attempts] = field(default_factory=dict)
    unstarted: dict[str, HeadraceError | OSError] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    log_from: dict[str, int] = field(default_factory=dict)
    sleeping: SleepingStreams = field(init=False)
    drivers: dict[str, str] = field(default_factory=dict)
    """By dataset that is to run, the process name of the driver that it shares, "" for its own."""

    def __post_init__(self) -> None:
        self.sleeping = SleepingStreams(partial(topic_ends, self.settings))

    def step(self, now: float) -> bool:
        """Act once at `now` (monotonic seconds); return whether every process is in its desired state."""
        requests = self._requests()
        broker = unsupervised_status(self.settings, BROKER)
        found = {stream_name(name): self._observe_stream(name, requests.get(name), broker) for name in self._datasets()}
        found |= self._observe_drivers(found)
        if not self.only and not self.settings.kafka_bootstrap:
            needed = not self.stopping or any(stream.status.pid for stream in found.values())
            found[BROKER] = self._observe(broker, last_change(requests) if needed else None)
        for name, is_on in switched_on(self.settings).items():
            if not self.only and (self._run_file(name) or is_on):
                desired = is_on and not self.stopping
                server = unsupervised_status(self.settings, name)
                found[name] = self._observe(server, last_change(requests) if desired else None)
        for name, observed in found.items():
            if observed.status.pid is not None:
                beat(run_path(self.settings, name))
        settled = [self._reconcile(name, observed, now) for name, observed in found.items()]
        self._record(now)
        return all(settled)

    def _datasets(self) -> list[str]:
        return sorted(self.only or {*recorded_datasets(self.settings), *started_datasets(self.settings)})

    def _requests(self) -> dict[str, DesiredStream]:
        """Return the readable requests by dataset."""
        requests: dict[str, DesiredStream] = {}
        for name in self._datasets():
            with suppress(StateFileUnreadable):
                request = desired_stream(self.settings, name)
                requests |= {name: request} if request else {}
        return requests

    def _observe_stream(self, dataset: str, request: DesiredStream | None, broker: ProcessStatus) -> Observation:
        status = unsupervised_status(self.settings, stream_name(dataset))
        if self.stopping:
            return self._observe(status, None)
        tries, asleep = self._tries(status.name), self._asleep(status, request.since if request else None)
        readable = request is not None or dataset not in recorded_datasets(self.settings)
        desired_since = (request.since if request and request.desired else None) if readable else tries.desired_since
        given_up = self._has_given_up(status.name, desired_since)
        settled = desired_since is None or status.pid is not None or bool(asleep) or given_up
        refused = "" if settled else self._choose_driver(dataset, desired_since)
        # A plan's job or a repair may hold the lease for a while: the stream has not failed.
        free = status.pid is not None or bool(asleep) or self._is_lease_free(dataset)
        ready = free and broker.state is ProcessState.RUNNING and (settled or self._has_driver(dataset))
        # Declarations are read only for streams that may be started now.
        refused = start_blocker(self.settings, dataset) if ready and not settled and not refused else refused
        return self._observe(status, desired_since, refused=refused, ready=ready, asleep=asleep)

    def _has_given_up(self, name: str, desired_since: datetime | None) -> bool:
        tries = self._tries(name)
        return tries.given_up and tries.desired_since == desired_since

    def _choose_driver(self, dataset: str, desired_since: datetime | None) -> str:
        """Note which driver a dataset that is to start shares; return why it cannot, "" if it can."""
        try:
            if dataset not in self.drivers or self._tries(stream_name(dataset)).desired_since != desired_since:
                self.drivers[dataset] = shared_driver(self.settings, dataset)
        except HeadraceError as error:
            return error.what
        driver = self._tries(name := self.drivers[dataset])
        is_newer = desired_since and driver.desired_since and desired_since > driver.desired_since
        return f"{name}: {driver.error}" if driver.given_up and not is_newer else ""

    def _has_driver(self, dataset: str) -> bool:
        name = self.drivers.get(dataset, "")
        return not name or unsupervised_status(self.settings, name).state is ProcessState.RUNNING

    def _observe_drivers(self, streams: Mapping[str, Observation]) -> dict[str, Observation]:
        """Observe the shared drivers: each is requested while a dataset runs in it, or is to start."""
        needed = dict[str, datetime]()
        for name, stream in streams.items():
            run, since = self._run_file(name), stream.desired_since
            driver = self.drivers.get(name.removeprefix(STREAM), "")
            if run is not None and stream.status.pid is not None:
                driver = str(run.extra.get("driver", ""))
            if driver and since is not None and not stream.asleep and not self._has_given_up(name, since):
                needed[driver] = max(since, needed.get(driver, since))
        names = sorted({*needed, *started_drivers(self.settings)} if not self.only else {*needed})
        return {name: self._observe(unsupervised_status(self.settings, name), needed.get(name)) for name in names}

    def _asleep(self, status: ProcessStatus, requested: datetime | None) -> bool | None:
        """Return whether a driver that went to sleep has nothing to do; None for any other."""
        run = self._run_file(status.name) if status.state is ProcessState.ASLEEP and status.pid is None else None
        left = read_reported_status(self.settings, run) if run and status.name not in self.unstarted else None
        return None if left is None else self.sleeping.is_asleep(left, requested, datetime.now(UTC))

    def _is_lease_free(self, dataset: str) -> bool:
        with suppress(LeaseServerUnavailable):
            return is_lease_free(self.settings, lease_path(self.settings, dataset))
        return False

    def _observe(
        self,
        status: ProcessStatus,
        desired_since: datetime | None,
        *,
        refused: str = "",
        ready: bool = True,
        asleep: bool | None = None,
    ) -> Observation:
        run = self._run_file(status.name)
        reported = read_reported_status(self.settings, run) if run else None
        code = exit_code(run) if run else None
        if code is not None:
            self.ended[status.name] = self._exit_reason(status.name, code)
        failed = self.unstarted.get(status.name)
        return Observation(
            status=status,
            desired_since=desired_since,
            recorded=run is not None,
            error=self.sleeping.why_not.get(reported.topic, "") if asleep and reported else self._error(status),
            terminal=isinstance(failed, Terminal) if failed else bool(reported and reported.terminal),
            refused=refused,
            ready=ready,
            batch=reported.refined_batch if reported and reported.refined_batch >= 0 else None,
            stalled=self._stalled(status, run, reported),
            asleep=asleep,
        )

    def _stalled(self, status: ProcessStatus, run: RunFile | None, reported: DriverStatus | None) -> str:
        """Return how long a driver has made no progress, "" while that is allowed."""
        if run is None or status.pid is None or not status.name.startswith(STREAM):
            return ""
        seconds = stalled_seconds(run, reported, datetime.now(UTC))
        limit = self.settings.stall_seconds
        return f"made no progress for {seconds:.0f} s (HEADRACE_STALL_SECONDS={limit:g})" if seconds > limit else ""

    def _run_file(self, name: str) -> RunFile | None:
        with suppress(StateFileUnreadable):
            return read_run_file(self.settings, name)
        return None

    def _exit_reason(self, name: str, code: int) -> str:
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        line = last_line(self.settings, name, self.log_from.get(name, 0))
        return f"it ended with exit code {code}{f': {line}' if line else ''}"

    def _error(self, status: ProcessStatus) -> str:
        failed = self.unstarted.get(status.name)
        if failed is not None:
            return failed.what if isinstance(failed, HeadraceError) else f"it could not be started: {failed}"
        if status.state is ProcessState.FAILED:
            return status.detail
        if status.state is ProcessState.STOPPED:
            return "it stopped without a request"
        return self.ended.get(status.name, status.detail)

    def _tries(self, name: str) -> Attempts:
        return self.tries.get(name, Attempts())

    def _reconcile(self, name: str, observed: Observation, now: float) -> bool:
        """Reconcile one process and act; return whether it is in its desired state."""
        before = self._tries(name)
        self.tries[name], action = reconcile(observed, before, self._policy(name), now)
        if not isinstance(action, Nothing):
            self.report(f"{name}: {action.verb}, {action.reason}")
        elif self.tries[name].failures > before.failures:
            self.report(f"{name}: {action.reason}")
        self._act(name, action)
        if observed.desired_since is None:
            return observed.status.pid is None and not observed.recorded
        return observed.status.state in WORKING_STATES or bool(observed.asleep) or self.tries[name].given_up

    def _policy(self, name: str) -> Policy:
        return replace(self.policy, drain_within=BROKER_STOP_WITHIN) if name == BROKER else self.policy

    def _act(self, name: str, action: Action) -> None:
        run = self._run_file(name)
        if isinstance(action, Start):
            self._start(name)
        elif isinstance(action, ClearRunFile):
            remove_run_file(self.settings, name)
        elif isinstance(action, Drain) and run:
            run.terminate()
        elif isinstance(action, Kill) and run:
            run.send(signal.SIGKILL)

    def _start(self, name: str) -> None:
        self.unstarted.pop(name, None)
        self.ended.pop(name, None)
        self.log_from[name] = log_size(self.settings, name)
        try:
            if name == BROKER:
                start_broker(self.settings)
            elif name in OPTIONAL:
                start_optional(self.settings, name)
            elif name.startswith(DRIVER):
                start_shared_driver(self.settings, name)
            else:
                dataset = name.removeprefix(STREAM)
                start_driver(self.settings, dataset, self.drivers.get(dataset, ""))
        except (HeadraceError, OSError) as error:
            self.unstarted[name] = error

    def _record(self, now: float) -> None:
        state = ProcessState.DRAINING if self.stopping else ProcessState.RUNNING
        records = {name: process_record(tries, now, datetime.now(UTC)) for name, tries in self.tries.items()}
        # A full disk must not end the runner.
        with suppress(OSError):
            runner_record_file(self.settings).write(
                RunnerRecord(state.label, "", os.getpid(), datetime.now(UTC), records, identity_of(os.getpid()))
            )


def process_record(tries: Attempts, now: float, at: datetime) -> ProcessRecord:
    """Return the public record; `now` (monotonic) and `at` (UTC) are the same moment."""
    next_try = None if tries.next_try is None else at + timedelta(seconds=tries.next_try - now)
    return ProcessRecord(tries.desired_since, tries.restarts, tries.failures, tries.error, next_try, tries.given_up)


def supervise(runner: Runner, holds: Callable[[], bool], stop: threading.Event) -> None:
    """Run steps until `stop` is set and every process has exited; trim the logs every hour.

    Without the lock, it stops too. Without the lease, another host supervises the state folder: our children end.
    """
    next_trim = time.monotonic() + FIRST_TRIM
    while True:
        if runner.settings.lease_url and not holds():
            end_children(DRIVERS_END_WITHIN)
            return
        runner.stopping = runner.stopping or stop.is_set() or not holds()
        beat(run_path(runner.settings, RUNNER))
        try:
            settled = runner.step(time.monotonic())
            if time.monotonic() >= next_trim:
                next_trim = time.monotonic() + TRIM_EVERY
                trim_logs(runner.settings, datetime.now(UTC))
        except Exception:  # noqa: BLE001  (supervision must survive any error of one step)
            traceback.print_exc()
            settled = False
            time.sleep(STEP_SECONDS)
        if runner.stopping and settled:
            return
        pause = STEP_SECONDS if settled else UNSETTLED_STEP_SECONDS
        time.sleep(pause) if runner.stopping else stop.wait(pause)


def environment_settings() -> dict[str, str]:
    """Return the settings that drivers inherit, without the state folder, secrets masked."""
    return {info.name: info.value for info in list_settings() if info.name != "HEADRACE_STATE"}


def settings_fingerprints(settings: Settings) -> dict[str, str]:
    """Return a keyed fingerprint of each setting that holds a secret: masked values do not show that it changed."""
    key = fingerprint_key(settings)
    given = {name: os.environ.get(name, "") for name, shown in environment_settings().items() if MASK in shown}
    return {name: hmac.digest(key, value.encode(), "sha256").hex() for name, value in given.items()}


def fingerprint_key(settings: Settings) -> bytes:
    """Return the state folder's random key, created at the first call, readable by its owner only."""
    path = run_path(settings, RUNNER).with_name("settings.key")
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path.read_bytes()


def log_line(line: str) -> None:
    """Write a line with the time (UTC) into the runner's log."""
    with suppress(OSError):
        print(f"{datetime.now(UTC):%FT%TZ} {line}", flush=True)


def serve(settings: Settings, stop: threading.Event) -> None:
    """Supervise the state folder until `stop` is set, or its lease is lost. Raises RunnerAlreadyRunning."""
    with sole_runner(settings) as holds:
        for line in migrate_state(settings):
            log_line(f"state folder of an earlier version: {line}")
        settings.state.mkdir(parents=True, exist_ok=True)
        settings.state.chmod(0o700)
        take_over(settings, log_line)
        extra = {"settings": environment_settings(), "fingerprints": settings_fingerprints(settings)}
        write_run_file(settings, RunFile(RUNNER, os.getpid(), started_at(os.getpid()), sys.orig_argv, extra))
        log_line(f"supervises {settings.state}, pid {os.getpid()}")
        supervise(Runner(settings, Policy(), log_line), holds, stop)
        if settings.lease_url and not holds():
            log_line("the lease is lost, drivers of this host have ended; another host may supervise")
            if settings.lease_domain:
                # In a shared state folder the file is the other host's by now.
                remove_run_file(settings, RUNNER)
            return
        remove_run_file(settings, RUNNER)
        log_line("all processes have exited")


def main() -> int:
    """Supervise until SIGTERM; return 0 after a clean stop, 2 if another runner exists and there are no leases."""
    stop = stop_on(signal.SIGTERM, signal.SIGINT)
    try:
        settings = load_settings()
        if settings.lease_url:
            stand_by(settings, lambda: serve(settings, stop), stop, log_line)
        else:
            serve(settings, stop)
    except HeadraceError as error:
        log_line(f"headrace: {error}")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
