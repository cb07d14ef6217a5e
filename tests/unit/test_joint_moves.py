"""The moves of a joint plan: in which order owners are asked, and what is left when the command is killed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from error_codes import raises
from held_lease import HeldLease
from plan_samples import TO_APPLIED, advanced, publication, sample_plan

from include.change import readers as table_readers
from include.change import release as release_kind
from include.change import stages as plan_stages
from include.change.comparison_view import comparison_markdown, comparison_page
from include.declare.derived_dataset import ColumnUse
from include.ground.errors import Terminal, Transient
from include.ground.settings import Settings
from include.plans.comparison import HELD, Comparison
from include.plans.dependants import Analysed, Effect, Reader, drop_obsolete, is_due
from include.plans.journal import last_applied, load_plan, plans_of_data, save_plan
from include.plans.plan import Member, PlanRecord, ReleaseBuilt, Stage
from include.read.publication import Publication, SourceVersion, publish, read_publication, save_shadow_publication
from include.state.owner_requests import (
    OwnerRequest,
    OwnerResponse,
    RequestKind,
    pending_request,
    submit_request,
    withdraw_request,
)
from include.state.release_files import active_releases_file
from spark_jobs.history.reader_analysis import pin_members
from spark_jobs.stream import derived as derived_stream
from spark_jobs.stream.derived import DerivedRelease
from spark_jobs.stream.requests import receive_request

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MEMBERS = (Member("hours", "h1", "h2"), Member("weeks", "w1", "w2"))
BEFORE, AFTER = ["aaa", "h1", "w1"], ["bbb", "h2", "w2"]
NAMES = ("flights", "hours", "weeks")


class Owners:
    """The owners of all datasets; the one whose turn it is, counted from 0, dies `before` or after it has moved."""

    def __init__(self, settings: Settings, dies_at: int | None = None, *, before: bool = True) -> None:
        self.settings, self.dies_at, self.before = settings, dies_at, before
        self.asked: list[tuple[str, str]] = []

    def respond(
        self, settings: Settings, dataset: str, request: OwnerRequest, *, is_kept: bool = False
    ) -> OwnerResponse:
        active = active_releases_file(settings, dataset)
        if request.kind is RequestKind.RETIRE:
            active.write([name for name in active.read() or () if name != request.release])
            return OwnerResponse(request.plan, request.kind, request.release, "", 3)
        submit_request(settings, dataset, request)
        dies = self.dies_at == len(self.asked)
        self.asked.append((dataset, request.release))
        if dies and self.before:
            if not is_kept:
                withdraw_request(settings, dataset)
            raise KeyboardInterrupt
        assert is_due(settings, request)
        before = read_publication(settings, dataset)
        publish(settings, replace(before, release=request.release))
        active.write([request.release, before.release])
        withdraw_request(settings, dataset)
        if dies:
            raise KeyboardInterrupt
        return OwnerResponse(request.plan, request.kind, request.release, "", 3)


@pytest.fixture
def record(settings: Settings) -> PlanRecord:
    """A plan of three datasets that is approved; nothing of it is published."""
    for name, release in zip(NAMES, BEFORE, strict=True):
        publish(settings, Publication(name, release, 3, NOON, {}, {}))
    saved = save_plan(settings, sample_plan(settings, members=MEMBERS))
    built = {m.dataset: ReleaseBuilt(batch=3, built=publication("x"), published=publication()) for m in MEMBERS}
    record = advanced(settings, saved, Stage.BUILT, members=built)
    return advanced(settings, record, Stage.COMPARED, Stage.APPROVED)


def published(settings: Settings) -> list[str]:
    return [read_publication(settings, name).release for name in NAMES]


def requested(record: PlanRecord, place: int) -> OwnerRequest:
    """Return the request of `apply` for a dataset of the plan."""
    return release_kind._request(record.plan, record.plan.parts[place], lambda part: part.release, "apply")


def left(settings: Settings) -> list[str]:
    """Return the datasets with a pending request."""
    return [name for name in NAMES if pending_request(settings, name) is not None]


def test_datasets_move_in_order_and_back_in_the_same(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = Owners(settings)
    monkeypatch.setattr(release_kind, "request_owner", owners.respond)
    record = plan_stages.apply(settings, record, "ann")
    assert (owners.asked, published(settings)) == (list(zip(NAMES, AFTER, strict=True)), AFTER)
    assert plan_stages.confirm(settings, record).result == "published"
    plan_stages.roll_back(settings, record, "ann")
    assert owners.asked[3:] == list(zip(NAMES, BEFORE, strict=True))
    assert published(settings) == BEFORE


@pytest.mark.parametrize(("dies_at", "before"), list(itertools.product(range(3), (True, False))))
def test_a_move_that_was_killed_anywhere_continues_or_is_cancelled(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch, dies_at: int, before: bool
) -> None:
    monkeypatch.setattr(release_kind, "request_owner", Owners(settings, dies_at, before=before).respond)
    with pytest.raises(KeyboardInterrupt):
        plan_stages.apply(settings, record, "ann")
    moved = dies_at + (not before)
    assert published(settings) == [*AFTER[:moved], *BEFORE[moved:]]
    # An owner whose sources have moved still has its request, so that it does not follow them as it is.
    assert left(settings) == (list(NAMES[max(moved, 1) :]) if moved else [])
    monkeypatch.setattr(release_kind, "request_owner", Owners(settings).respond)
    again = load_plan(settings, record.plan.id)
    if moved == 3:
        assert plan_stages.apply(settings, again, "ann").stage is Stage.APPLIED
        return
    assert plan_stages.cancel(settings, again, "ann").stage is Stage.CANCELLED
    assert published(settings) == BEFORE
    assert left(settings) == []
    assert "bbb" not in (active_releases_file(settings, "flights").read() or ())


def test_a_cancel_that_was_killed_before_it_retired_the_release_retires_it(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(settings, Publication("flights", "aaa", 3, NOON, {}, {}))
    active_releases_file(settings, "flights").write(["aaa", "bbb"])
    monkeypatch.setattr(release_kind, "request_owner", Owners(settings).respond)
    assert plan_stages.cancel(settings, record, "ann").stage is Stage.CANCELLED
    assert active_releases_file(settings, "flights").read() == ["aaa"]


@pytest.mark.parametrize(("dies_at", "before"), list(itertools.product(range(3), (True, False))))
def test_the_same_command_finishes_a_move_that_was_killed_anywhere(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch, dies_at: int, before: bool
) -> None:
    for act, end in ((plan_stages.apply, AFTER), (plan_stages.roll_back, BEFORE)):
        monkeypatch.setattr(release_kind, "request_owner", Owners(settings, dies_at, before=before).respond)
        with pytest.raises(KeyboardInterrupt):
            act(settings, load_plan(settings, record.plan.id), "ann")
        monkeypatch.setattr(release_kind, "request_owner", Owners(settings).respond)
        act(settings, load_plan(settings, record.plan.id), "ann")
        assert (published(settings), left(settings)) == (end, [])


def test_a_request_waits_for_the_releases_that_it_comes_after(settings: Settings, record: PlanRecord) -> None:
    request = requested(record, 1)
    assert request.after == {"flights": "bbb"}
    submit_request(settings, "hours", request)
    assert receive_request(settings, "hours", lambda: 3) is None
    publish(settings, Publication("flights", "bbb", 3, NOON, {}, {}))
    assert receive_request(settings, "hours", lambda: 3) == request


def test_a_joint_plan_is_found_by_each_of_its_datasets(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_kind, "request_owner", Owners(settings).respond)
    record = plan_stages.apply(settings, record, "ann")
    assert load_plan(settings, record.plan.id).plan.members == MEMBERS
    assert record.stage is TO_APPLIED[-1]
    for name in NAMES:
        found = last_applied(settings, name)
        assert found is not None
        assert found.plan.id == record.plan.id
        assert [each.of(name).plan.dataset for each in plans_of_data(settings, name)] == [name]
    assert last_applied(settings, "weather") is None


def test_members_are_pinned_at_one_state_of_their_sources(settings: Settings) -> None:
    def version(batch: int) -> SourceVersion:
        return SourceVersion("taps/x/silver", batch, "aaa", batch, "")

    source = Publication("taps", "aaa", 7, NOON, {}, {"silver.taps": None, "gold.taps_last": None})  # type: ignore[dict-item]
    tables = {"gold.hours": None}
    turns = iter([(6, 2, 2), (7, 3, 2), (8, 4, 4)])

    def follow(_: float = 0.0) -> None:
        batch, run, read = next(turns)
        hours = Publication("hours", "h1", run, NOON, {}, {}, {"silver.taps": version(batch)})
        publish(settings, hours)
        publish(settings, Publication("weeks", "w1", run, NOON, {}, {}, {"gold.hours": version(read)}))

    follow()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        from spark_jobs.history import reader_analysis as member_pins

        read = member_pins.read_publication
        patch.setattr(
            member_pins,
            "read_publication",
            lambda s, name: replace(read(s, name), tables=tables) if name == "hours" else read(s, name),
        )
        pins = pin_members(settings, source, ["hours", "weeks"], lambda: 0.0, follow)
    assert [(pin.batch_of_source, pin.published.batch) for pin in pins.values()] == [(8, 4), (-1, 4)]


def test_a_comparison_says_what_a_release_does_to_its_readers_in_every_form() -> None:
    effects = [Effect("days", "d1", True), Effect("hours", "h1", True, ("hours.sql:2 reads huge",))]
    comparison = Comparison("taps", "aaa", "bbb", 3, 0.0, [], dependants=effects)
    assert comparison.verdict == HELD
    for text in (comparison_markdown(comparison), comparison_page("a plan", comparison)):
        assert "hours breaks: hours.sql:2 reads huge" in text
        assert "days: not affected" in text
    stopped = replace(comparison, dependants=[replace(effects[1], is_running=False)])
    assert stopped.verdict != HELD


def test_a_member_is_published_while_its_source_moves_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run takes longer than the source needs for its next one: following it to the end would never end."""
    old = replace(publication("h1"), dataset="hours")
    publish(settings, old)
    moves = iter(range(100))
    chased = Mock(**{"next_run.side_effect": lambda: next(moves, None)})
    declared = SimpleNamespace(name="hours", release="h1")
    release = DerivedRelease(settings, declared, Mock(), HeldLease())  # type: ignore[arg-type]
    monkeypatch.setattr(derived_stream, "released_derived", Mock())
    monkeypatch.setattr(derived_stream, "DerivedRelease", lambda *_, **__: chased)
    save_shadow_publication(settings, replace(old, release="h2"))
    release.promote("h2")
    assert release.derived is chased.derived
    chased.finish_runs.assert_called_once()
    chased.execute.assert_called_once_with(0)
    assert read_publication(settings, "hours").release == "h2"


@pytest.mark.parametrize("is_refused", [False, True])
def test_owners_hold_their_release_until_a_cancelled_plan_has_moved_the_source_back(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """An owner without a request would begin a run with its old release over the new source."""
    monkeypatch.setattr(release_kind, "request_owner", Owners(settings, dies_at=0, before=False).respond)
    with pytest.raises(KeyboardInterrupt):
        plan_stages.apply(settings, record, "ann")
    owners, held = Owners(settings), list[str | None]()

    def respond(settings: Settings, dataset: str, request: OwnerRequest, **how: Any) -> OwnerResponse:
        if dataset == "flights" and request.kind is RequestKind.PROMOTE:
            requests = [pending_request(settings, each) for each in NAMES[1:]]
            held.extend(each and each.release for each in requests)
            assert not any(each and is_due(settings, each) for each in requests)
            if is_refused:
                raise Terminal("no", code="request-refused")
        return owners.respond(settings, dataset, request, **how)

    monkeypatch.setattr(release_kind, "request_owner", respond)
    if is_refused:
        with raises(Terminal, "request-refused"):
            plan_stages.cancel(settings, load_plan(settings, record.plan.id), "ann")
        assert left(settings) == ["hours", "weeks"]
        monkeypatch.setattr(release_kind, "request_owner", Owners(settings).respond)
        plan_stages.apply(settings, load_plan(settings, record.plan.id), "ann")
        assert (published(settings), left(settings)) == (AFTER, [])
    else:
        plan_stages.cancel(settings, load_plan(settings, record.plan.id), "ann")
        assert (published(settings), left(settings)) == (BEFORE, [])
    assert held == ["h1", "w1"]


def member(settings: Settings, *, of_release: str) -> DerivedRelease:
    """Return the release h1 of hours, which reads the table of flights; its last run read one of `of_release`."""
    pipeline = SimpleNamespace(sources={"flights": "silver.flights"})
    derived = SimpleNamespace(name="hours", release="h1", pipeline=pipeline)
    used = {"silver.flights": SourceVersion("flights/x/silver", 3, of_release, 3, "")}
    publish(settings, Publication("hours", "h1", 4, NOON, {}, {}, used))
    return DerivedRelease(settings, derived, Mock(), HeldLease())  # type: ignore[arg-type]


def test_a_request_is_dropped_when_another_plan_has_moved_what_it_waits_for(
    settings: Settings, record: PlanRecord
) -> None:
    """Kept, it would hold the dataset for ever, and move it unasked when the release comes back."""
    submit_request(settings, "hours", requested(record, 1))
    read = read_publication(settings, "hours")
    publish(settings, replace(read_publication(settings, "flights"), release="ccc"))
    release, table = member(settings, of_release="aaa"), SimpleNamespace(release="ccc")
    last = read_publication(settings, "hours")
    assert not release._is_moving(last, {"silver.flights": table})  # type: ignore[dict-item]
    assert receive_request(settings, "hours", lambda: 3) is None
    assert (left(settings), read.release) == ([], "h1")


def test_another_plan_submits_its_request_in_place_of_one_that_is_never_due(
    settings: Settings, record: PlanRecord
) -> None:
    submit_request(settings, "hours", requested(record, 1))
    publish(settings, replace(read_publication(settings, "flights"), release="ccc"))
    assert drop_obsolete(settings, "hours") is not None
    submit_request(settings, "hours", OwnerRequest("", RequestKind.COMPACT, "h1"))


def test_who_meets_a_request_that_was_left_is_told_the_command_that_continues_it(
    settings: Settings, record: PlanRecord
) -> None:
    submit_request(settings, "hours", requested(record, 1))
    assert drop_obsolete(settings, "hours") is None
    with raises(Transient, "request-pending") as refused:
        submit_request(settings, "hours", OwnerRequest("", RequestKind.COMPACT, "h1"))
    assert f"headrace plan apply {record.plan.id}" in refused.value.remedy


def test_a_dataset_whose_source_has_moved_says_what_it_waits_for(settings: Settings, record: PlanRecord) -> None:
    submit_request(settings, "weeks", requested(record, 2))
    request = replace(requested(record, 1), after={"flights": "aaa"}, instead={"flights": "bbb"}, again="continue")
    submit_request(settings, "hours", request)
    publish(settings, replace(read_publication(settings, "flights"), release="bbb"))
    release, table = member(settings, of_release="aaa"), SimpleNamespace(release="bbb")
    last = read_publication(settings, "hours")
    assert release._is_moving(last, {"silver.flights": table})  # type: ignore[dict-item]
    assert release.awaited == f"plan {record.plan.id} has to publish flights aaa first: continue"


@pytest.mark.parametrize(("reader", "column", "is_held"), [("d1", "n", False), ("d2", "n", True), ("d1", "new", True)])
def test_a_reader_that_ran_over_the_base_does_not_hold_the_rollback_by_its_types(
    settings: Settings, record: PlanRecord, monkeypatch: pytest.MonkeyPatch, reader: str, column: str, is_held: bool
) -> None:
    built = ReleaseBuilt(
        batch=3, built=publication("bbb"), published=publication(), analysed={"days": Analysed("d1", ("retyped",))}
    )
    record = advanced(settings, save_plan(settings, sample_plan(settings)), *TO_APPLIED)
    events = [replace(each, result=built) if each.stage is Stage.BUILT else each for each in record.events]
    columns = {"aaa": {"n": "int"}, "bbb": {"n": "bigint", "new": "int"}}
    publish(settings, publication("bbb"))
    monkeypatch.setattr(table_readers, "columns_of", lambda _, of: {"silver.flights": columns[of.release]})
    use = ColumnUse("silver.flights", column, "days.sql:1")
    monkeypatch.setattr(table_readers, "readers_of", lambda *_: [Reader("days", reader, True, [use])])
    monkeypatch.setattr(table_readers, "plans_of_data", lambda *_: [])
    record = replace(record, events=events)
    if is_held:
        with raises(Terminal, "dependants-break"):
            table_readers.refuse_rollback(settings, record)
    else:
        table_readers.refuse_rollback(settings, record)
