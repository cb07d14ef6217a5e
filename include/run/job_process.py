"""Bounded jobs as processes: each has a run file, a time limit, and ends with the command that started it.

Reads / Writes: run files `plan-<job>.json`; requests to end a job elsewhere, `plan-<job>.end`; a job's log.
Guarantee: when a job ends, for whatever reason, none of its processes is left (include/ground/job_guard.py).
After a crash: the kernel signals the guard, which ends the job. Its run file stays until the next start or `down`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import psutil

from include.ground.durable_files import write_atomically
from include.ground.errors import Transient
from include.ground.paths import log_path, run_path
from include.ground.process_place import process_label
from include.ground.settings import CLONE, Settings
from include.run.child_process import deferred_interrupts
from include.run.driver_process import driver_environment
from include.state.job_ends import JobEnd, forget_job_end, note_job_end
from include.state.process_states import JOB, job_name
from include.state.run_files import (
    ProcessElsewhere,
    RunFile,
    end_request_path,
    is_elsewhere,
    job_processes,
    job_run_files,
    job_runs,
    read_run_file,
    remove_run_file,
    started_at,
    terminate,
    wait_gone,
    write_run_file,
)

# The guard needs a moment longer than the job that it ends.
GRACE, GUARD_WITHIN = 10.0, 15.0
# The command that started it removes the run file; a killed guard sends no more heartbeats.
ELSEWHERE_WITHIN = 45.0


class JobRunning(Transient):
    """Another command runs the same job."""

    def __init__(self, job: str, pid: int) -> None:
        super().__init__(f"{job} runs already (pid {pid}); nothing was done", "headrace status, then try again")
        self.job, self.pid = job, pid


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
    forget_job_end(settings, name)
    limits = (str(os.getpid()), str(limit), str(GRACE))
    guard = [sys.executable, "-m", "include.ground.job_guard", *limits, str(record), *command]
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
    """Raise JobRunning when the job runs."""
    run = read_run_file(settings, job_name(name))
    if run is not None and job_runs(run):
        raise JobRunning(name, run.pid)


def end_job(settings: Settings, name: str) -> bool:
    """End a job: SIGTERM, and after GRACE seconds SIGKILL to all its processes. Return whether one was running.

    The end of a job elsewhere is requested from its guard. Raises ProcessElsewhere when it does not respond.
    """
    run = read_run_file(settings, job_name(name))
    return run is not None and end_processes(settings, run)


def end_processes(settings: Settings, run: RunFile) -> bool:
    """End the processes of a job's run file; return whether there were any. Raises ProcessElsewhere."""
    if is_elsewhere(run):
        return end_elsewhere(settings, run)
    if not job_processes(run):
        return False
    terminate(run)
    wait_gone(run, GUARD_WITHIN)
    for process in job_processes(run):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    return True


def end_elsewhere(settings: Settings, run: RunFile) -> bool:
    """Request the end of a job from its guard in another container or host; return whether it was running."""
    if not job_runs(run):
        return False
    request = end_request_path(settings, run.name.removeprefix(JOB))
    write_atomically(request, process_label())
    end = time.monotonic() + ELSEWHERE_WITHIN
    while job_runs(run):
        if time.monotonic() > end:
            raise ProcessElsewhere(run)
        time.sleep(0.2)
    # The request stays: a paused container sends no heartbeat, and its guard ends the job when it resumes.
    return True


def end_jobs(settings: Settings, report: Callable[[str], None], datasets: Collection[str] = ()) -> None:
    """End all jobs of the state folder (or of these datasets) and report each; what they committed stays."""
    for run in job_run_files(settings):
        if datasets and run.extra.get("dataset") not in datasets:
            continue
        report(f"{run.name}: stopping …")
        note_job_end(settings, run.name.removeprefix(JOB), JobEnd("headrace down"))
        began = time.monotonic()
        if end_processes(settings, run):
            report(f"{run.name}: ended after {time.monotonic() - began:.1f} s; headrace plan apply continues it")
        remove_run_file(settings, run.name)
