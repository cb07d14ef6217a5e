"""State files of a release, as earlier versions wrote them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from ledgered_stream import Stream, commit

from include.declare.history_slice import Slice, Span
from include.ground.errors import Terminal
from include.ground.paths import active_releases_path, patch_in_progress_path, plan_path, silver_path, verified_path
from include.ground.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.release_files import (
    PatchDirection,
    PatchInProgress,
    PlanBuild,
    VerifiedRange,
    active_releases_file,
    patch_in_progress_file,
    plan_build_file,
    planned_slice_file,
    verified_file,
)
from spark_jobs.stream.active_releases import recorded_releases
from spark_jobs.stream.recovery import last_active_release

REVERT = PatchDirection.REVERT


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_data_files(table: Path) -> None:
    """Write what the log of a table names: files of 10 bytes."""
    for uri in DeltaTable(str(table)).file_uris():
        write(Path(unquote(uri)), "0123456789")


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


def test_release_with_batches_is_published_again_without_a_publication(settings: Settings) -> None:
    """Not the folder's code, which nobody may have compared or approved."""
    assert last_active_release(settings, "flights") is None
    commit(silver_path(settings, "flights", "empty"), "another app", 0, None)
    assert last_active_release(settings, "flights") is None
    Stream(settings, release="r1").silver(0, 3)
    assert last_active_release(settings, "flights") is None, "a power cut took the only data file"
    write_data_files(silver_path(settings, "flights", "r1"))
    assert last_active_release(settings, "flights") == "r1"
    Stream(settings, release="r2").silver(0, 1)
    write_data_files(silver_path(settings, "flights", "r2"))
    with pytest.raises(Terminal) as refused:
        last_active_release(settings, "flights")
    assert refused.value.code == "release-ambiguous"
    assert refused.value.facts["releases"] == ["r1", "r2"]
    active_releases_file(settings, "flights").write(["r2", "r1"])
    assert last_active_release(settings, "flights") == "r2"


def test_patch_in_progress_of_an_earlier_version_is_read(settings: Settings) -> None:
    write(patch_in_progress_path(settings, "flights", "r1"), '{"plan": "replay-flights-1", "way": 2}')
    file, patch = patch_in_progress_file(settings, "flights", "r1"), PatchInProgress("replay-flights-1", REVERT)
    assert file.read() == patch
    file.write(patch)
    assert json.loads(file.path.read_text()) == {"plan": "replay-flights-1", "direction": 2}
    assert file.read() == patch


def test_patch_in_an_unknown_direction_is_refused(settings: Settings) -> None:
    write(patch_in_progress_path(settings, "flights", "r1"), '{"plan": "replay-flights-1", "direction": 3}')
    with pytest.raises(StateFileUnreadable, match="key direction: .*found: 3"):
        patch_in_progress_file(settings, "flights", "r1").read()


def test_unreadable_patch_in_progress_is_named(settings: Settings) -> None:
    write(patch_in_progress_path(settings, "flights", "r1"), '{"plan": "replay-flights-1"}')
    with pytest.raises(StateFileUnreadable, match="key direction: .*no run begins") as unreadable:
        patch_in_progress_file(settings, "flights", "r1").read()
    assert "headrace plan list" in unreadable.value.remedy


def test_build_of_an_earlier_version_is_read(settings: Settings) -> None:
    file = plan_build_file(settings, "flights", "r1", "replay-flights-1")
    assert file.read() is None
    write(
        file.path,
        '{"attempt": "one", "read_at_ms": 7, "release": "r1", "batch": 3, "records": 9, "kin": 11, "filled": 0,'
        ' "differing": {"silver.flights": 2}, "seconds": 1.5}',
    )
    old = PlanBuild("one", 3, 0, 7, "r1", 9, 11, {"silver.flights": 2}, None, 1.5)
    assert file.read() == old
    file.write(old)
    assert file.read() == old


def test_verified_range_of_an_earlier_version_is_read(settings: Settings) -> None:
    file = verified_file(verified_path(settings, "flights", "r1", "backfill-flights-1"))
    write(
        file.path,
        '{"plan": "backfill-flights-1", "batch": 2, "since": "2013-01-01T00:00:00+00:00",'
        ' "until": "2013-01-02T00:00:00+00:00", "verified_at_ms": 8}',
    )
    day = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC))
    assert file.read() == VerifiedRange("backfill-flights-1", 2, *day, 8)


def test_slice_of_a_plan_of_an_earlier_version_is_read(settings: Settings) -> None:
    write(
        plan_path(settings, "replay-flights-1") / "plan.json",
        '{"id": "replay-flights-1", "kind": "replay", "dataset": "flights", "release": "r1", "asked": "batches 1 to 2",'
        ' "planned_at": "2026-01-02T03:04:05+00:00", "changes": [], "slice": {"spans": [{"partition": 0, "start": 1,'
        ' "end": 5, "source": "kafka"}], "since": "2013-01-01T00:00:00+00:00", "until": null}}',
    )
    planned = planned_slice_file(settings, "replay-flights-1").read()
    assert planned is not None
    assert planned.release == "r1"
    assert planned.slice == Slice([Span(0, 1, 5, "kafka")], datetime(2013, 1, 1, tzinfo=UTC))
