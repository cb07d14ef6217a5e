"""A bounded job as a process that ends with the command that started it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from include.errors import Terminal, Transient
from include.paths import log_path
from include.process_control.driver_process import driver_environment
from include.settings import CLONE, Settings

STOPPED = 3
Reporter = Callable[[Mapping[str, Any]], None]


class JobFailed(Terminal):
    """A job ended without completing its work; the next attempt uses what it has committed."""

    def __init__(self, job: str, why: str, remedy: str) -> None:
        super().__init__(f"{job}: {why}; what readers see is unchanged", remedy)
        self.job = job


class JobDied(Transient):
    """A job ended without a reason: killed, out of memory, or stopped; the same command continues it."""

    def __init__(self, job: str, how: str, again: str) -> None:
        super().__init__(f"{job}: the job {how}; what readers see is unchanged", again)
        self.job = job


def run_job(settings: Settings, name: str, job: Sequence[str], report: Reporter, again: str = "") -> Mapping[str, Any]:
    """Run a job (module and arguments), pass each JSON line to `report` and return the last one. Raises JobDied.

    `name` is its plan or its task; `again` the command that continues it. It ends with this process.
    """
    argv = [sys.executable, "-m", *job]
    log = log_path(settings, f"plan:{name}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            argv,
            cwd=CLONE,
            env=driver_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    last: Mapping[str, Any] = {}
    try:
        for last in _reported(process):
            report(last)
        code = process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    if code != 0 and "failed" not in last:
        how = "was stopped" if code == STOPPED else f"ended with {code}, see {log}"
        raise JobDied(name, how, again or f"headrace plan apply {name}")
    return last


def _reported(process: subprocess.Popen[str]) -> Iterator[Mapping[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        if isinstance(facts, dict):
            yield facts
