"""A plan's job as a process: its reports, its end in every way, and that nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from error_codes import raises
from plan_samples import TO_APPLIED, plan_at

from include.change.jobs import JobDied, JobTimedOut, end_plan_job, run_job
from include.ground.errors import Terminal, Transient
from include.ground.settings import CLONE, Settings
from include.observe.processes import observe_jobs
from include.plans.plan import Stage
from include.run import child_process as job_process
from include.run.child_process import refuse_running
from include.run.start_stop import down
from include.state.process_states import ProcessState, job_end_file
from include.state.run_files import job_run_files

NAME = "replay-flights-1"
GRACE = 0.4
# A child in a process group of its own, as PySpark's workers are; neither it nor the job ends by SIGTERM.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('{}', flush=True)"
subprocess.Popen([sys.executable, "-c", deaf + "\\nwhile True: time.sleep(60)"], process_group=0)
while True: time.sleep(60)
"""
RUN = "from include.ground.settings import load_settings; from include.change.jobs import run_job\n"
RUN += f"from include.run import child_process; child_process.GRACE = {GRACE}\n"
RUN += f"run_job(load_settings(), {NAME!r}, 'flights', ('some_job',), lambda _: None)"


@pytest.fixture
def job(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the job's script; the grace period is short, also in the guard."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{CLONE}")
    for name in ("state", "datasets"):
        monkeypatch.setenv(f"HEADRACE_{name.upper()}", str(getattr(settings, name)))
    monkeypatch.setattr(job_process, "GRACE", GRACE)
    return lambda script: (tmp_path / "some_job.py").write_text(script) and None


def ran(settings: Settings) -> tuple[list[Any], Mapping[str, Any]]:
    """Run the job; return all its reports, and the last one."""
    lines = list[Any]()
    return lines, run_job(settings, NAME, "flights", ("some_job",), lines.append)


@pytest.fixture
def running(settings: Settings, job: Callable[[str], None]) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose job and its worker never end, and ignore SIGTERM."""
    job(STUBBORN)
    command = subprocess.Popen([sys.executable, "-c", RUN], cwd=CLONE)
    end = time.monotonic() + 60
    try:
        while len(processes(settings)) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        assert len(processes(settings)) == 3
        yield command
    finally:
        for run in job_run_files(settings):
            job_process.end_processes(settings, run)
        command.kill()
        command.wait()


def processes(settings: Settings) -> list[psutil.Process]:
    """Return the processes of all jobs."""
    return [process for run in job_run_files(settings) for process in run.job_processes()]


def assert_gone(processes: list[psutil.Process], within: float = GRACE + 5) -> None:
    end = time.monotonic() + within
    while left := [process for process in processes if is_running(process)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)


def is_running(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def test_reports_of_the_job_are_passed_on(settings: Settings, job: Callable[[str], None]) -> None:
    job("print('{\"done\": 1}'); print('no JSON'); print('[1]'); print('{\"built\": {}}')")
    assert ran(settings) == ([{"done": 1}, {"built": {}}], {"built": {}})
    assert job_run_files(settings) == []


def test_reported_failure_is_the_result(settings: Settings, job: Callable[[str], None]) -> None:
    job('print(\'{"failed": "no space"}\'); raise SystemExit(1)')
    assert ran(settings)[1] == {"failed": "no space"}


@pytest.mark.parametrize(
    ("script", "how"),
    [("import os; os.kill(os.getpid(), 9)", "ended with -9"), ("raise SystemExit(3)", "was stopped")],
)
def test_job_that_died_without_a_report_may_be_retried(
    settings: Settings, job: Callable[[str], None], script: str, how: str
) -> None:
    job(script)
    with pytest.raises(JobDied, match=how) as died:
        ran(settings)
    assert isinstance(died.value, Transient)


def test_job_is_ended_at_its_time_limit(settings: Settings, job: Callable[[str], None]) -> None:
    job(STUBBORN)
    limited = settings.model_copy(update={"plan_timeout": 0.5})
    with pytest.raises(JobTimedOut, match=rf"{NAME}: failed: timed out after 0.5 s") as error:
        ran(limited)
    assert isinstance(error.value, Terminal)
    assert f"headrace plan apply {NAME} continues it" in error.value.remedy
    assert processes(settings) == job_run_files(settings) == []


def test_running_job_is_in_status_until_it_is_cancelled(settings: Settings, running: subprocess.Popen[bytes]) -> None:
    (status,), before = observe_jobs(settings), processes(settings)
    assert (status.name, status.state, status.facts["dataset"]) == (f"plan:{NAME}", ProcessState.RUNNING, "flights")
    assert status.facts["limit_seconds"] == settings.plan_timeout
    assert "some_job since" in status.detail
    with raises(Transient, "job-running") as refused:
        refuse_running(settings, NAME)
    assert refused.value.facts["job"] == NAME
    end_plan_job(settings, NAME, "ben")
    assert_gone(before)
    assert running.wait(10) == 1
    assert observe_jobs(settings) == []


@pytest.mark.parametrize(
    ("how", "error", "words", "remedy"),
    [
        ("cancel", Terminal, "was cancelled by ben; what readers see is unchanged", "headrace plan show {}"),
        ("down", JobDied, "was ended by headrace down; what readers see is unchanged", "headrace plan apply {}"),
        ("kill", JobDied, "ended with -9", "headrace plan apply {}"),
    ],
)
def test_who_ended_a_job_is_named_and_the_next_command_is_that_of_the_plan(
    settings: Settings, job: Callable[[str], None], how: str, error: type[Exception], words: str, remedy: str
) -> None:
    plan = plan_at(settings).plan.id
    job("import time; print('{\"at\": 1}', flush=True)\nwhile True: time.sleep(60)")

    def end(_: Mapping[str, Any]) -> None:
        ended = {
            "cancel": lambda: end_plan_job(settings, plan, "ben"),
            "down": lambda: job_process.end_jobs(settings, lambda _: None),
            "kill": lambda: [process.kill() for process in processes(settings)],
        }
        ended[how]()

    with pytest.raises(error, match=words) as found:
        run_job(settings, plan, "flights", ("some_job",), end)
    assert getattr(found.value, "remedy", "") == remedy.format(plan)
    assert job_end_file(settings, plan).read() is None
    job("raise SystemExit(9)")
    with pytest.raises(JobDied, match="ended with 9"):
        run_job(settings, plan, "flights", ("some_job",), print)


@pytest.mark.parametrize(
    ("stages", "command"),
    [
        (TO_APPLIED[:3], "apply"),
        (TO_APPLIED, "rollback"),
        ((*TO_APPLIED, Stage.ROLLED_BACK), "apply"),
        ((*TO_APPLIED[:2], Stage.REJECTED), "show"),
        ((*TO_APPLIED, Stage.RETIRED), "show"),
        ((Stage.CANCELLED,), "show"),
    ],
)
def test_next_command_after_a_death_is_that_of_the_stage(
    settings: Settings, job: Callable[[str], None], stages: Sequence[Stage], command: str
) -> None:
    plan = plan_at(settings, *stages).plan.id
    job("raise SystemExit(9)")
    with pytest.raises(JobDied) as died:
        run_job(settings, plan, "flights", ("some_job",), print)
    assert died.value.remedy == f"headrace plan {command} {plan}"


@pytest.mark.parametrize("datasets", [(), ("flights",)])
def test_down_ends_jobs(settings: Settings, running: subprocess.Popen[bytes], datasets: tuple[str, ...]) -> None:
    before, lines = processes(settings), list[str]()
    down(settings, lines.append, ["weather"])
    assert processes(settings) == before, "the job belongs to another dataset"
    assert not any(line.startswith("plan:") for line in lines)
    down(settings, lines.append, datasets)
    assert_gone(before)
    assert [line for line in lines if f"plan:{NAME}: ended after" in line]
    assert job_run_files(settings) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_job_ends_with_its_command(
    settings: Settings, running: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    before = processes(settings)
    running.send_signal(number)
    assert_gone(before)
    assert observe_jobs(settings) == []


def test_processes_of_a_killed_guard_are_ended_by_the_next_start(
    settings: Settings, running: subprocess.Popen[bytes], job: Callable[[str], None]
) -> None:
    guard, *_ = before = processes(settings)
    guard.kill()
    assert_gone(before[:2])
    (status,) = observe_jobs(settings)
    assert (status.state, status.pid) == (ProcessState.UNKNOWN, None)
    running.kill()
    job("pass")
    ran(settings)
    assert_gone(before)
