"""State folders of earlier versions get today's file names, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from error_codes import raises
from typer.testing import CliRunner

from include.cli.main import app
from include.ground.errors import Terminal
from include.ground.paths import active_releases_path, desired_path, patch_in_progress_path, request_path, run_path
from include.ground.settings import CLONE, Settings
from include.state.migrate_state import migrate_state
from include.state.owner_requests import RequestKind, pending_request
from include.state.run_files import read_run_file, started_at
from include.state.streams import desired_stream, request_stream

WANTED = {"dataset": "flights", "by": "headrace up", "since": "2026-01-02T03:04:05+00:00", "wanted": True}
ORDER = {"plan": "p1", "kind": "correct", "release": "r1", "attempt": "a"}


@pytest.fixture
def old_layout(settings: Settings) -> Settings:
    """A state folder as the version before wrote it."""
    write(settings.state / "wanted" / "flights.json", WANTED)
    write(settings.state / "orders" / "flights.json", ORDER)
    write(settings.state / "warehouse" / "flights" / "live.json", ["r1", "r2"])
    write(settings.state / "warehouse" / "flights" / "r1" / "correcting.json", {"plan": "p1", "way": "forward"})
    return settings


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_old_layout_is_renamed_and_read(old_layout: Settings) -> None:
    assert migrate_state(old_layout) == [
        "wanted/flights.json → desired/flights.json",
        "orders/flights.json → requests/flights.json",
        "warehouse/flights/live.json → warehouse/flights/active_releases.json",
        "warehouse/flights/r1/correcting.json → warehouse/flights/r1/patch_in_progress.json",
    ]
    assert sorted(path.name for path in old_layout.state.iterdir()) == ["desired", "requests", "warehouse"]
    stream, request = desired_stream(old_layout, "flights"), pending_request(old_layout, "flights")
    assert stream is not None
    assert (stream.by, stream.desired) == ("headrace up", True)
    assert request is not None
    assert request.kind is RequestKind.APPLY_PATCH
    assert json.loads(active_releases_path(old_layout, "flights").read_text()) == ["r1", "r2"]
    assert json.loads(patch_in_progress_path(old_layout, "flights", "r1").read_text())["plan"] == "p1"
    assert migrate_state(old_layout) == []


def test_state_folder_that_does_not_exist_is_not_created(settings: Settings) -> None:
    assert migrate_state(settings) == []
    assert not settings.state.exists()


def test_file_with_the_new_name_is_not_overwritten(old_layout: Settings) -> None:
    newer = request_stream(old_layout, "flights", "airflow")
    assert not [line for line in migrate_state(old_layout) if "wanted" in line]
    assert desired_stream(old_layout, "flights") == newer
    assert not (old_layout.state / "wanted").exists()


def test_two_migrations_at_once_rename_each_file_once(settings: Settings) -> None:
    for number in range(200):
        write(settings.state / "wanted" / f"d{number}.json", WANTED)
    with ThreadPoolExecutor(4) as pool:
        done = [line for lines in pool.map(lambda _: migrate_state(settings), range(4)) for line in lines]
    assert len(done) == len(set(done)) == 200
    assert len(list(desired_path(settings, "x").parent.iterdir())) == 200
    assert not (settings.state / "wanted").exists()


def test_running_process_of_an_earlier_version_stops_the_migration(old_layout: Settings) -> None:
    alive = {"name": "runner", "pid": os.getpid(), "started": started_at(os.getpid()), "argv": [], "settings": {"A": 1}}
    write(run_path(old_layout, "runner"), alive)
    run = read_run_file(old_layout, "runner")
    assert run is not None
    assert run.extra == {"settings": {"A": 1}}
    with raises(Terminal, "earlier-version-running", match="headrace down"):
        migrate_state(old_layout)
    assert not request_path(old_layout, "flights").exists()


def test_plan_command_migrates_the_state_first_and_reports_it(old_layout: Settings) -> None:
    command = [sys.executable, "-m", "include.cli.main", "plan", "list"]
    environ = {**os.environ, "HEADRACE_STATE": str(old_layout.state), "HEADRACE_DATASETS": str(old_layout.datasets)}
    done = subprocess.run(command, cwd=CLONE, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "state: renamed wanted/flights.json → desired/flights.json" in done.stderr
    assert "renamed" not in done.stdout
    assert CliRunner().invoke(app, ["plan", "--help"]).exit_code == 0
