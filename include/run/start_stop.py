"""Up and down: request or release streams, ensure that a runner exists, wait for the result; one command at a time.

Guarantee: running processes are left alone; nothing is started twice in one state folder.
After a crash of the command: the requests stay and the runner continues; the next `up` or `down` finds both.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from include.declare.dataset import DatasetUnknown, misnamed_folders
from include.declare.dataset_checks import validate_datasets
from include.declare.derived_dataset import all_dataset_names
from include.ground.errors import Terminal, Transient
from include.ground.paths import log_path
from include.ground.ports import EXECUTOR_SECONDS
from include.ground.processes import IDLE, NoProgress, Waiting, cpu_steps, process_label
from include.ground.settings import CLONE, Settings
from include.observe.processes import is_started, observe_optional, observe_process, observe_processes, started_datasets
from include.run.child_process import driver_environment, end_jobs, launch
from include.run.kafka_broker import answers, check_broker_prerequisites
from include.run.reconcile import Policy
from include.run.runner import Reporter, Runner, environment_settings, settings_fingerprints
from include.run.runner_lease import sole_runner, supervising_host
from include.state.json_file import StateFileUnreadable
from include.state.lease import LockHeld, take_lock
from include.state.migrate_state import migrate_state
from include.state.process_states import (
    BROKER,
    RUNNER,
    STREAM,
    WORKING_STATES,
    ProcessState,
    ProcessStatus,
    log_size,
    log_tail,
    stream_name,
)
from include.state.run_files import RunFile, process_signs, read_run_file, remove_run_file
from include.state.streams import (
    desired_stream,
    read_reported_status,
    recorded_datasets,
    release_stream,
    request_stream,
)


class NotStarted(Terminal):
    """A process was given up, or did not work in time; the others continue. `tail` is the end of its log."""

    def __init__(self, settings: Settings, name: str, why: str, since: int) -> None:
        log, tail = log_path(settings, name), log_tail(settings, name, since)
        super().__init__(f"{name} {why}\n{tail}", f'read "{log}"; running processes continue; headrace up tries again')
        self.name, self.log, self.tail = name, log, tail


@contextmanager
def exclusive_command(settings: Settings) -> Iterator[None]:
    """Hold the supervision lock, which ends with the process. Raises Transient when another command has it."""
    try:
        lock = take_lock(settings.state / "run" / "supervision.lock", process_label())
    except LockHeld as error:
        what = f"another up or down is using {settings.state} ({error.holder}); nothing was done"
        raise Transient(what, "wait for it, then try again", code="state-busy", holder=error.holder) from error
    with lock:
        yield


def up(
    settings: Settings,
    datasets: Sequence[str],
    report: Reporter = print,
    with_broker: Callable[[], None] = lambda: None,
) -> list[ProcessStatus]:
    """Request the datasets' streams, ensure a runner, wait until broker and streams work; return their status.

    `with_broker` is called as soon as the broker answers, before the streams work.

    Errors: DatasetUnknown, DeclarationRefused, those of `require_responsive` and `check_broker_prerequisites`, and
    NotStarted for the first process that did not start (after waiting for the others).
    """
    for problem in misnamed_folders(settings):
        report(f"left out: {problem}")
    validate_datasets(settings, datasets)
    with exclusive_command(settings):
        upgrade_state(settings, report)
        before = observe_processes(settings, list(datasets))
        require_responsive(before)
        _, broker, *streams = before
        if broker.pid is None and not settings.kafka_bootstrap:
            check_broker_prerequisites(settings)
        since = {status.name: log_size(settings, status.name) for status in before}
        for name in datasets:
            request_stream(settings, name, "headrace up")
        if not ensure_runner(settings, report):
            return observe_processes(settings, list(datasets))
        # Without the broker no stream starts; without one stream the others do.
        if failure := await_working(settings, broker, since[BROKER], report):
            raise failure
        with_broker()
        failures = await_streams(settings, streams, since, report)
    if failure := next(filter(None, failures), None):
        raise failure
    return observe_processes(settings, list(datasets))


def up_runner(settings: Settings, report: Reporter = print) -> list[ProcessStatus]:
    """Ensure a runner without requesting a stream. Raises the errors of `up`."""
    with exclusive_command(settings):
        upgrade_state(settings, report)
        require_responsive([observe_process(settings, RUNNER)])
        ensure_runner(settings, report)
    return [observe_process(settings, RUNNER)]


def upgrade_state(settings: Settings, report: Reporter) -> None:
    """Rename the files of an earlier version and report each. Raises Terminal (`earlier-version-running`)."""
    for line in migrate_state(settings):
        report(f"state: renamed {line}")


def require_responsive(before: Sequence[ProcessStatus]) -> None:
    """Raise Terminal for the first process with unknown state: it may run, so no other can be started."""
    for status in before:
        if status.state is ProcessState.UNKNOWN:
            raise _suspended(status)


def _suspended(status: ProcessStatus) -> Terminal:
    what = f"{status.name} (pid {status.pid}): {status.detail}; it was left alone"
    return Terminal(what, "headrace down, then headrace up", code="state-suspended", process=status.name)


def ensure_runner(settings: Settings, report: Reporter) -> bool:
    """Start the state folder's runner unless one runs; False when another host's supervises. Raises NotStarted."""
    status = observe_process(settings, RUNNER)
    if status.state is ProcessState.DRAINING:
        await_drained(settings, report)
    elif status.pid:
        report(f"{RUNNER}: already running, pid {status.pid}{settings_difference(settings)}")
        return True
    if host := supervising_host(settings):
        report(f"{RUNNER}: {host} supervises; what is requested here starts when this host takes over")
        return False
    if settings.runner == "service":
        why = f"{status.state.label}{f', {status.detail}' if status.detail else ''}"
        what = f"no runner works on {settings.state} ({why}), and HEADRACE_RUNNER=service: the streams stay requested"
        raise Transient(what, "start the service: docker compose up -d runner", code="no-runner")
    report(f"{RUNNER}: starting {restart_note(status)}…")
    since = log_size(settings, RUNNER)
    command = [sys.executable, "-m", "include.run.runner"]
    process = launch(settings, RUNNER, command, CLONE, driver_environment(settings))

    def has_started() -> bool:
        code = process.poll()
        if code is not None:
            raise NotStarted(settings, RUNNER, f"did not start, it ended with exit code {code}", since)
        run = read_run_file(settings, RUNNER)
        return run is not None and run.is_alive()

    try:
        Waiting(RUNNER, lambda: (log_size(settings, RUNNER), cpu_steps([process.pid])), report).holds(has_started)
    except NoProgress as error:
        raise NotStarted(settings, RUNNER, f"did not start: {error.why}", since) from error
    return True


def settings_difference(settings: Settings) -> str:
    """Return a note when the runner's drivers have other settings than this command; "" when they are the same."""
    run, ours = read_run_file(settings, RUNNER), environment_settings()
    theirs = (run.extra.get("settings") if run else None) or ours
    differing = [f"{name}={theirs.get(name)} (now {ours[name]})" for name in ours if theirs.get(name) != ours[name]]
    known = run.extra.get("fingerprints", {}) if run else {}
    for name, fingerprint in settings_fingerprints(settings).items() if known else ():
        if theirs.get(name) == ours[name] and known.get(name) != fingerprint:
            differing.append(f"{name} with another secret")
    return f"; its drivers have {', '.join(differing)}: headrace down, then up, changes that" if differing else ""


def await_drained(settings: Settings, report: Reporter) -> None:
    """Wait until a stopping runner has exited, so that another can start. Raises NotStarted."""
    run = read_run_file(settings, RUNNER)
    report(f"{RUNNER}: is draining, waiting for it to end …")
    if run is None:
        return
    # It ends its drivers first, which show what they do in their logs.
    names = [RUNNER, BROKER, *map(stream_name, started_datasets(settings))]
    try:
        Waiting(RUNNER, lambda: process_signs(settings, *names), report).holds(lambda: not run.is_alive())
    except NoProgress as error:
        raise NotStarted(settings, RUNNER, f"is draining: {error.why}", sys.maxsize) from error


def await_streams(
    settings: Settings, before: Sequence[ProcessStatus], since: Mapping[str, int], report: Reporter
) -> list[NotStarted | None]:
    """Wait until each stream works; return for each the error when it does not. They start at the same time."""
    began = time.monotonic()
    return [await_working(settings, stream, since[stream.name], report, began) for stream in before]


def await_working(
    settings: Settings,
    before: ProcessStatus,
    since: int,
    report: Reporter,
    began: float | None = None,
) -> NotStarted | None:
    """Wait until a process works, as long as it makes progress; return the error when it does not. It began now."""
    name, began = before.name, time.monotonic() if began is None else began
    report(f"{name}: already running, pid {before.pid}" if before.pid else f"{name}: starting {restart_note(before)}…")
    status, reported = observe_process(settings, name), before.next_try

    def has_settled() -> bool:
        nonlocal status, reported
        status = observe_process(settings, name)
        if status.next_try not in (None, reported):
            reported = status.next_try
            report(f"{name}: {status.detail}")
        return is_working(settings, status) or status.state.terminal

    # On a cluster a driver waits for executors, without a sign.
    idle, stuck = IDLE + (EXECUTOR_SECONDS if settings.spark_master else 0), ""
    try:
        Waiting(name, lambda: (status.state, process_signs(settings, name)), report, idle).holds(has_settled)
    except NoProgress as error:
        stuck = error.why
    if is_working(settings, status):
        detail = f", {status.detail}" if status.detail else ""
        pid = f", pid {status.pid}" if status.pid else ""
        report(f"{name}: {status.state.label} after {time.monotonic() - began:.1f} s{detail}{pid}")
        return None
    why = f"is {status.state.label}" if status.state.terminal else f"does not work, {stuck}"
    return NotStarted(settings, name, f"{why}: {status.detail}" if status.detail else why, since)


def is_working(settings: Settings, status: ProcessStatus) -> bool:
    """Return whether a process works: the broker answers, the driver reports a working state."""
    if status.name != BROKER:
        return status.state in WORKING_STATES
    if settings.kafka_bootstrap:
        return status.state is ProcessState.RUNNING
    run = read_run_file(settings, BROKER) if status.state is ProcessState.RUNNING else None
    return run is not None and answers(run)


def restart_note(before: ProcessStatus) -> str:
    """Return "again after a crash" for a process that crashed, else ""."""
    return "again after a crash " if before.state in (ProcessState.CRASHED, ProcessState.LOST) else ""


def down(settings: Settings, report: Reporter = print, datasets: Collection[str] = ()) -> list[ProcessStatus]:
    """End the jobs of all datasets (or of `datasets`), release their streams: these drain at their next batch boundary.

    Without `datasets` the broker and the runner end too, unless the runner is a service. Returns the processes before,
    without the jobs.
    A process that does not exit is killed. Errors: DatasetUnknown, Transient when another command has the state folder.
    """
    known = sorted({*recorded_datasets(settings), *started_datasets(settings)})
    for name in datasets:
        if name not in known and name not in all_dataset_names(settings):
            raise DatasetUnknown(name, all_dataset_names(settings))
    with exclusive_command(settings):
        names, keeps_runner = list(datasets) or known, bool(datasets) or settings.runner == "service"
        before = observe_processes(settings, names)
        before += [] if datasets else [each for each in observe_optional(settings) if is_started(each)]
        end_jobs(settings, report, datasets)
        for name in names:
            if datasets and _requested_by_airflow(settings, name):
                report(f"{STREAM}{name}: Airflow's stream__{name} requested it; unless paused, its next run starts it")
            release_stream(settings, name, "headrace down")
        left = [status.name for status in before if not keeps_runner or status.name.startswith(STREAM)]
        runs = [run for run in (read_run_file(settings, name) for name in left) if run is not None]
        if names or not keeps_runner:
            stop_processes(settings, runs, frozenset(names if keeps_runner else ()), report)
        if not keeps_runner:
            # Requests that an earlier version wrote become readable only now.
            upgrade_state(settings, report)
            for name in recorded_datasets(settings):
                release_stream(settings, name, "headrace down")
    return before


def _requested_by_airflow(settings: Settings, dataset: str) -> bool:
    """Whether the last request for the stream came from a run of `stream__<dataset>`."""
    with suppress(StateFileUnreadable):
        request = desired_stream(settings, dataset)
        return request is not None and request.desired and request.by.startswith("stream__")
    return False


def stop_processes(settings: Settings, runs: Sequence[RunFile], only: frozenset[str], report: Reporter) -> None:
    """Have the runner end these processes; without a working runner, end them in this process."""
    runner = read_run_file(settings, RUNNER)
    if runner is not None and runner.is_alive():
        responsive = observe_process(settings, RUNNER).state is not ProcessState.UNKNOWN
        if not only:
            runner.terminate()
        if responsive and await_exits(settings, runs, lambda: None, report):
            return
        if only:
            raise _suspended(observe_process(settings, RUNNER))
        # Its drivers die with it, the broker is ended below.
        runner.send(signal.SIGKILL)
        runner.wait_gone(10)
    with sole_runner(settings):
        local = Runner(settings, Policy(), lambda _: None, only=only, stopping=not only)
        await_exits(settings, runs, lambda: local.step(time.monotonic()), report)
        while not local.step(time.monotonic()):
            time.sleep(0.05)
        if not only:
            remove_run_file(settings, RUNNER)


def await_exits(settings: Settings, runs: Sequence[RunFile], step: Callable[[], object], report: Reporter) -> bool:
    """Report each process as it exits, calling `step` in between; return whether all exited; False when they hang."""
    began, left = time.monotonic(), [run for run in runs if run.is_alive()]
    for run in runs:
        action = "draining …" if run.name.startswith(STREAM) else "stopping …"
        report(f"{run.name}: {action if run in left else 'was not running'}")

    def all_exited() -> bool:
        step()
        for run in [run for run in left if not run.is_alive()]:
            left.remove(run)
            report(f"{run.name}: {exit_summary(settings, run)} after {time.monotonic() - began:.1f} s")
        return not left

    with suppress(NoProgress):
        Waiting("down", lambda: process_signs(settings, *(run.name for run in left)), report).holds(all_exited, 0.05)
    return not left


def exit_summary(settings: Settings, run: RunFile) -> str:
    """Return the outcome of a process after SIGTERM."""
    reported = read_reported_status(settings, run)
    if reported is not None and reported.process_state is ProcessState.FAILED:
        return f"failed while it stopped ({reported.reason or ''})"
    if run.name.startswith(STREAM) and (reported is None or reported.process_state is not ProcessState.STOPPED):
        return "was killed, nothing is lost, its batch runs again;"
    return "stopped"
