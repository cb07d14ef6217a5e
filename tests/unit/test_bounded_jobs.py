"""A plan's job as a process: its reports, and the retry of one that died without a report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from include.errors import Transient
from include.planning import bounded_jobs
from include.planning.bounded_jobs import JobDied, run_job
from include.planning.plan import REPLAY, Plan, Prediction
from include.settings import Settings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLAN = Plan("replay-flights-1", REPLAY, "flights", "a", "a", NOON, "ann", 0.0, [], Prediction(1, 2, 3, 4, 5.0, 6.0))


def ran(settings: Settings, monkeypatch: pytest.MonkeyPatch, script: str) -> tuple[list[Any], Mapping[str, Any]]:
    """Run a script as the plan's job; return all its reports, and the last one."""
    start, lines = bounded_jobs.subprocess.Popen, list[Any]()

    def instead(argv: list[str], **how: Any) -> Any:
        return start([sys.executable, "-c", script], **how)

    monkeypatch.setattr(bounded_jobs.subprocess, "Popen", instead)
    return lines, run_job(settings, PLAN.id, ("spark_jobs.jobs.slice_job", "flights", PLAN.id), lines.append)


def test_reports_of_the_job_are_passed_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('{\"done\": 1}'); print('no JSON'); print('[1]'); print('{\"built\": {}}')"
    assert ran(settings, monkeypatch, script) == ([{"done": 1}, {"built": {}}], {"built": {}})


def test_reported_failure_is_the_result(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'print(\'{"failed": "no space"}\'); raise SystemExit(1)'
    assert ran(settings, monkeypatch, script)[1] == {"failed": "no space"}


@pytest.mark.parametrize(
    ("script", "how"),
    [("import os; os.kill(os.getpid(), 9)", "ended with -9"), ("raise SystemExit(3)", "was stopped")],
)
def test_job_that_died_without_a_report_may_be_retried(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, script: str, how: str
) -> None:
    with pytest.raises(JobDied, match=how) as died:
        ran(settings, monkeypatch, script)
    assert isinstance(died.value, Transient)
