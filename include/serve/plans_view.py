"""Plans: the list, newest first, and one plan with its stages, cost, comparison and events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from include.change.comparison_view import ComparisonView, comparison_view
from include.change.stages import cost, stage_states
from include.ground.settings import Settings
from include.plans.comparison import EQUAL, HELD, NEEDS_APPROVAL, Comparison
from include.plans.journal import last_failure, load_comparison, load_plan
from include.plans.lookup import newest_plans
from include.plans.plan import Event, Plan, PlanRecord
from include.plans.reader_effects import held_remedy, holding
from include.plans.stage_results import Compared, Published, Stage
from include.serve.display_values import duration, moment
from include.serve.overview_view import BAD, GOOD, IDLE, WARNING, Badge

PAGE = 50
STAGE_TONES = {
    Stage.APPLIED: GOOD,
    Stage.COMPARED: WARNING,
    Stage.APPROVED: WARNING,
    Stage.PLANNED: WARNING,
    Stage.BUILT: WARNING,
    Stage.ROLLED_BACK: BAD,
}

STATE_TONES = {"done": GOOD, "next": WARNING}


@dataclass(frozen=True)
class PlanLine:
    """A plan in the list."""

    id: str
    dataset: str
    stage: Badge
    about: str
    planned: str
    by: str
    verdict: Badge | None


@dataclass(frozen=True)
class PlansView:
    """A page of plans, newest first; `older` and `newer` are page numbers, None where there is none."""

    plans: Sequence[PlanLine]
    total: int
    newer: int | None
    older: int | None


@dataclass(frozen=True)
class StageLine:
    """One stage of a plan: done, next, then or never."""

    state: Badge
    name: str
    description: str
    done: str


@dataclass(frozen=True)
class PlanView:
    """All that a plan's page shows; `failure`: why the last attempt failed; `remedy`: what leads on if it is held."""

    line: PlanLine
    kind: str
    changes: Sequence[tuple[str, str, str]]
    cost: Sequence[str]
    stages: Sequence[StageLine]
    events: Sequence[tuple[str, str, str, str]]
    comparison: ComparisonView | None
    failure: str
    remedy: str


def plans_view(settings: Settings, number: int) -> PlansView:
    """Return a page of plans; `number` counts from 0, the newest plans."""
    found = newest_plans(settings, PAGE, number * PAGE)
    older = number + 1 if (number + 1) * PAGE < found.total else None
    return PlansView([plan_line(record) for record in found.plans], found.total, number - 1 if number else None, older)


def plan_line(record: PlanRecord) -> PlanLine:
    """Return a plan as a line of the list."""
    plan, compared = record.plan, record.find(Compared)
    # Once somebody has decided, the stage says what.
    is_shown = compared is not None and (compared.verdict != NEEDS_APPROVAL or record.stage is Stage.COMPARED)
    verdict = Badge(compared.verdict, _verdict_tone(compared.verdict)) if compared and is_shown else None
    stage = Badge(record.stage.replace("_", " "), STAGE_TONES.get(record.stage, IDLE))
    about = plan.requested or plan.about
    return PlanLine(plan.id, plan.dataset, stage, about, moment(plan.planned_at), plan.planned_by, verdict)


def _verdict_tone(verdict: str) -> str:
    return GOOD if verdict == EQUAL else BAD if verdict == HELD else WARNING


def plan_view(settings: Settings, plan: str) -> PlanView:
    """Return the page of a plan. Raises PlanUnknown, PlanUnreadable."""
    record, comparison = load_plan(settings, plan), load_comparison(settings, plan)
    return PlanView(
        line=plan_line(record),
        kind=record.plan.kind,
        changes=[(change.kind, change.table, change.why) for change in record.plan.changes],
        cost=[line.strip() for line in cost(record.plan)],
        stages=list(_stages(record)),
        events=[_event(event) for event in record.events],
        comparison=None if comparison is None else comparison_view(comparison),
        failure=last_failure(settings, plan),
        remedy=_remedy(record.plan, comparison) if record.is_open and comparison else "",
    )


def _remedy(plan: Plan, comparison: Comparison) -> str:
    """Return the commands that lead on from a plan that running readers hold, "" where none does."""
    effects = holding(comparison.dependants)
    members = [member.dataset for member in plan.members]
    return held_remedy(plan.dataset, plan.id, members, effects) if effects else ""


def _stages(record: PlanRecord) -> Iterator[StageLine]:
    for each in stage_states(record):
        done = "" if each.event is None else f"{moment(each.event.at)} by {each.event.by}"
        badge = Badge(each.state, STATE_TONES.get(each.state, IDLE))
        yield StageLine(badge, each.stage.name, each.stage.description, done)


def _event(event: Event) -> tuple[str, str, str, str]:
    result = event.result
    facts = []
    if (batch := getattr(result, "batch", None)) is not None:
        facts.append(f"at bronze batch {batch:,}")
    if isinstance(result, Published) and result.changed is not None:
        facts.append(f"{result.changed:,} rows changed")
    if seconds := getattr(result, "seconds", None):
        facts.append(f"took {duration(seconds)}")
    if isinstance(result, Compared):
        facts.append(result.verdict)
    return moment(event.at), event.stage.replace("_", " "), event.by, ", ".join(facts)
