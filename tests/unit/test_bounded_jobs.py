"""A plan's job as a process: what it says, and that one which died without a word may be tried again."""

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
    """Run a script as the plan's job; return all it said, and its last word."""
    start, said = bounded_jobs.subprocess.Popen, list[Any]()

    def instead(argv: list[str], **how: Any) -> Any:
        return start([sys.executable, "-c", script], **how)

    monkeypatch.setattr(bounded_jobs.subprocess, "Popen", instead)
    return said, run_job(settings, PLAN.id, ("spark_jobs.jobs.slice_job", "flights", PLAN.id), said.append)


def test_what_it_says_is_passed_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('{\"done\": 1}'); print('no JSON'); print('[1]'); print('{\"built\": {}}')"
    assert ran(settings, monkeypatch, script) == ([{"done": 1}, {"built": {}}], {"built": {}})


def test_a_reason_that_it_gave_is_its_last_word(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'print(\'{"failed": "no space"}\'); raise SystemExit(1)'
    assert ran(settings, monkeypatch, script)[1] == {"failed": "no space"}


@pytest.mark.parametrize(
    ("script", "how"),
    [("import os; os.kill(os.getpid(), 9)", "ended with -9"), ("raise SystemExit(3)", "was told to stop")],
)
def test_one_that_died_without_a_word_may_be_tried_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, script: str, how: str
) -> None:
    with pytest.raises(JobDied, match=how) as died:
        ran(settings, monkeypatch, script)
    assert isinstance(died.value, Transient)
