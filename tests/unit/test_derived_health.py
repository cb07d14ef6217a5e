"""Health of a derived dataset's driver, as Airflow's watch and its log see it."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.audit.run import AuditOutcome, outcome_file
from include.declare.derived_dataset import snapshot_derived
from include.ground.paths import status_path
from include.ground.settings import CLONE, Settings
from include.observe.metrics import HeadraceCollector
from include.read.publication import Publication, SourceVersion, TableVersion, publish
from include.serve.health import (
    FAILED,
    StreamHealth,
    current_breaches,
    end_of_watch,
    health_line,
    stream_health,
)
from include.state.process_states import ProcessState
from include.state.run_files import RunFile, started_at, write_run_file
from include.state.streams import request_stream

NAME = "weather_delays"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Both sources are published; the derived one has used batch 3 of flights, and none of weather."""
    shutil.copytree(CLONE / "include" / "datasets", tmp_path / "datasets")
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    for source in ("flights", "weather"):
        tables = {f"silver.{source}": TableVersion(f"{source}/r/silver", 9)}
        publish(settings, Publication(source, "r", 5, NOON, {0: 9}, tables))
    used = {"silver.flights": SourceVersion("flights/r/silver", 7, "r", 3, "0" * 64)}
    publish(settings, Publication(NAME, snapshot_derived(settings, NAME).release, 4, NOON, {}, {}, used))
    return settings


def reporting(settings: Settings, **fields: object) -> StreamHealth:
    """Let this process be the driver, with this status."""
    process = f"stream:{NAME}"
    write_run_file(settings, RunFile(process, os.getpid(), started_at(os.getpid()), ["driver"]))
    status = {"state": "running", "pid": os.getpid(), "at": datetime.now(UTC).isoformat()} | fields
    status_path(settings, process).write_text(json.dumps(status))
    return stream_health(settings, NAME)


def test_health_of_a_derived_driver_names_the_batches_of_its_sources_that_it_has_not_used(settings: Settings) -> None:
    request_stream(settings, NAME, f"stream__{NAME}/manual")
    found = reporting(settings, lag_seconds=2.5)
    assert (found.desired, found.state, found.batch, found.lag_seconds) == (True, ProcessState.RUNNING, 4, 2.5)
    assert found.sources_behind == {"silver.flights": 2, "silver.weather": None}
    line = f"{NAME}: running, batch 4, 2 batches of silver.flights, all batches of silver.weather / 2.5 s behind"
    assert health_line(found) == line


def test_a_derived_driver_that_is_behind_breaches_its_level_and_one_that_was_given_up_ends_the_watch(
    settings: Settings,
) -> None:
    request_stream(settings, NAME, f"stream__{NAME}/manual")
    late = reporting(settings, lag_seconds=90.0)
    assert end_of_watch(late) is None
    assert "is 90 s behind, 60 are allowed" in current_breaches(late, 60)["lag"]
    ended = end_of_watch(reporting(settings, state="failed", reason="its query is wrong"))
    assert ended is not None
    assert (ended.outcome, "its query is wrong" in ended.why) == (FAILED, True)


def test_health_of_an_unreadable_declaration_is_unknown_with_a_reason(settings: Settings) -> None:
    (settings.datasets / NAME / "derived.yaml").write_text("sources: [")
    found = stream_health(settings, NAME)
    assert (found.batch, found.sources_behind, found.lag_seconds) == (None, None, None)
    assert "is not YAML" in found.notes[0]


def test_metrics_say_that_the_audit_of_a_derived_dataset_found_something(settings: Settings) -> None:
    outcome = AuditOutcome(NAME, NOON, "r", 4, balanced=False, findings=2, unchecked=0, first="2 rows are missing")
    outcome_file(settings, NAME).write(outcome)
    samples = [sample for family in HeadraceCollector(settings).collect() for sample in family.samples]
    balanced = [each.value for each in samples if each.name == "headrace_audit_balanced"]
    assert balanced == [0.0]
