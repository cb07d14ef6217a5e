"""Starts processes that outlive the command that started them: drivers, and bounded jobs.

A bounded job has a run file, a time limit, and ends with the command that started it, on this host or another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from include.declare.dataset import declared_dataset, released_folder
from include.declare.dataset_checks import validate_datasets
from include.declare.derived_dataset import derived_names
from include.declare.pipeline import OWN_DRIVER, PIPELINE, load_pipeline
from include.ground.durable_files import write_atomically
from include.ground.errors import HeadraceError, Transient
from include.ground.paths import log_path, run_path
from include.ground.processes import process_label
from include.ground.settings import CLONE, Settings
from include.read.publication import find_publication
from include.state.process_states import DRIVER, JOB, JobEnd, job_end_file, job_name, stream_name
from include.state.run_files import (
    RunFile,
    end_request_path,
    job_run_files,
    process_elsewhere,
    read_run_file,
    remove_run_file,
    started_at,
    write_run_file,
)


def spawn(
    settings: Settings,
    name: str,
    argv: Sequence[str],
    cwd: Path,
    environ: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
) -> RunFile:
    """Start a process and write its run file; it is killed when that cannot be written (OSError)."""
    with deferred_interrupts():
        child = launch(settings, name, argv, cwd, environ)
        run = RunFile(name, child.pid, started_at(child.pid), list(argv), dict(extra or {}))
        try:
            write_run_file(settings, run)
        except OSError:
            child.kill()
            child.wait()
            raise
        _children[child.pid] = child
    return run


def launch(
    settings: Settings, name: str, argv: Sequence[str], cwd: Path, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a new session, output appended to its log. Writes no run file."""
    log = log_path(settings, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o077,
        )


def tethered(argv: Sequence[str]) -> list[str]:
    """Return the command wrapped so that the kernel kills it when this process dies."""
    return [sys.executable, "-m", "include.ground.job_guard", "tether", str(os.getpid()), *argv]


# The kernel reports a child's exit code to its parent only.
_children: dict[int, subprocess.Popen[bytes]] = {}


def exit_code(run: RunFile) -> int | None:
    """Return the exit code of a child (negative: the signal), once; None while it runs or if it is not our child.

    The rest of its session, such as a driver's JVM, is killed first.
    """
    child = _children.get(run.pid)
    if child is None or os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    # Until it is waited for, its pid is not reused, neither for a process nor for a group.
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    return _children.pop(run.pid).wait()


def end_children(within: float) -> None:
    """End the processes that this one started: SIGTERM, after `within` seconds SIGKILL. No run file is touched."""
    for child in _children.values():
        child.terminate()
    end = time.monotonic() + within
    for pid, child in list(_children.items()):
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
        # The rest of its session, such as a driver's JVM; a child that is not waited for keeps its number.
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        child.wait()
        del _children[pid]


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM: a process must not exist without its run file."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: received.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for signum in received:
        signal.raise_signal(signum)


ALLOCATOR = {"_RJEM_MALLOC_CONF": "narenas:1,tcache_max:4096,dirty_decay_ms:1000,muzzy_decay_ms:0"}
"""Of delta-rs, whose threads otherwise keep what the largest commit needed, each in an arena of its own."""


def start_driver(settings: Settings, dataset: str, shared: str = "") -> RunFile:
    """Start a dataset's driver, or its place in a `shared` one, so that it dies with this process."""
    argv = tethered(member_command(settings, dataset, shared) if shared else driver_command(dataset))
    facts = {"driver": shared} if shared else {}
    return spawn(settings, stream_name(dataset), argv, CLONE, driver_environment(settings), facts)


def start_shared_driver(settings: Settings, name: str) -> RunFile:
    """Start the driver of several datasets so that it dies with this process; return its run file."""
    return spawn(settings, name, tethered(shared_command(name)), CLONE, driver_environment(settings))


def shared_command(name: str) -> list[str]:
    """Return the command line of the driver of several datasets."""
    return [sys.executable, "-m", "spark_jobs.jobs.shared_job", name]


def shared_driver(settings: Settings, dataset: str) -> str:
    """Return the process name of the driver that a dataset shares, "" for a driver of its own.

    The published release says it, before the first publication the folder.
    """
    publication = find_publication(settings, dataset)
    folder = released_folder(settings, dataset, publication.release) if publication else settings.datasets / dataset
    is_plain = (folder / PIPELINE).is_file()
    declared = load_pipeline(folder).driver if is_plain else ""
    name = declared or ("shared" if settings.shared_driver == "auto" else OWN_DRIVER)
    return "" if name == OWN_DRIVER else f"{DRIVER}{name}"


def member_command(settings: Settings, dataset: str, shared: str) -> list[str]:
    """Return the command line of a dataset's place in a shared driver."""
    channel = run_path(settings, shared).with_suffix(".sock")
    return [sys.executable, "-S", str(CLONE / "include" / "run" / "member.py"), str(channel), dataset]


def driver_command(dataset: str) -> list[str]:
    """Return the command line of a dataset's driver; its working folder is the clone."""
    return [sys.executable, "-m", "spark_jobs.jobs.stream_job", dataset]


def driver_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a driver: ours, with the absolute paths of the settings' folders."""
    folders = {"HEADRACE_STATE": str(settings.state), "HEADRACE_DATASETS": str(settings.datasets)}
    return {**ALLOCATOR, **os.environ, **folders, "PYTHONUNBUFFERED": "1"}


def start_blocker(settings: Settings, dataset: str) -> str:
    """Return why the dataset's driver must not be started, "" when it may be.

    A published release runs from its own snapshot, so an invalid folder does not prevent it.
    """
    try:
        if find_publication(settings, dataset) is None:
            validate_datasets(settings, [dataset]) if dataset in derived_names(settings) else declared_dataset(
                settings, dataset
            )
    except HeadraceError as error:
        return error.what
    return ""


# The guard needs a moment longer than the job that it ends.
GRACE, GUARD_WITHIN = 10.0, 15.0
# The command that started it removes the run file; a killed guard sends no more heartbeats.
ELSEWHERE_WITHIN = 45.0


def start_job(
    settings: Settings, name: str, module: Sequence[str], dataset: str, **streams: Any
) -> subprocess.Popen[bytes]:
    """Start a job (module and arguments) under a guard, write its run file, return its process; errors go to its log.

    Remaining processes of the same job, whose command is dead, are ended first.
    """
    end_job(settings, name)
    log, limit = log_path(settings, job_name(name)), settings.plan_timeout
    log.parent.mkdir(parents=True, exist_ok=True)
    command, record = [sys.executable, "-m", *module], run_path(settings, job_name(name))
    end_request_path(settings, name).unlink(missing_ok=True)
    job_end_file(settings, name).remove()
    limits = (str(os.getpid()), str(limit), str(GRACE))
    guard = [sys.executable, "-m", "include.ground.job_guard", "guard", *limits, str(record), *command]
    with log.open("ab") as errors, deferred_interrupts():
        how = {"stdin": subprocess.DEVNULL, "stderr": errors, **streams}
        process = subprocess.Popen(guard, cwd=CLONE, env=driver_environment(settings), start_new_session=True, **how)
        facts = {"dataset": dataset, "job": module[0].rpartition(".")[2], "limit_seconds": limit}
        try:
            write_run_file(settings, RunFile(job_name(name), process.pid, started_at(process.pid), command, facts))
        except OSError:
            process.terminate()
            process.wait()
            raise
    return process


def finish_job(settings: Settings, name: str, process: subprocess.Popen[Any]) -> None:
    """End the job if it still runs, and remove its run file."""
    if process.poll() is None:
        end_job(settings, name)
        process.wait()
    remove_run_file(settings, job_name(name))
    end_request_path(settings, name).unlink(missing_ok=True)


def refuse_running(settings: Settings, name: str) -> None:
    """Raise Transient when another command runs the job."""
    run = read_run_file(settings, job_name(name))
    if run is not None and run.is_job_alive():
        what = f"{name} runs already (pid {run.pid}); nothing was done"
        raise Transient(what, "headrace status, then try again", code="job-running", job=name, pid=run.pid)


def end_job(settings: Settings, name: str) -> bool:
    """End a job: SIGTERM, and after GRACE seconds SIGKILL to all its processes. Return whether one was running.

    The end of a job elsewhere is requested from its guard. Raises `process-elsewhere` when it does not respond.
    """
    run = read_run_file(settings, job_name(name))
    return run is not None and end_processes(settings, run)


def end_processes(settings: Settings, run: RunFile) -> bool:
    """End the processes of a job's run file; return whether there were any. Raises Terminal (`process-elsewhere`)."""
    if run.is_elsewhere():
        return end_elsewhere(settings, run)
    if not run.job_processes():
        return False
    run.terminate()
    run.wait_gone(GUARD_WITHIN)
    for process in run.job_processes():
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    return True


def end_elsewhere(settings: Settings, run: RunFile) -> bool:
    """Request the end of a job from its guard in another container or host; return whether it was running."""
    if not run.is_job_alive():
        return False
    request = end_request_path(settings, run.name.removeprefix(JOB))
    write_atomically(request, process_label())
    end = time.monotonic() + ELSEWHERE_WITHIN
    while run.is_job_alive():
        if time.monotonic() > end:
            raise process_elsewhere(run)
        time.sleep(0.2)
    # The request stays: a paused container sends no heartbeat, and its guard ends the job when it resumes.
    return True


def end_jobs(settings: Settings, report: Callable[[str], None], datasets: Collection[str] = ()) -> None:
    """End all jobs of the state folder (or of these datasets) and report each; what they committed stays."""
    for run in job_run_files(settings):
        if datasets and run.extra.get("dataset") not in datasets:
            continue
        report(f"{run.name}: stopping …")
        job_end_file(settings, run.name.removeprefix(JOB)).write(JobEnd("headrace down"))
        began = time.monotonic()
        if end_processes(settings, run):
            report(f"{run.name}: ended after {time.monotonic() - began:.1f} s; headrace plan apply continues it")
        remove_run_file(settings, run.name)
