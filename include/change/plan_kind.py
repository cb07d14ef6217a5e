"""The interface that every kind of plan implements: what to build, to compare, to apply and to revert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from include.change.compare_tables import Side
from include.change.plan_parameters import PlanParameters
from include.ground.settings import Settings
from include.plans.comparison import Comparison
from include.plans.plan import Plan, PlanRecord
from include.plans.stage_results import Applied, Built, RolledBack
from include.read.publication import Publication


@dataclass(frozen=True)
class Confirmation:
    """What the tables have of an applied or rolled back plan, at the published release and batch."""

    plan: str
    stage: str
    release: str
    batch: int
    result: str
    silver_version: int | None = None


@dataclass(frozen=True)
class PlanKind:
    """One kind of plan. The functions are called by `plan_stages`, in the order of the fields."""

    name: str
    parameters: type[PlanParameters]
    describe_build: Callable[[Plan], str]
    describe_apply: Callable[[Plan], str]
    refuse_applied: Callable[[Settings, Plan], None]
    """Raises AlreadyPublished when the tables have the plan's outcome although its events do not record it."""
    build_job: Callable[[Plan], tuple[str, ...]]
    """The job's module and arguments."""
    read_build: Callable[[Mapping[str, Any], float], Built]
    """Turns the job's last output and its seconds into a result."""
    sides: Callable[[Settings, PlanRecord], tuple[Side, Side]]
    builds_whole_tables: bool
    """Whether the build is whole tables: then the contract's rules are evaluated on them even if they are equal."""
    record_comparison: Callable[[Settings, PlanRecord, Comparison], None]
    apply: Callable[[Settings, PlanRecord], Applied]
    confirm: Callable[[Settings, PlanRecord, Publication], Confirmation]
    refuse_apply: Callable[[Settings, PlanRecord], None]
    """Raises why the outcome must not be published now, before it is approved and before it is applied."""
    refuse_revert: Callable[[Settings, PlanRecord], None]
    revert: Callable[[Settings, PlanRecord], RolledBack]
    drop_build: Callable[[Settings, Plan], None]
    undo_decisions: Callable[[Settings, Plan, str], None]
    """Called with the author when the plan is cancelled, rejected or rolled back."""


def nothing(*_: object) -> None:
    """Do nothing: for kinds that have no such step."""
