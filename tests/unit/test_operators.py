"""Operators without Airflow around them: one run is one plan, nothing is done again, errors are reported by kind."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, TaskDeferred
from airflow_server import executed, run_context, served
from headrace_airflow.declarations import asset, report_failure
from headrace_airflow.operators import (
    ApplyPlan,
    ApprovePlan,
    BuildPlan,
    ComparePlan,
    PlanBackfill,
    PlanReplay,
    ReportCompleteDays,
    RollBack,
    ValidateTables,
    last_reported_before,
)
from plan_samples import SLICE, advanced, plan_at, publication

from include.change import recompute as replay_plan
from include.change import slices as slice_plan
from include.change import stages as plan_stages
from include.change.kind import Confirmation, PlanConflict
from include.change.plan_parameters import ReplayParameters
from include.change.quality import PublishedChecks
from include.change.recompute import BackfillPlan, ReplayPlan
from include.change.slices import PublishedView
from include.declare.contract_rules import RuleResult
from include.ground.errors import Refused, Terminal, Transient
from include.ground.paths import log_path
from include.ground.settings import Settings
from include.plans.comparison import Comparison, Sample, TableComparison
from include.plans.journal import find_plan, load_plan, newest_plans, save_comparison
from include.plans.plan import BACKFILL, REPLAY, PlanRecord, Prediction, Stage
from include.serve import api, work
from include.serve.work import complete_days, progress_line

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORIGIN = "replay__flights/manual__1"
FORM: dict[str, Any] = {
    "by": "batches", "start": None, "end": None, "first_batch": 1, "last_batch": 2, "offsets": None,
    "source": "auto", "reference": "as-of", "threshold": 0, "dry_run": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Every operator speaks to a console of the test's own state folder."""
    with served(settings, monkeypatch):
        yield settings


def context(params: dict[str, Any] | None = None, conf: dict[str, Any] | None = None, **run: Any) -> Any:
    """Return the context of the run."""
    return run_context(ORIGIN, params, conf, **run)


def context_of(record: PlanRecord, params: dict[str, Any] | None = None, **run: Any) -> Any:
    """Return the context of the run whose first task created the plan."""
    found = context(params, **run)
    found["ti"].pulled["plan"] = {"plan": record.plan.id}
    return found


def planned(settings: Settings, *upto: Stage, origin: str = ORIGIN, kind: str = REPLAY, **fields: Any) -> PlanRecord:
    """A plan of the run after these stages."""
    return advanced(settings, plan_at(settings, kind=kind, origin=origin), *upto, **fields)


WAY = (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED)


def test_plan_is_found_by_its_origin(own_settings: Settings) -> None:
    planned(own_settings, origin="another/run")
    mine = planned(own_settings)
    assert find_plan(own_settings, ORIGIN) == mine
    assert find_plan(own_settings, "no/such") is None
    planned(own_settings, origin="")
    assert find_plan(own_settings, "") is None, "plans of the command line have no origin"


@pytest.mark.parametrize(("kind", "raised"), [(Terminal, AirflowFailException), (Transient, AirflowException)])
def test_terminal_errors_fail_the_task_and_transient_errors_are_retried(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch, kind: type[Terminal], raised: type[Exception]
) -> None:
    def fail(*_: object) -> Any:
        raise kind("what happened", "what to do")

    monkeypatch.setattr(work, "run_plan", fail)
    monkeypatch.setattr(ReplayPlan, "plan", staticmethod(fail))
    record = planned(own_settings)
    for operator in (BuildPlan(task_id="task", dataset="flights"), PlanReplay(task_id="plan", dataset="flights")):
        with pytest.raises(raised, match="what happened") as reported:
            executed(operator, context_of(record, FORM))
        assert isinstance(reported.value, AirflowFailException) is (kind is Terminal)
        assert "what to do" in str(reported.value)


def test_task_failure_is_logged_in_the_state_folder(own_settings: Settings) -> None:
    report_failure(context())
    (line,) = log_path(own_settings, api.FAILURES).read_text().splitlines()
    result = json.loads(line)
    assert (result["run"], result["task"], result["error"]) == (ORIGIN, "task", "why")


def test_invalid_run_is_refused_before_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayPlan, "plan", staticmethod(lambda *args: pytest.fail("the planner was called")))
    operator = PlanReplay(task_id="plan", dataset="flights")
    with pytest.raises(AirflowFailException, match="surprise"):
        operator.execute(context(FORM, conf={"surprise": "{{ 7*7 }}"}))


def test_planner_gets_parameters_author_and_origin(own_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[Any] = []
    record = planned(own_settings)

    def plan_replay(*args: Any) -> PlanRecord:
        arguments.extend(args)
        return record

    monkeypatch.setattr(ReplayPlan, "plan", staticmethod(plan_replay))
    result = PlanReplay(task_id="plan", dataset="flights").execute(context(FORM))
    assert result["plan"] == record.plan.id
    settings, dataset, parameters, by, _, run = arguments
    expected = ReplayParameters(by="batches", first_batch=1, last_batch=2)
    assert (settings, dataset, parameters, by, run) == (own_settings, "flights", expected, "ann", ORIGIN)


def test_dry_run_stores_no_plan_and_ignores_open_ones(own_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plan open, a dry run was refused or waited, and left a cancelled plan in the list."""
    planned(own_settings, origin="another/run")
    view = Mock(settings=own_settings, publication=publication("aaa"))
    monkeypatch.setattr(replay_plan, "published_view", lambda *_: view)
    monkeypatch.setattr(replay_plan, "_split_by_retention", lambda *_: SLICE.spans)
    monkeypatch.setattr(replay_plan, "_requested_spans", lambda *_: SLICE.spans)
    view.plan = partial(PublishedView.plan, view)
    monkeypatch.setattr(slice_plan, "_predicted", lambda *_: Prediction(1, 2, 3, 4, 5.0, 6.0))
    view.reference.return_value = None
    before = newest_plans(own_settings)
    dry_run, operator = context(FORM | {"dry_run": True}), PlanReplay(task_id="plan", dataset="flights")
    for _ in range(2):
        with pytest.raises(AirflowException) as skipped:
            operator.execute(dry_run)
        assert type(skipped.value).__name__ == "DownstreamTasksSkipped"
        assert newest_plans(own_settings) == before
    assert dry_run["ti"].pushed["return_value"]["plan"] == "dry-run"
    with pytest.raises(AirflowFailException, match="replay-flights-1"):
        operator.execute(context(FORM))


def test_progress_is_a_sentence() -> None:
    assert progress_line({"at": "silver and rejected", "done": 0, "of": 5}) == "silver and rejected: 0 of 5 done"
    assert progress_line({"comparing": "gold.carrier_hours"}) == "comparing gold.carrier_hours"
    assert progress_line({"failed": "out of memory", "remedy": "x"}) == "the job failed: out of memory"
    assert progress_line({"built": {"batch": 3}}) == "the job has finished"


def test_refusal_is_one_sentence_without_the_errors_that_led_to_it() -> None:
    with pytest.raises(AirflowFailException) as raised:
        PlanReplay(task_id="plan", dataset="flights").execute(context(FORM | {"last_batch": "many"}))
    assert str(raised.value).startswith("param 'last_batch': ")
    assert "".join(traceback.format_exception(raised.value)).count("Traceback (most recent call last)") == 1


def test_backfill_with_a_partition_triggers_quality_by_an_event_without_one(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event with a partition reaches only DAGs with partitions: quality was not triggered after backfilled days."""
    record = planned(own_settings, *WAY, kind=BACKFILL)
    monkeypatch.setattr(work, "confirmed", lambda *_: {"result": "patched"})
    tables, plans = asset("flights", "silver.flights"), asset("flights", "plans.flights")
    events = {tables: Mock(), plans: Mock()}
    run = context_of(record, partition_key="2013-01-02") | {"outlet_events": events}
    executed(ApplyPlan(task_id="apply", dataset="flights", outlets=[tables, plans]), run)
    events[tables].add_partitions.assert_called_once_with("2013-01-02")
    events[plans].add_partitions.assert_not_called()
    assert events[plans].extra["result"] == "patched"


BACKFILL_FORM = {"start": None, "end": None, "reference": "as-of", "threshold": 0, "dry_run": False}


def test_backfill_waits_for_a_conflicting_plan_and_skips_an_empty_day(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, day = PlanBackfill(task_id="plan", dataset="flights"), context(BACKFILL_FORM, partition_key="2013-01-02")

    def in_the_way(*args: Any) -> PlanRecord:
        raise PlanConflict("flights", "replay-flights-1", "built")

    def nothing(*args: Any) -> PlanRecord:
        raise Refused("no published event lies there", code="range-empty")

    monkeypatch.setattr(BackfillPlan, "plan", staticmethod(in_the_way))
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(day)
    assert deferred.value.trigger.serialize()[1]["plan"] == "replay-flights-1"
    monkeypatch.setattr(BackfillPlan, "plan", staticmethod(nothing))
    with pytest.raises(AirflowSkipException, match="no published event"):
        operator.execute(day)
    arguments = {**BACKFILL_FORM, "start": "2013-01-02T00:00:00Z", "end": "2013-01-03T00:00:00Z"}
    with pytest.raises(AirflowFailException, match="no published event"):
        operator.execute(context(arguments))


def test_partition_key_gives_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[Any] = []

    def planning(settings: Settings, dataset: str, parameters: Any, *_: Any) -> PlanRecord:
        ranges.append((parameters.start, parameters.end))
        raise Refused("no published event lies there", code="range-empty")

    monkeypatch.setattr(BackfillPlan, "plan", staticmethod(planning))
    monkeypatch.setattr(api, "published_windows", lambda *_: [])
    operator, midnight = PlanBackfill(task_id="plan", dataset="flights"), datetime(2013, 1, 2, tzinfo=UTC)
    for run in ({"partition_key": "2013-01-02"}, {"partition_key": "x", "partition_date": midnight}):
        with pytest.raises(AirflowSkipException):
            operator.execute(context(BACKFILL_FORM, **run))
    assert ranges == [(midnight, midnight + timedelta(days=1))] * 2
    with pytest.raises(AirflowFailException, match="neither start and end nor a partition"):
        operator.execute(context(BACKFILL_FORM))
    for strange in ("2013-01-02T03:00:00+02:00", "2013-02-30", "20130102", "{{ ds }}"):
        with pytest.raises(AirflowFailException, match="is not a day"):
            operator.execute(context(BACKFILL_FORM, partition_key=strange))


def test_complete_days_are_reported_once_and_again_only_by_a_retry() -> None:
    watermark = datetime(2013, 1, 4, 23, 59, tzinfo=UTC)
    assert list(complete_days(date(2013, 1, 1), watermark)) == [date(2013, 1, 2), date(2013, 1, 3)]
    assert list(complete_days(date(2013, 1, 3), watermark)) == []
    assert list(complete_days(date(2013, 1, 9), watermark)) == [], "an earlier watermark reports nothing"
    first = list(complete_days(None, watermark))
    assert (len(first), first[-1]) == (31, date(2013, 1, 3))
    reported = {"run": "audit/7", "before": "2013-01-01", "upto": "2013-01-03"}
    assert last_reported_before(reported, "audit/8") == date(2013, 1, 3)
    assert last_reported_before(reported, "audit/7") == date(2013, 1, 1)
    assert last_reported_before(None, "audit/7") is None


def test_complete_days_are_reported_for_every_table_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    watermark = datetime(2013, 1, 4, 1, tzinfo=UTC)
    monkeypatch.setattr(api, "stream_health", lambda settings, dataset: SimpleNamespace(watermark=watermark))
    tables = [asset("flights", name) for name in ("bronze.flights", "gold.carrier_hours")]
    operator = ReportCompleteDays(task_id="days", dataset="flights", outlets=tables)
    memory: dict[str, Any] = {"told": {"run": "audit/6", "before": "", "upto": "2013-01-01"}}
    reported: dict[str, list[str]] = {}
    audited = {"flights": "balanced"}

    def audit_context(run: str) -> Any:
        events = {
            t: SimpleNamespace(add_partitions=lambda days, t=t: reported.__setitem__(t.name, days)) for t in tables
        }
        stored = SimpleNamespace(get=memory.get, set=memory.__setitem__)
        ti = SimpleNamespace(xcom_pull=lambda task_ids: audited)
        return context(run_id=run) | {"outlet_events": events, "asset_state_store": {tables[0]: stored}, "ti": ti}

    days = ["2013-01-02", "2013-01-03"]
    assert operator.execute(audit_context("7")) == days
    assert reported == {"bronze.flights": days, "gold.carrier_hours": days}
    assert operator.execute(audit_context("7")) == days, "a retry reports them again"
    with pytest.raises(AirflowSkipException, match="no day has become complete"):
        operator.execute(audit_context("8"))
    monkeypatch.setattr(api, "stream_health", lambda settings, dataset: SimpleNamespace(watermark=None))
    with pytest.raises(AirflowSkipException, match="nothing is complete"):
        operator.execute(audit_context("9"))
    audited.clear()
    with pytest.raises(AirflowSkipException, match="not audited"):
        operator.execute(audit_context("10"))


@pytest.mark.parametrize(
    ("operator", "done", "function"),
    [(BuildPlan, WAY[:1], "build"), (BuildPlan, WAY, "build"), (ComparePlan, WAY[:2], "compare_built")],
)
def test_completed_stage_is_not_repeated(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch, operator: Any, done: tuple[Stage, ...], function: str
) -> None:
    monkeypatch.setattr(plan_stages, function, lambda *args: pytest.fail("the work was done again"))
    record = planned(own_settings, *done)
    result = executed(operator(task_id="task", dataset="flights"), context_of(record))
    assert result["plan"] == record.plan.id
    assert load_plan(own_settings, record.plan.id) == record


@pytest.mark.parametrize("end", [(Stage.CANCELLED,), (Stage.BUILT, Stage.COMPARED, Stage.REJECTED)])
def test_ended_plan_is_not_continued(own_settings: Settings, end: tuple[Stage, ...]) -> None:
    record = planned(own_settings, *end)
    with pytest.raises(AirflowFailException, match=str(end[-1])):
        executed(BuildPlan(task_id="build", dataset="flights"), context_of(record))


def test_apply_of_a_run_without_a_plan_fails() -> None:
    with pytest.raises(AirflowFailException, match="has no plan"):
        executed(ApplyPlan(task_id="apply", dataset="flights"), context())


def test_apply_fails_unless_the_tables_confirm_it(own_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    record = planned(own_settings, *WAY)

    def not_there(settings: Settings, record: PlanRecord) -> dict[str, Any]:
        raise Confirmation.missing(record, "silver has no commit of it")

    monkeypatch.setattr(work, "confirm", not_there)
    with pytest.raises(AirflowFailException, match="silver has no commit of it"):
        executed(ApplyPlan(task_id="apply", dataset="flights"), context_of(record))
    assert load_plan(own_settings, record.plan.id).stage is Stage.APPLIED


def test_policy_approves_an_equal_plan(own_settings: Settings) -> None:
    record = planned(own_settings, *WAY[:2], verdict="equal")
    result = ApprovePlan(task_id="approve", dataset="flights").execute(context_of(record))
    assert result == {"plan": record.plan.id, "stage": "approved", "by": "policy"}
    assert ApprovePlan(task_id="approve", dataset="flights").execute(context_of(record)) == result, (
        "a second run changes nothing"
    )


def test_question_names_new_columns_and_values_before_and_after_and_links_the_comparison(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = planned(own_settings, *WAY[:2], verdict="needs approval")
    sample = Sample({"day": "2013-01-02"}, [{"delay": 3, "n": 1}], [{"delay": 4, "n": 1}])
    table = TableComparison(
        "gold.route_days", "both", keys=["day"], old_rows=1, new_rows=1, old_keys=1, changed=1,
        columns_added=["plane_age"], samples={"changed": [sample]},
    )  # fmt: skip
    save_comparison(own_settings, record.plan.id, Comparison("flights", "a", "b", 3, 0.0, [table]), "")
    bodies: list[str] = []
    monkeypatch.setattr(ApprovalOperator, "execute", lambda each, _: bodies.append(each.body))
    ApprovePlan(task_id="approve", dataset="flights").execute(context_of(record))
    (body,) = bodies
    assert "`plane_age` `new column`" in body
    assert "before: `delay=3`" in body
    assert "after: `delay=4`" in body
    assert f"[the whole comparison](/headrace/plans/{record.plan.id})" in body


def test_held_plan_fails_without_asking_for_approval(own_settings: Settings) -> None:
    record = planned(own_settings, *WAY[:2], verdict="held", blocked_by=("gold.route_days: few_rows",))
    with pytest.raises(AirflowFailException, match="few_rows"):
        ApprovePlan(task_id="approve", dataset="flights").execute(context_of(record))
    assert load_plan(own_settings, record.plan.id).stage is Stage.COMPARED


@pytest.mark.parametrize(("option", "stage"), [("Approve", Stage.APPROVED), ("Reject", Stage.REJECTED)])
def test_decision_is_recorded_with_its_author(own_settings: Settings, option: str, stage: Stage) -> None:
    record = planned(own_settings, *WAY[:2], verdict="needs approval")
    answered = {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": NOON,
        "responded_by_user": {"id": "7", "name": "bob"},
    }
    result = ApprovePlan(task_id="approve", dataset="flights").execute_complete(context_of(record), answered)
    assert (result["stage"], result["by"]) == (str(stage), "bob")
    assert load_plan(own_settings, record.plan.id).stage is stage


def test_last_applied_plan_is_rolled_back_and_a_retry_rolls_back_no_other(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = planned(own_settings, *WAY, origin="a/1"), planned(own_settings, *WAY, origin="a/2", kind=BACKFILL)

    def roll_back(settings: Settings, record: PlanRecord, by: str) -> PlanRecord:
        return advanced(settings, record, Stage.ROLLED_BACK, by=by)

    monkeypatch.setattr(work, "roll_back", roll_back)
    facts = ("rolled_back", "aaa", 3, "rolled back")
    monkeypatch.setattr(work, "confirm", lambda _, record: Confirmation(record.plan.id, *facts))
    operator = RollBack(task_id="roll_back", dataset="flights")
    for _ in range(2):
        assert executed(operator, context({"plan": None}))["plan"] == last.plan.id
    assert load_plan(own_settings, first.plan.id).stage is Stage.APPLIED


def test_plan_of_another_dataset_is_not_rolled_back(own_settings: Settings) -> None:
    record = planned(own_settings, *WAY)
    with pytest.raises(AirflowFailException, match="is not about weather"):
        executed(RollBack(task_id="roll_back", dataset="weather"), context({"plan": record.plan.id}))
    with pytest.raises(AirflowFailException, match="no plan is applied"):
        executed(RollBack(task_id="roll_back", dataset="weather"), context({"plan": None}))


def answered(own_settings: Settings, *actions: str) -> PublishedChecks:
    """Return results in which a rule of each action fails."""
    checks = [
        RuleResult("gold.days", "sums", "expect_x", action, "critical", passed=False, observed="7")
        for action in actions
    ]
    kept = RuleResult("gold.days", "kept", "expect_x", "fail", "critical", passed=True, observed="7")
    return PublishedChecks("flights", "aaa", 3, NOON, [kept, *checks], own_settings.state)


@pytest.mark.parametrize(("action", "fails"), [("warn", False), ("hold", True), ("fail", True)])
def test_blocking_rule_fails_the_task(
    own_settings: Settings, monkeypatch: pytest.MonkeyPatch, action: str, fails: bool
) -> None:
    monkeypatch.setattr(work, "validate_published", lambda *args: answered(own_settings, action))
    asking = ValidateTables(task_id="validate", dataset="flights")
    if not fails:
        result = executed(asking, context())
        assert result == {"release": "aaa", "batch": 3, "evaluated": 2, "failed": ["gold.days, sums (warn): 7"]}
        return
    with pytest.raises(AirflowFailException, match=rf"1 blocking rules failed.*gold.days, sums \({action}\): 7"):
        executed(asking, context())


def test_unpublished_tables_are_not_validated() -> None:
    with pytest.raises(AirflowSkipException, match="flights"):
        executed(ValidateTables(task_id="validate", dataset="flights"), context())
