"""Trimming of logs: the end stays, the writer continues, and an open plan keeps its log."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from plan_samples import publication
from typer.testing import CliRunner

from include.cli.main import app
from include.declare.dataset import snapshot_dataset
from include.declare.pipeline import Retention
from include.ground.paths import airflow_path, log_path, snapshots_path
from include.ground.settings import CLONE, Settings, load_settings
from include.plans.journal import record_result, save_plan
from include.plans.plan import RELEASE, Cancelled, Plan, Prediction
from include.read.publication import publish
from include.run import log_trimming, runner
from include.run.log_trimming import TrimResult, trim_logs
from include.run.reconcile import Policy
from include.run.runner import Runner
from include.run.runner_lease import sole_runner

REMOVE_AFTER = Retention().logs
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def written(path: Path, age: timedelta, text: str = "started\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    then = (NOW - age).timestamp()
    os.utime(path, (then, then))
    return path


def test_long_log_is_trimmed_while_its_writer_continues(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_trimming, "TRIM_ABOVE", 10)
    monkeypatch.setattr(log_trimming, "TRIM_TO", 6)
    log, short = log_path(settings, "stream:flights"), written(log_path(settings, "broker"), REMOVE_AFTER / 2)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"first\nlast.\n")
        assert trim_logs(settings, NOW) == TrimResult(trimmed=1, removed=0)
        writer.write(b"more\n")
    assert log.read_bytes() == b"more\n"
    assert log.with_name(f"{log.name}.1").read_bytes() == b"last.\n"
    assert short.read_bytes()


def test_old_log_of_a_process_that_may_write_again_is_emptied(settings: Settings) -> None:
    log = written(log_path(settings, "stream:flights"), REMOVE_AFTER * 2)
    rotated = written(log.with_name(f"{log.name}.1"), REMOVE_AFTER * 2)
    with log.open("ab", buffering=0) as writer:
        os.utime(log, (0, 0))
        assert trim_logs(settings, NOW) == TrimResult(trimmed=0, removed=2)
        assert log.read_bytes() == b""
        writer.write(b"more\n")
    assert log.read_bytes() == b"more\n"
    assert not rotated.exists()
    os.truncate(log, 0)
    os.utime(log, (0, 0))
    assert trim_logs(settings, NOW) == TrimResult(0, 0), "an empty log is left alone"


def test_each_dataset_declares_the_age_of_its_logs(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    for dataset, retention in (("flights", "2 days"), ("weather", "90 days")):
        shutil.copytree(CLONE / "include/datasets" / dataset, settings.datasets / dataset)
        with (settings.datasets / dataset / "pipeline.yaml").open("a") as file:
            file.write(f"\nretention: {{logs: {retention}}}\n")
        publish(settings, replace(publication(snapshot_dataset(settings, dataset).release), dataset=dataset))
    names = ("stream:flights", "plan:replay-flights-1", "stream:weather", "plan:release-weather-12", "broker")
    logs = {name: written(log_path(settings, name), timedelta(days=60)) for name in names}
    trim_logs(settings, NOW)
    assert [name for name, log in logs.items() if log.exists() and log.read_bytes()] == [*names[2:]]
    snapshots_path(settings, "weather").rename(tmp_path / "lost")
    trim_logs(settings, NOW + timedelta(days=1000))
    assert [name for name, log in logs.items() if log.exists() and log.read_bytes()] == [*names[2:]]


def test_runner_trims_logs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "FIRST_TRIM", 0.0)
    log, stop = written(log_path(settings, "stream:flights"), REMOVE_AFTER * 2), threading.Event()
    stop.set()
    with sole_runner(settings) as holds:
        runner.supervise(Runner(settings, Policy(), print), holds, stop)
    assert log.read_bytes() == b""


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
