"""Decisions on plans: the functions that `headrace plan` calls, in a thread, so that a page answers at once.

Writes: what the decision writes; the log of actions before and after it.
Guarantee: one decision at a time for each plan; the plan's lock keeps out other commands.
After a crash: the plan is at the stage that its events say; the same decision may be made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from include.change import stages as plan_stages
from include.change.stages import end_and_cancel
from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import Settings
from include.plans.journal import load_plan, plan_lock
from include.plans.plan import TRANSITIONS, PlanRecord, validate_stage
from include.plans.stage_results import Stage
from include.serve.action_log import UNEXPECTED, error_line, log_action

LOCK_WITHIN = 5.0
Decide = Callable[[Settings, str, str], PlanRecord]


def _under_lock(act: Callable[[Settings, PlanRecord, str], PlanRecord]) -> Decide:
    """Return the decision on a plan's id that executes `act` under the plan's lock."""

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


class DecisionUnderWay(Terminal):
    """Somebody's decision on the plan is being executed."""

    def __init__(self, plan: str, what: str, user: str) -> None:
        super().__init__(f"{user}'s decision ({what}) on plan {plan} is being executed; nothing was done")


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
        """Begin a decision. Raises DecisionUnknown, DecisionUnderWay, PlanUnknown, StageRefused, OSError."""
        decision = DECISIONS.get(name)
        if decision is None:
            raise DecisionUnknown(name)
        validate_stage(load_plan(self.settings, plan), decision.reaches)
        with self._lock:
            last = self.outcomes.get(plan)
            if last is not None and not last.done:
                raise DecisionUnderWay(plan, last.what, last.user)
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
