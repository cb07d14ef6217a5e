"""Plans: the list, newest first; one plan with its stages, cost, comparison and events; decisions of logged-in users.

A decision is a function that `headrace plan` calls, in a thread, so that a page answers at once. There is one decision
at a time for each plan; the plan's lock keeps out other commands.
After a crash: the plan is at the stage that its events say; the same decision may be made again.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from include.change import stages as plan_stages
from include.change.comparison_view import comparison_view
from include.change.stages import cost, end_and_cancel, stage_states
from include.ground.errors import HeadraceError, Refused, Terminal
from include.ground.settings import Settings
from include.plans.comparison import EQUAL, HELD, NEEDS_APPROVAL, Comparison
from include.plans.dependants import held_remedy, holding
from include.plans.journal import last_failure, load_comparison, load_plan, newest_plans, plan_lock
from include.plans.plan import TRANSITIONS, Compared, Event, Plan, PlanRecord, Published, Stage, validate_stage
from include.serve.action_log import UNEXPECTED, error_line, last_actions, log_action
from include.serve.charts import BAD, GOOD, IDLE, WARNING, Badge, duration
from include.serve.log_in import UserSession
from include.serve.pages import Checked, Console, Shared, address_of, events, page, part, refuse_many, session_of

PAGE = 50
MOST_PAGES = 10_000
ACTIONS_SHOWN = 20
STAGE_TONES = {
    Stage.APPLIED: GOOD,
    Stage.COMPARED: WARNING,
    Stage.APPROVED: WARNING,
    Stage.PLANNED: WARNING,
    Stage.BUILT: WARNING,
    Stage.ROLLED_BACK: BAD,
}
STATE_TONES = {"done": GOOD, "next": WARNING}
VERDICT_TONES = {EQUAL: GOOD, HELD: BAD}
routes = APIRouter()


@dataclass(frozen=True)
class PlanLine:
    """A plan with its stage and, unless somebody has decided, its verdict."""

    record: PlanRecord
    stage: Badge
    verdict: Badge | None

    @property
    def plan(self) -> Plan:
        return self.record.plan


@routes.get("/plans")
def plans(request: Request, console: Shared, page_number: int = 0) -> HTMLResponse:
    """Return a page of the list of plans."""
    shown = plans_part(console.settings, min(max(page_number, 0), MOST_PAGES))
    return page(request, "plans", "Plans", "Plans", actions=last_actions(console.settings, ACTIONS_SHOWN), **shown)


def plans_part(settings: Settings, number: int) -> dict[str, Any]:
    """Return a page of plans; `number` counts from 0, the newest plans. `older`, `newer`: numbers of pages, or None."""
    found = newest_plans(settings, PAGE, number * PAGE)
    return {
        "lines": [plan_line(record) for record in found.plans],
        "total": found.total,
        "newer": number - 1 if number else None,
        "older": number + 1 if (number + 1) * PAGE < found.total else None,
    }


def plan_line(record: PlanRecord) -> PlanLine:
    """Return a plan as a line of the list."""
    compared = record.find(Compared)
    # Once somebody has decided, the stage says what.
    is_shown = compared is not None and (compared.verdict != NEEDS_APPROVAL or record.stage is Stage.COMPARED)
    verdict = Badge(compared.verdict, VERDICT_TONES.get(compared.verdict, WARNING)) if compared and is_shown else None
    return PlanLine(record, Badge(record.stage.replace("_", " "), STAGE_TONES.get(record.stage, IDLE)), verdict)


@routes.get("/plans/{plan}")
def one_plan(request: Request, console: Shared, plan: str) -> HTMLResponse:
    """Return the page of a plan. Raises PlanUnknown, PlanUnreadable."""
    settings = console.settings
    shown, comparison = plan_part(console, plan, session_of(request)), load_comparison(settings, plan)
    record: PlanRecord = shown["line"].record
    return page(
        *(request, "plan", "Plans", plan),
        live=f"/live/plans/{quote(plan)}",
        cost=[line.strip() for line in cost(record.plan)],
        comparison=None if comparison is None else comparison_view(comparison),
        remedy=_remedy(record.plan, comparison) if record.is_open and comparison else "",
        **shown,
    )


def live_part(request: Request, console: Shared, plan: str) -> Callable[[], str]:
    """Return what renders the changing part of a plan's page. Raises PlanUnknown."""
    load_plan(console.settings, plan)
    return lambda: part("plan", **plan_part(console, plan, session_of(request)))


@routes.get("/live/plans/{plan}", response_class=EventSourceResponse, dependencies=[Depends(refuse_many)])
async def live_plan(
    request: Request, console: Shared, plan: str, render: Annotated[Callable[[], str], Depends(live_part)]
) -> AsyncIterator[ServerSentEvent]:
    """Stream the stages of a plan. Raises PlanUnknown."""
    outcomes = desk_of(console).outcomes
    async for event in events(request, render, lambda: outcomes.get(plan)):
        yield event


def plan_part(console: Console, plan: str, session: UserSession | None) -> dict[str, Any]:
    """Return what the part of the page shows that changes. Raises PlanUnknown, PlanUnreadable.

    `failure`: why the last attempt failed.
    """
    record, outcome = load_plan(console.settings, plan), desk_of(console).outcomes.get(plan)
    may_decide = session is not None and (outcome is None or outcome.done)
    return {
        "line": plan_line(record),
        "failure": last_failure(console.settings, plan),
        "stages": [(each, Badge(each.state, STATE_TONES.get(each.state, IDLE))) for each in stage_states(record)],
        "events": [(each, ", ".join(_facts(each))) for each in record.events],
        "decisions": possible_decisions(record) if may_decide else (),
        "csrf": session.csrf if session else "",
        "outcome": outcome,
        "actions": last_actions(console.settings, ACTIONS_SHOWN, plan),
    }


def _remedy(plan: Plan, comparison: Comparison) -> str:
    """Return the commands that lead on from a plan that running readers hold, "" where none does."""
    effects = holding(comparison.dependants)
    members = [member.dataset for member in plan.members]
    return held_remedy(plan.dataset, plan.id, members, effects) if effects else ""


def _facts(event: Event) -> list[str]:
    result, facts = event.result, []
    if (batch := getattr(result, "batch", None)) is not None:
        facts.append(f"at bronze batch {batch:,}")
    if isinstance(result, Published) and result.changed is not None:
        facts.append(f"{result.changed:,} rows changed")
    if seconds := getattr(result, "seconds", None):
        facts.append(f"took {duration(seconds)}")
    if isinstance(result, Compared):
        facts.append(result.verdict)
    return facts


LOCK_WITHIN = 5.0
Decide = Callable[[Settings, str, str], PlanRecord]


def _under_lock(act: Callable[[Settings, PlanRecord, str], PlanRecord]) -> Decide:
    def decide(settings: Settings, plan: str, user: str) -> PlanRecord:
        with plan_lock(settings, plan, LOCK_WITHIN):
            return act(settings, load_plan(settings, plan), user)

    return decide


@dataclass(frozen=True)
class PlanDecision:
    """A decision: its name in addresses, the button's label, the stage that it reaches, and what it does in words.

    `decide` raises what its function in include/change raises, and PlanBusy.
    """

    name: str
    label: str
    reaches: Stage
    meaning: str
    decide: Decide
    is_final: bool = False


DECISIONS: Mapping[str, PlanDecision] = {
    each.name: each
    for each in (
        PlanDecision(
            "approve", "Approve", Stage.APPROVED, "accept the change as compared; it is published by Apply",
            _under_lock(plan_stages.approve),
        ),
        PlanDecision(
            "apply", "Apply", Stage.APPLIED, "publish it: all tables move at once; it can be rolled back",
            _under_lock(plan_stages.apply),
        ),
        PlanDecision(
            "rollback", "Roll back", Stage.ROLLED_BACK, "publish the state from before the plan again",
            _under_lock(plan_stages.roll_back), is_final=True,
        ),
        PlanDecision(
            "reject", "Reject", Stage.REJECTED, "refuse the change; what readers see is unchanged",
            _under_lock(plan_stages.reject), is_final=True,
        ),
        PlanDecision(
            "cancel", "Cancel", Stage.CANCELLED, "drop the plan and end its job; what it has moved is moved back",
            partial(end_and_cancel, wait=LOCK_WITHIN), is_final=True,
        ),
    )
}  # fmt: skip


class DecisionUnknown(Terminal):
    """There is no such decision."""

    def __init__(self, name: str) -> None:
        known = ", ".join(DECISIONS)
        super().__init__(f"{name[:80]!r} is not a decision on a plan; nothing was done", f"one of: {known}")


@dataclass(frozen=True)
class Outcome:
    """The last decision on a plan in this server: `error` is "" while it runs (`done` false) and when it succeeded."""

    what: str
    user: str
    at: datetime
    done: bool = False
    error: str = ""


@dataclass
class PlanDesk:
    """Executes decisions; remembers the last outcome for each plan."""

    settings: Settings
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "decision"))

    def submit(self, plan: str, name: str, user: str, address: str) -> None:
        """Begin a decision. Raises DecisionUnknown, Refused, PlanUnknown, StageRefused, OSError."""
        decision = DECISIONS.get(name)
        if decision is None:
            raise DecisionUnknown(name)
        validate_stage(load_plan(self.settings, plan), decision.reaches)
        with self._lock:
            last = self.outcomes.get(plan)
            if last is not None and not last.done:
                what = f"{last.user}'s decision ({last.what}) on plan {plan} is being executed; nothing was done"
                raise Refused(what, code="decision-under-way", plan=plan)
            log_action(self.settings, user, address, name, plan, "requested")
            self.outcomes[plan] = Outcome(decision.label, user, datetime.now(UTC))
        self._pool.submit(self._execute, plan, decision, user, address)

    def _execute(self, plan: str, decision: PlanDecision, user: str, address: str) -> None:
        error = f"{UNEXPECTED}; headrace plan show has the plan's stage"
        try:
            decision.decide(self.settings, plan, user)
            error = ""
        except HeadraceError as found:
            error = error_line(found)
        finally:
            self.outcomes[plan] = Outcome(decision.label, user, datetime.now(UTC), True, error)
            log_action(self.settings, user, address, decision.name, plan, error or "done")


def possible_decisions(record: PlanRecord) -> Sequence[PlanDecision]:
    """Return the decisions that may follow the plan's stage."""
    allowed = TRANSITIONS[record.plan.kind][record.stage]
    return [decision for decision in DECISIONS.values() if decision.reaches in allowed]


def desk_of(console: Console) -> PlanDesk:
    """Return the desk of this server."""
    found: PlanDesk = console.memory.get("desk") or console.memory.setdefault("desk", PlanDesk(console.settings))
    return found


@routes.post("/plans/{plan}/{decision}")
def decide(request: Request, console: Shared, session: Checked, plan: str, decision: str) -> Response:
    """Begin a decision of the user, and return to the plan's page. Raises FormRefused, and as `submit`."""
    desk_of(console).submit(plan, decision, session.user, address_of(request))
    return RedirectResponse(f"/plans/{quote(plan)}", 303)
