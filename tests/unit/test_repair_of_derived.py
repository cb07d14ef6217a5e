"""`headrace repair` of a derived dataset says what to do, since there is no checkpoint to repair."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from include.ground.settings import Settings
from include.state.process_states import stream_name
from include.state.streams import DriverStatus, status_file
from spark_jobs.jobs import repair_job
from spark_jobs.jobs.repair_job import repair


def test_halted_derived_dataset_is_explained(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_job, "derived_names", lambda _: ["hours"])
    status_file(settings, stream_name("hours")).write(DriverStatus(state="halted", reason="no column huge"))
    lines: list[str] = []
    assert repair(settings, "hours", now=datetime.now(UTC), confirm=lambda: False, print_line=lines.append)
    assert lines[0] == "hours: halted: no column huge"
    assert "headrace plan rollback PLAN" in lines[1]
    assert "headrace release run --dataset hours" in lines[1]
    assert lines[2].endswith("nothing was changed")
