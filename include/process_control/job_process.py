"""Bounded jobs as processes: each has a run file, a time limit, and ends with the command that started it.

Reads / Writes: run files `plan-<job>.json`; a job's log.
Guarantee: when a job ends, for whatever reason, none of its processes is left (include/host/job_guard.py).
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

from include.errors import Transient
from include.paths import log_path
from include.process_control.child_process import deferred_interrupts
from include.process_control.driver_process import driver_environment
from include.settings import CLONE, Settings
from include.state.process_states import job_name
from include.state.run_files import (
    RunFile,
    job_processes,
    job_run_files,
    read_run_file,
    remove_run_file,
    started_at,
    terminate,
    wait_gone,
    write_run_file,
)

# The guard needs a moment longer than the job that it ends.
GRACE, GUARD_WITHIN = 10.0, 15.0


class JobRunning(Transient):
    """Another command runs the same job."""

    def __init__(self, job: str, pid: int) -> None:
        super().__init__(f"{job} runs already (pid {pid}); nothing was done", "headrace status, then try again")
        self.job, self.pid = job, pid


def start_job(
    settings: Settings, name: str, module: Sequence[str], dataset: str, **streams: Any
) -> subprocess.Popen[bytes]:
    """Start a job (module and arguments) under a guard and write its run file; errors go to its log.

    What a dead command left of the same job is ended first.
    """
    end_job(settings, name)
    log, limit = log_path(settings, job_name(name)), settings.plan_timeout
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", *module]
    guard = [sys.executable, "-m", "include.host.job_guard", str(os.getpid()), str(limit), str(GRACE), *command]
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


def refuse_running(settings: Settings, name: str) -> None:
    """Raise JobRunning when the job runs."""
    run = read_run_file(settings, job_name(name))
    if run is not None and job_processes(run):
        raise JobRunning(name, run.pid)


def end_job(settings: Settings, name: str) -> bool:
    """End a job: SIGTERM, and after GRACE seconds SIGKILL to all its processes. Return whether one was running."""
    run = read_run_file(settings, job_name(name))
    return run is not None and end_processes(run)


def end_processes(run: RunFile) -> bool:
    """End the processes of a job's run file; return whether there were any."""
    if not job_processes(run):
        return False
    terminate(run)
    wait_gone(run, GUARD_WITHIN)
    for process in job_processes(run):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    return True


def end_jobs(settings: Settings, report: Callable[[str], None], datasets: Collection[str] = ()) -> None:
    """End all jobs of the state folder (or of these datasets) and report each; what they committed stays."""
    for run in job_run_files(settings):
        if datasets and run.extra.get("dataset") not in datasets:
            continue
        report(f"{run.name}: stopping …")
        began = time.monotonic()
        if end_processes(run):
            report(f"{run.name}: ended after {time.monotonic() - began:.1f} s; headrace plan apply continues it")
        remove_run_file(settings, run.name)
