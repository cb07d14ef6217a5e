"""Small files beside a release's tables, as earlier versions wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.paths import active_releases_path, patch_in_progress_path
from include.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.release_files import PatchInProgress, active_releases_file, patch_in_progress_file
from spark_jobs.engine.active_releases import recorded_releases


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_active_releases_of_an_earlier_version_are_read(settings: Settings) -> None:
    assert recorded_releases(settings, "flights") == []
    path = write(active_releases_path(settings, "flights"), '["r2", "r1"]')
    assert recorded_releases(settings, "flights") == ["r2", "r1"]
    path.unlink()
    active_releases_file(settings, "flights").write(["r3"])
    assert recorded_releases(settings, "flights") == ["r3"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null"])
def test_driver_with_unreadable_active_releases_advances_no_shadow(
    settings: Settings, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(active_releases_path(settings, "flights"), text)
    assert recorded_releases(settings, "flights") == []
    assert str(path) in "".join(capsys.readouterr())
    with pytest.raises(StateFileUnreadable):
        active_releases_file(settings, "flights").read()


def test_active_releases_on_a_failing_disk_are_not_forgotten(settings: Settings) -> None:
    active_releases_path(settings, "flights").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        recorded_releases(settings, "flights")


def test_patch_in_progress_of_an_earlier_version_is_read(settings: Settings) -> None:
    write(patch_in_progress_path(settings, "flights", "r1"), '{"plan": "replay-flights-1", "way": 2}')
    assert patch_in_progress_file(settings, "flights", "r1").read() == PatchInProgress("replay-flights-1", 2)


def test_unreadable_patch_in_progress_is_named(settings: Settings) -> None:
    write(patch_in_progress_path(settings, "flights", "r1"), '{"plan": "replay-flights-1"}')
    with pytest.raises(StateFileUnreadable, match="key way: .*no run begins") as unreadable:
        patch_in_progress_file(settings, "flights", "r1").read()
    assert "headrace plan list" in unreadable.value.remedy
