"""A release keeps the rules of time zones that it was built with, whatever `tzdata` is installed later."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from error_codes import raises

from include.change.plan_parameters import ReleaseParameters
from include.change.recompute import published_windows
from include.change.release import ReleasePlan
from include.declare.dataset import content_hash, declared_dataset, load_dataset, released_dataset, snapshot_dataset
from include.declare.release_diff import release_changes
from include.declare.time_zones import ZONES_FILE, database_version, installed_zone
from include.declare.windows import Window, day_range
from include.ground.errors import Terminal
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.observe.doctor import Verdict, check_java_zones, check_time_zones
from include.observe.progress import is_outdated
from tests.unit.test_audit_balance import sales_settings, write_sales

LATE = datetime(2026, 11, 15, 23, 30, tzinfo=UTC)
ZONE = "Africa/Casablanca"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Sales by the day of Casablanca."""
    made = sales_settings(tmp_path)
    file = made.datasets / "sales" / "pipeline.yaml"
    file.write_text(file.read_text().replace("size: 1 day", f"size: 1 day, time_zone: {ZONE}"))
    contract = made.datasets / "sales" / "contract.yaml"
    contract.write_text(
        contract.read_text().replace("name: sales\nversion", "id: sales\nstatus: active\nname: sales\nversion")
    )
    (made.datasets / "sales" / "silver.py").write_text("def silver(accepted):\n    return accepted\n")
    return made


def earlier_rules(settings: Settings, release: str) -> str:
    """Make the release one of an earlier `tzdata`, in which Casablanca stays an hour ahead; return its name."""
    folder = snapshot_path(settings, "sales", release)
    recorded = json.loads((folder / ZONES_FILE).read_text())
    zone = recorded["zones"][ZONE]
    zone["transitions"] = [each for each in zone["transitions"] if each[0] < LATE.timestamp() - 86_400 * 90]
    zone["rule"] = "<+01>-1"
    (folder / ZONES_FILE).write_text(json.dumps({**recorded, "version": "2025b"}))
    return folder.rename(folder.with_name(content_hash(folder))).name


def day_of(settings: Settings, release: str) -> Window:
    window = released_dataset(settings, "sales", release).pipeline.gold[0].window
    assert window is not None
    return window


def test_a_release_keeps_its_rules(settings: Settings) -> None:
    release = snapshot_dataset(settings, "sales").release
    assert day_of(settings, release).starts(LATE) == [date(2026, 11, 15)]
    earlier = earlier_rules(settings, release)
    assert earlier != release
    assert day_of(settings, earlier).starts(LATE) == [date(2026, 11, 16)]
    # The folder is as it was: only the rules differ.
    released, declared = released_dataset(settings, "sales", earlier), declared_dataset(settings, "sales")
    assert released.code == declared.code
    assert snapshot_dataset(settings, "sales").release == release


def test_other_rules_are_a_release_and_are_named(settings: Settings) -> None:
    release = snapshot_dataset(settings, "sales").release
    assert not is_outdated(settings, "sales", release)
    earlier = earlier_rules(settings, release)
    assert is_outdated(settings, "sales", earlier)
    base = released_dataset(settings, "sales", earlier)
    (change,) = release_changes(base, declared_dataset(settings, "sales"))
    assert (change.table, change.kind) == ("gold.shop_days", "changed")
    assert change.why == f"time zone {ZONE} has other rules from 2026-09-20 on"


def test_plan_refuses_the_same_rules_and_takes_others(settings: Settings) -> None:
    warehouse = write_sales(settings)
    with raises(Terminal, "nothing-to-release"):
        ReleasePlan().plan(settings, "sales", ReleaseParameters(dry_run=True), "ann", LATE)
    published = earlier_rules(settings, warehouse.release)
    replace(warehouse, release=published).move(batch=1, offsets={0: 4, 1: 1})
    plan = ReleasePlan().plan(settings, "sales", ReleaseParameters(dry_run=True), "ann", LATE).plan
    assert [change.table for change in plan.changes] == ["gold.shop_days"]


def test_doctor_names_the_release_the_zone_and_the_command(settings: Settings) -> None:
    warehouse = write_sales(settings)
    (fine,) = check_time_zones(settings)
    assert fine.verdict is Verdict.OK
    published = earlier_rules(settings, warehouse.release)
    replace(warehouse, release=published).move(batch=1, offsets={0: 4, 1: 1})
    (found,) = check_time_zones(settings)
    assert found.verdict is Verdict.WARN
    assert published in found.found
    assert "tzdata 2025b; the installed" in found.found
    assert f"{ZONE} (from 2026-09-20 on)" in found.found
    assert "headrace release plan --dataset sales" in found.remedy


def test_days_to_backfill_follow_the_published_release(settings: Settings) -> None:
    warehouse = write_sales(settings)
    midnight = datetime(2026, 11, 15, tzinfo=UTC)
    day = midnight, midnight + timedelta(days=1)
    assert day_range(published_windows(settings, "sales"), midnight.date()) == day
    published = earlier_rules(settings, warehouse.release)
    replace(warehouse, release=published).move(batch=1, offsets={0: 4, 1: 1})
    an_hour_ahead = tuple(each - timedelta(hours=1) for each in day)
    assert day_range(published_windows(settings, "sales"), midnight.date()) == an_hour_ahead


def test_a_release_without_a_record_has_the_installed_rules(settings: Settings) -> None:
    release = snapshot_dataset(settings, "sales").release
    folder = snapshot_path(settings, "sales", release)
    (folder / ZONES_FILE).unlink()
    old = folder.rename(folder.with_name(content_hash(folder)))
    (zone,) = load_dataset("sales", old, strict=False).pipeline.window_zones
    assert zone == installed_zone(ZONE)
    assert not is_outdated(settings, "sales", old.name)


def test_a_folder_without_zones_has_the_release_of_its_files(tmp_path: Path) -> None:
    settings = sales_settings(tmp_path)
    assert snapshot_dataset(settings, "sales").release == declared_dataset(settings, "sales").release


def test_doctor_names_code_that_follows_javas_rules(settings: Settings, tmp_path: Path) -> None:
    launcher = tmp_path / "java" / "bin" / "java"
    database = launcher.parent.parent / "lib" / "tzdb.dat"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"\x01\x00\x04TZDB\x00\x01\x00\x052020b\x02")
    assert list(check_java_zones(settings, lambda: launcher)) == []
    query = settings.datasets / "sales" / "gold" / "q.sql"
    query.parent.mkdir()
    query.write_text("select from_utc_timestamp(at, 'Africa/Casablanca') from silver")
    (found,) = check_java_zones(settings, lambda: launcher)
    assert "sales/gold/q.sql: Spark's functions follow Java's rules (tzdata 2020b)" in found.found
    database.write_bytes(b"\x01\x00\x04TZDB\x00\x01\x00\x05" + database_version().encode())
    assert list(check_java_zones(settings, lambda: launcher)) == []
