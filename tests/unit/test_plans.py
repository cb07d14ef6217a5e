"""Plans: stage transitions, what survives on disk, and the classification of changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from deltalake import write_deltalake
from error_codes import raises
from hypothesis import given
from hypothesis import strategies as st
from plan_samples import TO_APPLIED, advanced, result_of
from rich.console import Console

from include.change import release as release_plan
from include.change import stages as plan_stages
from include.change.kind import Request
from include.change.plan_parameters import ReleaseParameters
from include.change.reinstate import restore_discards
from include.cli import plan as plan_command
from include.declare.dataset import Dataset, ReleaseStart, load_dataset, released_dataset, snapshot_dataset
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span
from include.declare.release_diff import TableChange, release_changes
from include.ground.errors import Terminal, Transient
from include.ground.paths import plan_path, silver_path
from include.ground.settings import CLONE, Settings
from include.plans.journal import PlanBusy, PlanUnknown, load_plan, newest_plans, next_plan_id, plan_lock, save_plan
from include.plans.plan import (
    OPEN,
    REINSTATE,
    RELEASE_TRANSITIONS,
    REPLAY,
    Plan,
    PlanRecord,
    Prediction,
    ReleaseBuilt,
    Retired,
    Stage,
    StageRefused,
)
from include.read.publication import Publication, publish
from include.read.rejected_records import DISCARD, Decision, append_decisions, decided_records
from include.state.owner_requests import (
    OwnerRequest,
    OwnerResponse,
    RequestKind,
    find_response,
    pending_request,
    respond,
    submit_request,
)
from include.state.release_files import active_releases_file

RESULT_STAGES = [stage for stage in Stage if stage is not Stage.PLANNED]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FLIGHTS = CLONE / "include" / "datasets" / "flights"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state")


def plan(settings: Settings) -> Plan:
    name = next_plan_id(settings, "release", "flights")
    change = TableChange("gold.route_days", "changed", "with minutes")
    predicted = Prediction(10, 1000, 2, 5, 0.5, 20.0)
    return Plan(name, "release", "flights", "aaa", "bbb", NOON, "ann", 0.01, [change], predicted)


def test_plan_is_read_back_as_saved(settings: Settings) -> None:
    wanted = plan(settings)
    save_plan(settings, wanted)
    found = load_plan(settings, wanted.id)
    assert (found.plan, found.stage, list(found.events)) == (wanted, Stage.PLANNED, [])
    assert [plan(settings).id for _ in range(1)] == ["release-flights-2"]
    assert [record.plan.id for record in newest_plans(settings).plans] == ["release-flights-1"]


def test_only_declared_stage_transitions_are_accepted(settings: Settings) -> None:
    name = save_plan(settings, plan(settings)).plan.id
    for wrong in set(RESULT_STAGES) - set(RELEASE_TRANSITIONS[Stage.PLANNED]):
        with pytest.raises(StageRefused):
            advanced(settings, load_plan(settings, name), wrong)
    for stage in (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED, Stage.ROLLED_BACK):
        assert advanced(settings, load_plan(settings, name), stage).stage is stage
    assert load_plan(settings, name).last(ReleaseBuilt) == result_of(Stage.BUILT)
    assert not load_plan(settings, name).is_open


def test_slice_may_be_rebuilt_until_applied_and_is_applied_once(settings: Settings) -> None:
    name = next_plan_id(settings, REPLAY, "flights")
    slice_ = Slice([Span(0, 10, 20, KAFKA)], NOON, None)
    wanted = replace(plan(settings), id=name, kind=REPLAY, slice=slice_, requested="offsets 0: 10 to 19")
    name = save_plan(settings, wanted).plan.id
    assert load_plan(settings, name).plan == wanted
    again = (Stage.BUILT, Stage.COMPARED, Stage.APPROVED)
    for stage in (*again, *again, Stage.APPLIED):
        advanced(settings, load_plan(settings, name), stage)
    for wrong in set(RESULT_STAGES) - {Stage.ROLLED_BACK}:
        with pytest.raises(StageRefused):
            advanced(settings, load_plan(settings, name), wrong)
    advanced(settings, load_plan(settings, name), Stage.ROLLED_BACK)
    for wrong in RESULT_STAGES:
        with pytest.raises(StageRefused):
            advanced(settings, load_plan(settings, name), wrong)


@given(st.lists(st.sampled_from(list(Stage)), max_size=8))
def test_applied_plan_is_never_open_again(stages: list[Stage]) -> None:
    now = Stage.PLANNED
    applied = False
    for stage in stages:
        if stage in RELEASE_TRANSITIONS[now]:
            now, applied = stage, applied or stage is Stage.APPLIED
    assert not (applied and now in OPEN)


def test_truncated_last_event_is_ignored(settings: Settings) -> None:
    name = save_plan(settings, plan(settings)).plan.id
    advanced(settings, load_plan(settings, name), Stage.BUILT)
    events = plan_path(settings, name) / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole + whole[:20])
    assert load_plan(settings, name).stage is Stage.BUILT
    advanced(settings, load_plan(settings, name), Stage.COMPARED)
    assert [event.stage for event in load_plan(settings, name).events] == [Stage.BUILT, Stage.COMPARED]


@pytest.mark.parametrize("name", ["release-flights-7", "../../etc", "", "release-flights-1/../x"])
def test_unknown_plans_are_refused_by_name(settings: Settings, name: str) -> None:
    save_plan(settings, plan(settings))
    with pytest.raises(PlanUnknown, match="release-flights-1"):
        load_plan(settings, name)


def test_second_command_on_a_plan_is_refused(settings: Settings) -> None:
    name = save_plan(settings, plan(settings)).plan.id
    with plan_lock(settings, name), pytest.raises(PlanBusy, match="pid"), plan_lock(settings, name):
        pass
    with plan_lock(settings, name):
        pass


def test_pending_request_blocks_another_until_its_response(settings: Settings) -> None:
    mine, other = (
        OwnerRequest("release-flights-1", RequestKind.PROMOTE, "bbb"),
        OwnerRequest("release-flights-2", RequestKind.PROMOTE, "ccc"),
    )
    submit_request(settings, "flights", mine)
    submit_request(settings, "flights", mine)
    with raises(Transient, "request-pending", match="release-flights-1"):
        submit_request(settings, "flights", other)
    answer = OwnerResponse(mine.plan, mine.kind, mine.release, "", 7)
    respond(settings, "flights", answer)
    assert (pending_request(settings, "flights"), find_response(settings, "flights", mine)) == (None, answer)
    submit_request(settings, "flights", mine)
    assert find_response(settings, "flights", mine) is None


def changed(tmp_path: Path, file: str, old: str, new: str) -> Dataset:
    folder = tmp_path / "flights"
    shutil.copytree(FLIGHTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    return load_dataset("flights", folder)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("pipeline.yaml", "tails: {approx_distinct: tailnum}", "planes: {approx_distinct: tailnum}", "incompatible"),
        ("pipeline.yaml", "departure_delay > 15", "departure_delay > 30", "changed"),
        ("pipeline.yaml", "      tails: {approx", "      hops: {count: '*'}\n      tails: {approx", "changed"),
    ],
)
def test_gold_change_is_classified_by_its_effect(tmp_path: Path, file: str, old: str, new: str, expected: str) -> None:
    found = release_changes(load_dataset("flights", FLIGHTS), changed(tmp_path, file, old, new))
    assert [(change.table, change.kind) for change in found] == [("gold.carrier_hours", expected)]


def test_change_of_contract_or_code_affects_silver(tmp_path: Path) -> None:
    base = load_dataset("flights", FLIGHTS)
    assert release_changes(base, base) == []
    found = release_changes(base, changed(tmp_path, "contract.yaml", "maximum: 9999", "maximum: 999"))
    assert [change.table for change in found] == ["silver and rejected"]
    found = release_changes(base, changed(tmp_path / "two", "silver.py", '"cancelled": 3', '"cancelled": 4'))
    assert [change.table for change in found] == ["silver"]


ROUTES = pl.DataFrame(
    {"day": ["a", "a", "b"], "origin": ["EWR", "JFK", "EWR"], "dest": ["X", "X", "Y"], "departed": [1, 2, None]}
).with_columns(_revision=pl.lit(1))


def test_cancelled_plan_withdraws_its_own_request_only(settings: Settings) -> None:
    record = save_plan(settings, plan(settings))
    submit_request(settings, "flights", OwnerRequest("release-flights-2", RequestKind.PROMOTE, "ccc"))
    plan_stages.cancel(settings, record, "ann")
    waiting = pending_request(settings, "flights")
    assert waiting is not None
    assert waiting.plan == "release-flights-2"
    second = save_plan(settings, plan(settings))
    assert plan_stages.cancel(settings, second, "ann").stage is Stage.CANCELLED
    assert pending_request(settings, "flights") is None


LATER, PLACE = NOON + timedelta(hours=1), (0, 7)


def decided(settings: Settings, act: str, at: datetime, by: str) -> None:
    append_decisions(settings, "flights", [Decision(act, *PLACE, batch=3, at=at, by=by, why="noise")])


@pytest.mark.parametrize("end", [plan_stages.cancel, plan_stages.reject])
def test_ended_reinstatement_restores_discards(settings: Settings, end: Any) -> None:
    decided(settings, DISCARD, NOON - timedelta(days=1), "bob")
    facts = {"id": next_plan_id(settings, REINSTATE, "flights"), "kind": REINSTATE}
    write_deltalake(silver_path(settings, "flights", "bbb"), ROUTES)
    record = save_plan(settings, replace(plan(settings), slice=Slice([Span(0, 7, 8, BRONZE)]), **facts))
    decided(settings, "reinstate", NOON, "ann")
    assert not decided_records(settings, "flights")[PLACE].is_discarded
    for stage in (Stage.BUILT, Stage.COMPARED):
        record = advanced(settings, record, stage)
    end(settings, record, "carl")
    found = decided_records(settings, "flights")[PLACE]
    assert (found.is_discarded, found.decisions[-1].by, found.decisions[-1].why) == (True, "carl", "noise")


def test_newer_decisions_are_not_overwritten(settings: Settings) -> None:
    mine = replace(plan(settings), kind=REINSTATE)
    assert restore_discards(settings, mine, "carl", LATER) == 0, "nothing was ever decided"
    decided(settings, "reinstate", NOON, "ann")
    assert restore_discards(settings, mine, "carl", LATER) == 0, "it was not discarded before"
    decided(settings, DISCARD, NOON, "bob")
    decided(settings, "reinstate", LATER, "bob")
    assert restore_discards(settings, mine, "carl", LATER) == 0, "the reinstatement was decided by another user"


def test_other_changes_of_the_folder_affect_all_tables(tmp_path: Path) -> None:
    base = load_dataset("flights", FLIGHTS)
    found = release_changes(base, changed(tmp_path, "pipeline.yaml", "lateness: 2 days", "lateness: 1 days"))
    assert [(change.table, change.kind) for change in found] == [("all", "changed")]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("lateness: 2 days", "lateness: 1 days", "lateness"),
        ("lateness: 2 days", "lateness: 2 days\nidle: never", "idle"),
    ],
)
def test_change_of_the_watermark_names_the_tables_that_wait_for_it(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    hours = "    window: {column: scheduled_departure, size: 1 hour, as: hour}\n"
    closing = hours.replace("scheduled_departure", "occurred_at") + "    refresh: on_close\n"
    base = changed(tmp_path / "base", "pipeline.yaml", hours, closing)
    fresh = changed(tmp_path / "fresh", "pipeline.yaml", hours, closing)
    path = fresh.folder / "pipeline.yaml"
    path.write_text(path.read_text().replace(old, new))
    (change,) = release_changes(base, load_dataset("flights", fresh.folder))
    assert (change.table, change.kind) == ("gold.carrier_hours", "changed")
    assert change.why.startswith(f"{why} differs")


def test_published_plan_cannot_be_cancelled(settings: Settings) -> None:
    record = save_plan(settings, plan(settings))
    publish(settings, Publication("flights", "bbb", 3, NOON, {0: 1}, {}))
    with raises(Terminal, "already-published", match="release-flights-1"):
        plan_stages.cancel(settings, record, "ann")
    assert load_plan(settings, record.plan.id).stage is Stage.PLANNED


def test_retiring_without_a_running_stream_submits_no_request(settings: Settings) -> None:
    name = save_plan(settings, plan(settings)).plan.id
    publish(settings, Publication("flights", "bbb", 3, NOON, {0: 1}, {}))
    for stage in (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED):
        record = advanced(settings, load_plan(settings, name), stage)
    with raises(Terminal, "stream-not-running", match="headrace up flights"):
        plan_stages.retire(settings, record, "ann")
    assert pending_request(settings, "flights") is None


def test_cancelled_plan_leaves_the_release_that_a_rolled_back_plan_can_apply_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_plan, "request_owner", lambda *_: pytest.fail("the release was retired"))
    old = advanced(settings, save_plan(settings, plan(settings)), *TO_APPLIED, Stage.ROLLED_BACK)
    publish(settings, Publication("flights", "aaa", 3, NOON, {0: 1}, {}))
    active_releases_file(settings, "flights").write(["aaa", "bbb"])
    again = save_plan(settings, replace(plan(settings), planned_at=NOON + timedelta(hours=1)))
    assert again.plan.id != old.plan.id
    assert plan_stages.cancel(settings, again, "ann").stage is Stage.CANCELLED


@pytest.mark.parametrize(("published", "retired"), [("ccc", ["aaa"]), ("bbb", ["aaa"]), ("aaa", [])])
def test_retiring_keeps_the_releases_that_another_plan_needs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, published: str, retired: list[str]
) -> None:
    """F35: plan 2 replaced bbb, which plan 1 had published; rolling plan 2 back needs bbb and ccc."""
    requested: list[str] = []

    def respond_at_once(_: Settings, __: str, request: OwnerRequest) -> OwnerResponse:
        requested.append(request.release)
        return OwnerResponse(request.plan, request.kind, request.release, "", 7)

    monkeypatch.setattr(release_plan, "is_expected", lambda _: True)
    monkeypatch.setattr(release_plan, "request_owner", respond_at_once)
    old = advanced(settings, save_plan(settings, plan(settings)), *TO_APPLIED)
    newer = replace(plan(settings), base="bbb", release="ccc", planned_at=NOON + timedelta(hours=1))
    advanced(settings, save_plan(settings, newer), *TO_APPLIED)
    publish(settings, Publication("flights", published, 3, NOON, {0: 1}, {}))
    assert plan_stages.retire(settings, old, "ann").last(Retired).releases == retired
    assert requested == retired


def test_plan_larger_than_the_free_disk_is_refused(settings: Settings) -> None:
    settings.state.mkdir(parents=True)
    free = shutil.disk_usage(settings.state).free
    fits = replace(plan(settings).predicted, bytes=free // 4)
    request = Request(settings, "flights", ReleaseParameters(), "ann", NOON)
    request.refuse_small_disk(fits, settings.state)
    with raises(Transient, "disk-too-small", match="GB are free"):
        request.refuse_small_disk(replace(fits, bytes=free), settings.state)


def test_release_from_a_batch_has_its_own_id(settings: Settings) -> None:
    whole = snapshot_dataset(settings, "flights")
    late = snapshot_dataset(settings, "flights", ReleaseStart(whole.release, 7, 3, 4))
    assert (whole.release_start, late.release_start) == (None, ReleaseStart(whole.release, 7, 3, 4))
    assert whole.release != late.release
    assert whole.code == late.code == whole.release
    assert released_dataset(settings, "flights", late.release) == late
    assert release_changes(whole, late) == []


def test_ctrl_c_prints_the_command_that_continues(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> PlanRecord:
        raise KeyboardInterrupt

    record = save_plan(settings, plan(settings))
    monkeypatch.setattr(plan_stages, "build", interrupted)
    with pytest.raises(typer.Exit) as ended:
        plan_command.run_through(Console(width=200), settings, record, lambda _: True)
    assert ended.value.exit_code == 130
    assert f"headrace plan apply {record.plan.id} continues" in capsys.readouterr().out
