"""Trimming of logs: the end stays, the writer continues, and an open plan keeps its log."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.main import app
from include.maintenance import log_trimming
from include.maintenance.log_trimming import REMOVE_AFTER, TrimResult, trim_logs
from include.paths import airflow_path, log_path
from include.plans.plan import RELEASE, Plan, Prediction
from include.plans.plan_journal import record_result, save_plan
from include.plans.stage_results import Cancelled
from include.settings import Settings, load_settings

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def written(path: Path, age: timedelta, text: str = "said\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    then = (NOW - age).timestamp()
    os.utime(path, (then, then))
    return path


def test_long_log_is_trimmed_while_its_writer_continues(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_trimming, "TRIM_ABOVE", 10)
    monkeypatch.setattr(log_trimming, "TRIM_TO", 6)
    log, short = log_path(settings, "stream:flights"), written(log_path(settings, "broker"), REMOVE_AFTER * 2)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"first\nlast.\n")
        assert trim_logs(settings, NOW) == TrimResult(trimmed=1, removed=0)
        writer.write(b"more\n")
    assert log.read_bytes() == b"more\n"
    assert log.with_name(f"{log.name}.1").read_bytes() == b"last.\n"
    assert short.exists(), "the log of a process that may run is never removed"


def test_old_logs_of_closed_plans_and_tasks_are_removed(settings: Settings) -> None:
    size = Prediction(1, 1, 1, 1, 1, 1)
    plans = [Plan(f"release-flights-{n}", RELEASE, "flights", "a", "b", NOW, "ann", 0, [], size) for n in (1, 2)]
    for plan in plans:
        save_plan(settings, plan)
    record_result(settings, plans[0].id, Cancelled(), "ann")
    closed, open_ = (written(log_path(settings, f"plan:{plan.id}"), REMOVE_AFTER * 2) for plan in plans)
    task = written(airflow_path(settings) / "logs" / "dag_id=audit" / "run_id=1" / "attempt=1.log", REMOVE_AFTER * 2)
    young = written(airflow_path(settings) / "logs" / "dag_id=audit" / "run_id=2" / "attempt=1.log", REMOVE_AFTER / 2)
    assert trim_logs(settings, NOW) == TrimResult(trimmed=0, removed=2)
    assert [path.exists() for path in (closed, task, open_, young)] == [False, False, True, True]


def test_missing_logs_are_nothing_to_trim(settings: Settings) -> None:
    assert trim_logs(settings, NOW) == TrimResult(0, 0)


def test_maintain_command_without_a_publication_succeeds(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    load_settings.cache_clear()
    done = CliRunner().invoke(app, ["maintain", "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (
        0, {"tables": [], "removed": [], "logs": {"trimmed": 0, "removed": 0}, "left_alone": {}}
    )  # fmt: skip
    plain = CliRunner().invoke(app, ["maintain"])
    assert (plain.exit_code, "logs: 0 trimmed, 0 removed" in plain.stdout) == (0, True)
    load_settings.cache_clear()
