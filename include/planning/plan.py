"""What a plan is: an intended change of history, its stages, and what may follow what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from include.catalog.history_slice import Slice
from include.catalog.release_diff import TableChange
from include.errors import Terminal

RELEASE, BACKFILL, REPLAY, REINSTATE = "release", "backfill", "replay", "reinstate"


class Stage(StrEnum):
    """How far a plan is; a plan begins `planned`."""

    PLANNED = "planned"
    BUILT = "built"
    COMPARED = "compared"
    APPROVED = "approved"
    APPLIED = "applied"
    ROLLED_BACK = "rolled_back"
    RETIRED = "retired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


OPEN = (Stage.PLANNED, Stage.BUILT, Stage.COMPARED, Stage.APPROVED)
# A build or comparison may be done again while nothing is approved: production has moved on meanwhile.
FOLLOWING: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.PLANNED: (Stage.BUILT, Stage.CANCELLED),
    Stage.BUILT: (Stage.BUILT, Stage.COMPARED, Stage.CANCELLED),
    Stage.COMPARED: (Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.REJECTED, Stage.CANCELLED),
    Stage.APPROVED: (Stage.APPLIED, Stage.CANCELLED),
    Stage.APPLIED: (Stage.ROLLED_BACK, Stage.RETIRED),
    Stage.ROLLED_BACK: (Stage.APPLIED, Stage.RETIRED),
    Stage.RETIRED: (),
    Stage.REJECTED: (),
    Stage.CANCELLED: (),
}
# A slice whose rows have changed since it was approved is compared again. One that was taken back is not applied a
# second time: it is planned again, from what is there then.
FOLLOWING_A_SLICE: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.APPROVED: (Stage.APPLIED, Stage.BUILT, Stage.CANCELLED),
    Stage.APPLIED: (Stage.ROLLED_BACK,),
    Stage.ROLLED_BACK: (),
}


class StageRefused(Terminal):
    """The plan is not where this stage could follow; `stage` is where it is."""

    def __init__(self, plan: str, stage: Stage, wanted: Stage, may_follow: Sequence[Stage]) -> None:
        allowed = ", ".join(may_follow) or "nothing"
        super().__init__(
            f"plan {plan} is {stage}, it cannot become {wanted} (only: {allowed}); nothing was done",
            f"headrace plan show {plan}",
        )
        self.plan, self.stage, self.wanted = plan, stage, wanted


@dataclass(frozen=True)
class Prediction:
    """What the plan will take: records, bytes and files to read, gold rows to make, seconds at the rate assumed."""

    records: int
    bytes: int
    files: int
    gold_rows: int
    seconds: float
    rate: float


@dataclass(frozen=True)
class Plan:
    """An intended change: `base` is the release that readers saw when it was planned, `release` what they are to see.

    A backfill and a replay keep the release and do a `slice` of its history again; a release plan has none.
    """

    id: str
    kind: str
    dataset: str
    base: str
    release: str
    planned_at: datetime
    planned_by: str
    threshold: float
    """Share of changed keys up to which no approval is needed."""
    changes: Sequence[TableChange]
    predicted: Prediction
    slice: Slice | None = None
    asked: str = ""
    """What was asked, in words: `events from … to …`; of a release, where it begins, unless at the start."""
    origin: str = ""
    """The one wish that this plan answers, where whoever has it may ask again: `replay__flights/manual__…`."""

    @property
    def about(self) -> str:
        """What the plan is about, in a line."""
        if self.slice is None:
            return f"release {self.base} → {self.release}" + (f", {self.asked}" if self.asked else "")
        return f"{self.asked}, with release {self.release}"


@dataclass(frozen=True)
class Event:
    """A stage that was reached, when, by whom, and what came of it."""

    stage: Stage
    at: datetime
    by: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanRecord:
    """A plan and all that happened to it, oldest first."""

    plan: Plan
    events: Sequence[Event]

    @property
    def stage(self) -> Stage:
        """Where the plan is."""
        return self.events[-1].stage if self.events else Stage.PLANNED

    @property
    def is_open(self) -> bool:
        """Whether it may still change what readers see."""
        return self.stage in OPEN

    def facts_of(self, stage: Stage) -> Mapping[str, Any]:
        """Return what came of the last time this stage was reached; empty when it never was."""
        return next((event.facts for event in reversed(self.events) if event.stage is stage), {})


def validate_stage(record: PlanRecord, wanted: Stage) -> None:
    """Raise StageRefused unless `wanted` may follow where the plan is."""
    allowed = following(record)
    if wanted not in allowed:
        raise StageRefused(record.plan.id, record.stage, wanted, allowed)


def following(record: PlanRecord) -> tuple[Stage, ...]:
    """Return the stages that may follow where the plan is."""
    rules = FOLLOWING if record.plan.slice is None else {**FOLLOWING, **FOLLOWING_A_SLICE}
    return rules[record.stage]
