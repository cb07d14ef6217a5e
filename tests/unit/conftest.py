"""A runner with stand-ins for broker and drivers, and the command line in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from stand_ins import StandIns

from include.ground.settings import Settings
from include.run import runner


@pytest.fixture
def two_datasets(tmp_path: Path) -> Settings:
    """Settings with two datasets; their folders hold no valid declarations."""
    datasets = tmp_path / "data sets"
    for name in ("flights", "weather"):
        (datasets / name).mkdir(parents=True)
        (datasets / name / "pipeline.yaml").touch()
    return Settings(state=tmp_path / "a state, with spaces", datasets=datasets)


@pytest.fixture
def stand_ins(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A runner in this process, with stand-ins."""
    found = StandIns(two_datasets)
    found.stand_in(monkeypatch)
    monkeypatch.setattr(runner, "start_blocker", lambda *_: "")
    yield found
    found.end()


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Run commands in this process."""
    return CommandLine(monkeypatch, capfd)
