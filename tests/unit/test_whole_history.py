"""A backfill or replay of all of a dataset's history is confirmed first: by a person, or by an option."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from ledgered_stream import Stream
from plan_samples import NOON, SLICE, plan_at, publication, sample_plan
from typer.testing import CliRunner

from include.change import slices as slice_plan
from include.change.kind import PlanKind
from include.change.recompute import BackfillPlan, ReplayPlan
from include.cli import changes as slice_commands
from include.cli import plan as plan_command
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span
from include.ground.settings import Settings
from include.plans.journal import newest_plans
from include.plans.plan import BACKFILL, REPLAY, Stage
from include.read.publication import publish
from include.read.published_tables import BatchOffsets

HOUR = timedelta(hours=1)
COMMANDS = {
    BACKFILL: ("--from", "2013-01-01", "--to", "2014-01-01"),
    REPLAY: ("--batches", "0..9"),
}


@pytest.mark.parametrize(
    ("spans", "complete", "expected"),
    [
        ([Span(0, 0, 20, BRONZE), Span(1, 0, 5, BRONZE)], 0, True),
        ([Span(0, 0, 7, BRONZE), Span(0, 7, 25, KAFKA), Span(1, 0, 5, KAFKA)], 0, True),
        ([Span(0, 0, 20, BRONZE)], 0, False),
        ([Span(0, 0, 9, BRONZE), Span(0, 10, 20, BRONZE), Span(1, 0, 5, BRONZE)], 0, False),
        ([Span(0, 10, 20, BRONZE)], 1, True),
    ],
    ids=["all of it", "from two sources", "a partition is left out", "a record is left out", "the rest has expired"],
)
def test_history_is_whole_when_no_published_record_is_left_out(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, spans: list[Span], complete: int, expected: bool
) -> None:
    ranges = [(0, 0, 0, 10), (0, 1, 0, 5), (1, 0, 10, 20), (1, 1, 5, 5)]
    parts = [BatchOffsets(batch, part, start, end, end - start, "topic") for batch, part, start, end in ranges]
    view = SimpleNamespace(history=SimpleNamespace(batch_offsets=parts), complete=complete)
    monkeypatch.setattr(slice_plan, "published_view", lambda *_: view)
    plan = sample_plan(settings, BACKFILL, slice=Slice(spans))
    assert slice_plan.is_whole_history(settings, plan) is expected


def test_range_over_a_history_without_an_accepted_record_may_be_whole(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SimpleNamespace(batch_offsets=[BatchOffsets(0, 0, 0, 10, 10, "topic")], silver_files=[])
    declared = SimpleNamespace(pipeline=SimpleNamespace(event_time="at"))
    view = SimpleNamespace(history=history, complete=0, declared=declared)
    monkeypatch.setattr(slice_plan, "published_view", lambda *_: view)
    slice_ = Slice([Span(0, 0, 10, BRONZE)], NOON, NOON + HOUR)
    assert slice_plan.is_whole_history(settings, sample_plan(settings, BACKFILL, slice=slice_))


@pytest.mark.parametrize(("since", "until", "expected"), [(1, 9, True), (2, 9, False), (1, 8, False)])
def test_range_that_leaves_out_events_is_no_whole_history(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, since: int, until: int, expected: bool
) -> None:
    """Its records may still be in all batches."""
    hours = ((1, 3), (2, 8))
    files = [SimpleNamespace(low={"at": NOON + low * HOUR}, high={"at": NOON + high * HOUR}) for low, high in hours]
    history = SimpleNamespace(batch_offsets=[BatchOffsets(0, 0, 0, 10, 10, "topic")], silver_files=files)
    declared = SimpleNamespace(pipeline=SimpleNamespace(event_time="at"))
    view = SimpleNamespace(history=history, complete=0, declared=declared)
    monkeypatch.setattr(slice_plan, "published_view", lambda *_: view)
    slice_ = Slice([Span(0, 0, 10, BRONZE)], NOON + since * HOUR, NOON + until * HOUR)
    assert slice_plan.is_whole_history(settings, sample_plan(settings, BACKFILL, slice=slice_)) is expected


def run(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    *options: str,
    answer: str = "",
    is_whole: bool = True,
) -> tuple[int, str, Stage, bool]:
    """Return exit code, output and the plan's stage after a run, and whether its stages were begun."""
    begun = Mock()
    monkeypatch.setattr(plan_command, "run_through", begun)
    monkeypatch.setattr(slice_commands, "recomputes_everything", lambda *_: is_whole)
    monkeypatch.setattr(plan_command, "load_settings", lambda: settings)
    monkeypatch.setattr(plan_command, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: answer != "")))
    planner: type[PlanKind[Any]] = BackfillPlan if kind == BACKFILL else ReplayPlan
    monkeypatch.setattr(planner, "plan", lambda *_: plan_at(settings, kind=kind, slice=SLICE))
    command = slice_commands.backfill if kind == BACKFILL else slice_commands.replay
    arguments = ["run", "--dataset", "flights", *COMMANDS[kind], *options]
    Stream(settings, release="aaa").silver(0, 3)
    publish(settings, publication())
    ended = CliRunner().invoke(command, arguments, input=answer)
    assert isinstance(ended.exception, SystemExit | None), ended.exception
    (record,) = newest_plans(settings).plans
    return ended.exit_code, ended.output, record.stage, begun.called


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("answer", ["", "n\n"])
def test_whole_history_without_a_confirmation_is_cancelled(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, kind: str, answer: str
) -> None:
    code, output, stage, begun = run(settings, monkeypatch, kind, answer=answer)
    assert (code, stage, begun) == (1, Stage.CANCELLED, False), output
    assert "the same command with --whole-history" in output


@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize(("options", "answer"), [(["--whole-history"], ""), (["--yes"], ""), ([], "y\n")])
def test_confirmed_whole_history_is_recomputed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, kind: str, options: list[str], answer: str
) -> None:
    code, output, stage, begun = run(settings, monkeypatch, kind, *options, answer=answer)
    assert (code, stage, begun) == (0, Stage.PLANNED, True), output


@pytest.mark.parametrize("kind", COMMANDS)
def test_part_of_the_history_needs_no_confirmation(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    code, output, stage, begun = run(settings, monkeypatch, kind, is_whole=False)
    assert (code, stage, begun) == (0, Stage.PLANNED, True), output
