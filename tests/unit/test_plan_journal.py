"""Plan folders: those of older versions are read, damaged and foreign ones are skipped and listed with their path."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
from plan_samples import plan_at, result_of, sample_plan
from typer.testing import CliRunner

from include.cli import main
from include.declare.history_slice import KAFKA, Slice, Span
from include.ground.paths import plan_path
from include.ground.settings import Settings
from include.plans import journal as plan_journal
from include.plans.index import index_path
from include.plans.journal import (
    PlanUnreadable,
    find_plan,
    load_plan,
    newest_plans,
    next_plan_id,
    open_plans,
    record_result,
    save_plan,
)
from include.plans.plan import OPEN, TRANSITIONS, Applied, Compared, ReleaseBuilt, RolledBack, SliceBuilt, Stage

OLD_REPLAY = """{"id": "replay-flights-1", "kind": "replay", "dataset": "flights", "base": "aaa", "release": "aaa",
 "planned_at": "2026-01-01T12:00:00+00:00", "planned_by": "ann", "threshold": 0.0, "changes": [],
 "predicted": {"records": 10, "bytes": 1000, "gold_rows": 5, "seconds": 0.5, "rate": 20.0},
 "slice": {"spans": [{"partition": 0, "start": 10, "end": 20, "source": "kafka"}], "since": null, "until": null},
 "asked": "offsets 0: 10 to 19", "origin": "replay__flights/manual__1"}"""
OLD_REPLAY_EVENTS = """\
{"stage": "built", "at": "2026-01-01T12:01:00+00:00", "by": "ann", "facts": {"built": {"attempt": "f00", \
"read_at_ms": 7, "release": "aaa", "batch": 4, "records": 10, "kin": 2, "filled": 1, "differing": \
{"silver.flights": 3}, "decided_until": 0, "seconds": 6.5}, "seconds": 9.0, "batch": 4}}
{"stage": "compared", "at": "2026-01-01T12:02:00+00:00", "by": "ann", "facts": {"verdict": "needs approval", \
"differing": {"silver.flights": 3}, "held": ["gold.route_days: few_rows"]}}
{"stage": "approved", "at": "2026-01-01T12:03:00+00:00", "by": "bob", "facts": {"verdict": "needs approval"}}
{"stage": "applied", "at": "2026-01-01T12:04:00+00:00", "by": "ann", "facts": {"batch": 5, "changed": 0}}
"""
PUBLICATION = '{"dataset": "flights", "release": "%s", "batch": 3, "published_at": "2026-01-01T12:00:00+00:00", \
"offsets": {"0": 40}, "tables": {"silver.flights": {"path": "flights/%s/silver", "version": 2}}}'
OLD_RELEASE = """{"id": "release-flights-1", "kind": "release", "dataset": "flights", "base": "aaa", "release": "bbb",
 "planned_at": "2026-01-01T12:00:00+00:00", "planned_by": "ann", "threshold": 0.01,
 "changes": [{"table": "silver", "kind": "changed", "why": "silver.py differs"}],
 "predicted": {"records": 10, "bytes": 1000, "files": 2, "gold_rows": 5, "seconds": 0.5, "rate": 20.0},
 "slice": null, "asked": "from batch 2 on", "origin": ""}"""
OLD_RELEASE_EVENTS = f"""\
{{"stage": "built", "at": "2026-01-01T12:01:00+00:00", "by": "ann", "facts": \
{{"built": {PUBLICATION % ("bbb", "bbb")}, \
"seconds": 9.0, "batch": 3, "seen": {PUBLICATION % ("aaa", "aaa")}}}}}
{{"stage": "compared", "at": "2026-01-01T12:02:00+00:00", "by": "ann", "facts": {{"verdict": "equal"}}}}
{{"stage": "approved", "at": "2026-01-01T12:03:00+00:00", "by": "policy", "facts": {{"verdict": "equal"}}}}
{{"stage": "applied", "at": "2026-01-01T12:04:00+00:00", "by": "ann", "facts": {{"batch": 5, "seconds": 0.4}}}}
"""


def write_folder(settings: Settings, name: str, plan: str, events: str = "") -> Path:
    folder = plan_path(settings, name)
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(plan)
    (folder / "events.jsonl").write_text(events)
    return folder


def test_replay_plan_of_an_older_version_is_read_typed_and_continued(settings: Settings) -> None:
    write_folder(settings, "replay-flights-1", OLD_REPLAY, OLD_REPLAY_EVENTS)
    record = load_plan(settings, "replay-flights-1")
    assert (record.plan.requested, record.plan.slice) == ("offsets 0: 10 to 19", Slice([Span(0, 10, 20, KAFKA)]))
    assert record.plan.about == "offsets 0: 10 to 19, with release aaa"
    built = SliceBuilt(
        batch=4, seconds=9.0, attempt="f00", records=10, filled=1, differing={"silver.flights": 3},
        read_at_ms=7, job_seconds=6.5,
    )  # fmt: skip
    assert record.last(SliceBuilt) == built
    compared = record.last(Compared)
    assert (compared.verdict, list(compared.blocked_by)) == ("needs approval", ["gold.route_days: few_rows"])
    assert record.last(Applied).changed == 0
    assert find_plan(settings, "replay__flights/manual__1") == record
    after = record_result(settings, record.plan.id, RolledBack(batch=6), "ann")
    assert (after.stage, after.last(SliceBuilt)) == (Stage.ROLLED_BACK, built)


def test_release_plan_of_an_older_version_is_read_typed(settings: Settings) -> None:
    write_folder(settings, "release-flights-1", OLD_RELEASE, OLD_RELEASE_EVENTS)
    record = load_plan(settings, "release-flights-1")
    built = record.last(ReleaseBuilt)
    assert (built.built.release, built.published.release, built.batch, built.built.offsets) == (
        "bbb",
        "aaa",
        3,
        {0: 40},
    )
    assert (record.stage, record.last(Applied).seconds) == (Stage.APPLIED, 0.4)
    assert record.plan.about == "release aaa → bbb, from batch 2 on"


@pytest.mark.parametrize(
    ("name", "plan", "events"),
    [
        ("release-flights-1.bak", OLD_RELEASE, ""),
        ("x.bak", "", ""),
        ("release-my data-1", OLD_RELEASE, ""),
        ("release-flights-7", "{", ""),
        ("release-flights-7", "[]", ""),
        ("release-flights-7", '{"id": "release-flights-7"}', ""),
        ("release-flights-7", OLD_RELEASE, "no JSON\n"),
        ("release-flights-7", OLD_RELEASE, '{"stage": "built", "at": "2026-01-01", "by": "ann", "facts": {}}\n'),
        ("release-flights-7", OLD_RELEASE, '{"stage": "flying", "at": "2026-01-01", "by": "ann", "facts": {}}\n'),
        ("release-flights-7", "\x00", "[]\n"),
    ],
)
def test_unreadable_folder_is_skipped_and_listed_with_its_path(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str, plan: str, events: str
) -> None:
    good = plan_at(settings, Stage.BUILT)
    folder = write_folder(settings, name, plan, events)
    assert newest_plans(settings).plans == [good]
    assert [found.path for found in newest_plans(settings).unreadable] == [folder]
    assert next_plan_id(settings, "release", "flights") not in (name, good.plan.id)
    monkeypatch.setattr("include.cli.plan.load_settings", lambda: settings)
    listed = CliRunner().invoke(main.app, ["plan", "list"])
    assert (listed.exit_code, good.plan.id in listed.stdout) == (0, True)
    assert str(folder) in listed.stderr.replace("\n", "")
    assert "move it away" in listed.stderr
    if name == "release-flights-7":
        with pytest.raises(PlanUnreadable, match="release-flights-7"):
            load_plan(settings, name)


def test_open_plans_and_a_plan_of_a_run_are_found_without_reading_closed_plans(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = plan_at(settings, Stage.BUILT, origin="release__flights/manual__1")
    reads: list[str] = []
    load = plan_journal.load_plan
    monkeypatch.setattr(plan_journal, "load_plan", lambda known, plan: reads.append(plan) or load(known, plan))
    for _ in range(2):
        for number in range(10):
            plan_at(settings, Stage.CANCELLED, origin=f"other__flights/{len(reads)}-{number}")
        reads.clear()
        assert open_plans(settings) == [opened]
        assert find_plan(settings, opened.plan.origin) == opened
        assert find_plan(settings, "no/such") is None
        assert reads == [opened.plan.id] * 2


def test_missing_index_of_plans_is_built_from_the_journals(settings: Settings) -> None:
    plan_at(settings, Stage.CANCELLED)
    opened = plan_at(settings, Stage.BUILT, origin="release__flights/manual__1")
    damaged = save_plan(settings, sample_plan(settings))
    path = plan_path(settings, damaged.plan.id) / "plan.json"
    text = path.read_text()
    path.write_text("{")
    shutil.rmtree(index_path(settings).parent)
    assert open_plans(settings) == [opened]
    assert find_plan(settings, opened.plan.origin) == opened
    path.write_text(text)
    assert open_plans(settings) == [opened, damaged], "a restored plan is open again"
    assert newest_plans(settings).unreadable == []


def test_plan_closed_by_a_command_that_was_killed_is_not_open(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = save_plan(settings, sample_plan(settings)).plan.id
    with monkeypatch.context() as killed:
        killed.setattr(plan_journal, "enter", lambda *_: None)
        record_result(settings, plan, result_of(Stage.CANCELLED), "ann")
    assert open_plans(settings) == []
    with monkeypatch.context() as killed:
        killed.setattr(plan_journal, "write_atomically", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_plan(settings, sample_plan(settings))
    assert open_plans(settings) == [], "a plan that was listed and never written"


def test_closed_plan_never_opens_again() -> None:
    for transitions, stage in product(TRANSITIONS.values(), Stage):
        assert stage in OPEN or not set(transitions[stage]) & set(OPEN)
