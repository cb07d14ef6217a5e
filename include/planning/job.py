"""A plan's job as a process: started, heard, ended with the command that started it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from include.errors import Terminal, Transient
from include.places import log_path
from include.planning.plan import Plan
from include.settings import CLONE, Settings
from include.supervision.drivers import driver_environment

TOLD_TO_STOP = 3
Say = Callable[[Mapping[str, Any]], None]


class JobFailed(Terminal):
    """The plan's job ended without having done its work; what it had committed is used by the next attempt."""

    def __init__(self, plan: str, why: str, remedy: str) -> None:
        super().__init__(f"plan {plan}: {why}; readers see what they saw", remedy)
        self.plan = plan


class JobDied(Transient):
    """The plan's job ended without a word: killed, out of memory, or told to stop; the same command goes on with it."""

    def __init__(self, plan: str, how: str) -> None:
        super().__init__(f"plan {plan}: the job {how}; readers see what they saw", f"headrace plan apply {plan}")
        self.plan = plan


def run_job(settings: Settings, plan: Plan, job: Sequence[str], say: Say) -> Mapping[str, Any]:
    """Run a job, its module and arguments, and pass on what it says; return its last word; JobDied.

    It ends with this process.
    """
    argv = [sys.executable, "-m", *job]
    log = log_path(settings, f"plan:{plan.id}")
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
        for last in _said(process):
            say(last)
        code = process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    if code != 0 and "failed" not in last:
        raise JobDied(plan.id, "was told to stop" if code == TOLD_TO_STOP else f"ended with {code}, see {log}")
    return last


def _said(process: subprocess.Popen[str]) -> Iterator[Mapping[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            yield said
