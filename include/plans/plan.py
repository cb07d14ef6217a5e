"""A plan: an intended change of history, its stages, the order in which they may follow, and the result of each.

events.jsonl stores the results; keys of older versions are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from include.declare.history_slice import Slice
from include.declare.release_diff import TableChange
from include.ground.errors import Terminal
from include.plans.dependants import Analysed
from include.read.publication import Publication, publication_from_json, publication_json


class Stage(StrEnum):
    """How far a plan is; a new plan is `planned`."""

    PLANNED = "planned"
    BUILT = "built"
    COMPARED = "compared"
    APPROVED = "approved"
    APPLIED = "applied"
    ROLLED_BACK = "rolled_back"
    RETIRED = "retired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class StageResult(BaseModel):
    """What a stage produced; `stage` is the stage that the plan has reached with it."""

    model_config = ConfigDict(frozen=True, extra="ignore", arbitrary_types_allowed=True)
    stage: ClassVar[Stage]


class Built(StageResult):
    """A build, complete at bronze batch `batch`; it took `seconds`."""

    stage = Stage.BUILT
    batch: int
    seconds: float = 0.0


StoredPublication = Annotated[
    Publication,
    BeforeValidator(lambda v: v if isinstance(v, Publication) else publication_from_json(v)),
    PlainSerializer(publication_json),
]


class ReleaseBuilt(Built):
    """A release in tables of its own: `built`, and what was `published` at the same batch.

    `members`: the builds of the derived datasets that are released too; `analysed`: what Spark says of those that read
    the tables, by name.
    """

    built: StoredPublication
    published: StoredPublication = Field(validation_alias=AliasChoices("published", "seen"))
    members: Mapping[str, ReleaseBuilt] = Field(default_factory=dict)
    analysed: Mapping[str, Analysed] = Field(default_factory=dict)

    def of(self, dataset: str) -> ReleaseBuilt:
        return self if self.built.dataset == dataset else self.members[dataset]

    @property
    def parts(self) -> tuple[ReleaseBuilt, ...]:
        """The builds of the plan's own dataset and of its members, in the order of the plan."""
        return (self, *self.members.values())


class SliceBuilt(Built):
    """A slice recomputed in a folder of its own.

    `attempt` identifies the build; `records` were recomputed in `job_seconds`; `filled` are missing in bronze;
    `differing` rows by table; the publication was read at `read_at_ms`.
    """

    attempt: str
    records: int = 0
    filled: int = 0
    differing: Mapping[str, int] = Field(default_factory=dict)
    read_at_ms: int = 0
    job_seconds: float = 0.0

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, stored: Any) -> Any:
        """Older versions stored the job's whole output under `built`, with its own `seconds`."""
        if not isinstance(stored, Mapping) or "built" not in stored:
            return stored
        job = stored["built"]
        return {**job, "job_seconds": job.get("seconds", 0.0), "seconds": stored.get("seconds", 0.0)}

    @property
    def is_equal(self) -> bool:
        """Whether applying it would change nothing."""
        return not self.filled and not any(self.differing.values())


class Compared(StageResult):
    """The verdict of the comparison, differing keys by table, and the failed rules that it is `blocked_by`."""

    stage = Stage.COMPARED
    verdict: str
    differing: Mapping[str, int] = Field(default_factory=dict)
    blocked_by: Sequence[str] = Field(default=(), validation_alias=AliasChoices("blocked_by", "held"))


class Approved(StageResult):
    """The verdict that was approved."""

    stage = Stage.APPROVED
    verdict: str | None = None


class Published(StageResult):
    """The publication has moved, at bronze batch `batch`; `changed` is 0 when no row differed."""

    batch: int
    seconds: float | None = None
    changed: int | None = None


class Applied(Published):
    """The plan's outcome is published."""

    stage = Stage.APPLIED


class RolledBack(Published):
    """The state from before the plan is published again."""

    stage = Stage.ROLLED_BACK


class Retired(StageResult):
    """The stream no longer maintains these releases."""

    stage = Stage.RETIRED
    releases: Sequence[str]
    batch: int


class Rejected(StageResult):
    """The change was rejected."""

    stage = Stage.REJECTED


class Cancelled(StageResult):
    """The plan was dropped before it was applied."""

    stage = Stage.CANCELLED


RESULTS: Mapping[Stage, type[StageResult]] = {
    result.stage: result for result in (Compared, Approved, Applied, RolledBack, Retired, Rejected, Cancelled)
}


def read_result(stage: Stage, stored: Mapping[str, Any]) -> StageResult:
    """Return the result that an event stores. Raises ValueError when a field is missing or wrong."""
    if stage is Stage.BUILT:
        kind = ReleaseBuilt if {"seen", "published"} & stored.keys() else SliceBuilt
        return kind.model_validate(stored)
    return RESULTS[stage].model_validate(stored)


def result_json(result: StageResult) -> dict[str, Any]:
    """Return a result as JSON values, without fields that have no value."""
    return result.model_dump(mode="json", exclude_none=True)


RELEASE, BACKFILL, REPLAY, REINSTATE = "release", "backfill", "replay", "reinstate"
DERIVED_RELEASE, DERIVED_BACKFILL = "derived-release", "derived-backfill"
LOAD = "load"
RELEASES = (RELEASE, DERIVED_RELEASE, LOAD)
"""Kinds that publish another release."""
SLICES = (BACKFILL, REPLAY, REINSTATE, DERIVED_BACKFILL)
"""Kinds that recompute a slice of history with the published release."""
KIND_NAMES = (*RELEASES, *SLICES)
PLAN_ID = re.compile(r"[a-z]+-[A-Za-z0-9_.-]+-[0-9]{1,9}")
DRY_RUN = "dry-run"
"""The id of a plan that is not stored."""
OPEN = (Stage.PLANNED, Stage.BUILT, Stage.COMPARED, Stage.APPROVED)
ENDED = (Stage.RETIRED, Stage.REJECTED, Stage.CANCELLED)
"""Final stages; a slice that was rolled back has ended too."""
Transitions = Mapping[Stage, tuple[Stage, ...]]
Result = TypeVar("Result", bound=StageResult)

# A build or comparison may be repeated until the plan is approved: production has moved on meanwhile.
RELEASE_TRANSITIONS: Transitions = {
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
# An approved slice whose rows have changed since is rebuilt. A reverted one is never applied again: a new plan
# starts from the current rows.
SLICE_TRANSITIONS: Transitions = {
    **RELEASE_TRANSITIONS,
    Stage.APPROVED: (Stage.APPLIED, Stage.BUILT, Stage.CANCELLED),
    Stage.APPLIED: (Stage.ROLLED_BACK,),
    Stage.ROLLED_BACK: (),
}
TRANSITIONS: Mapping[str, Transitions] = {
    **dict.fromkeys(RELEASES, RELEASE_TRANSITIONS),
    **dict.fromkeys(SLICES, SLICE_TRANSITIONS),
}


class StageRefused(Terminal):
    """The plan is at `stage`, which `requested` may not follow."""

    def __init__(self, plan: str, stage: Stage, requested: Stage, allowed: Sequence[Stage]) -> None:
        super().__init__(
            f"plan {plan} is {stage}, it cannot become {requested} (allowed: {', '.join(allowed) or 'nothing'}); "
            "nothing was done",
            f"headrace plan show {plan}",
        )
        self.plan, self.stage, self.requested = plan, stage, requested


@dataclass(frozen=True)
class Prediction:
    """Predicted cost: records, bytes and files to read, gold rows to compute, seconds at `rate` records/s."""

    records: int
    bytes: int
    files: int
    gold_rows: int
    seconds: float
    rate: float


@dataclass(frozen=True)
class Member:
    """A derived dataset that a plan releases together with its sources: `release` in place of `base`."""

    dataset: str
    base: str
    release: str


@dataclass(frozen=True)
class Plan:
    """An intended change: release `base` was published when it was planned, `release` is to be published.

    Backfill, replay and reinstate plans keep the release and recompute `slice`; of a derived dataset it has no spans.
    A release plan recomputes everything.
    """

    id: str
    kind: str
    dataset: str
    base: str
    release: str
    planned_at: datetime
    planned_by: str
    threshold: float
    """Share of differing keys up to which no approval is needed."""
    changes: Sequence[TableChange]
    predicted: Prediction
    slice: Slice | None = None
    requested: str = ""
    """The requested range in words: `events from … to …`; for a release its first batch, unless it is the first."""
    origin: str = ""
    """The Airflow run that the plan belongs to, e.g. `replay__flights/manual__…`; a retry finds its plan by it."""
    members: Sequence[Member] = ()
    """Derived datasets that are released together with the dataset, each after those that it reads."""

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The plan as one plan for each dataset, the plan's own first; without members the plan itself."""
        own = replace(self, members=())
        others = (
            replace(own, kind=DERIVED_RELEASE, dataset=m.dataset, base=m.base, release=m.release, requested="")
            for m in self.members
        )
        return (own, *others)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets whose publications the plan moves."""
        return tuple(part.dataset for part in self.parts)

    @property
    def about(self) -> str:
        together = "".join(f", with {m.dataset} {m.base} → {m.release}" for m in self.members)
        return f"{self._own_change}{together}"

    @property
    def _own_change(self) -> str:
        if self.base == self.release:
            return f"{self.requested}, with release {self.release}"
        return f"release {self.base} → {self.release}" + (f", {self.requested}" if self.requested else "")

    @property
    def records(self) -> Slice:
        """The slice to recompute. Raises Terminal for a release plan, which has none."""
        if self.slice is None:
            raise Terminal(f"plan {self.id} has no slice of history", f"headrace plan show {self.id}")
        return self.slice


@dataclass(frozen=True)
class Event:
    """A stage that was completed: when, by whom, with which result."""

    at: datetime
    by: str
    result: StageResult

    @property
    def stage(self) -> Stage:
        return self.result.stage


@dataclass(frozen=True)
class PlanRecord:
    """A plan and its events, oldest first."""

    plan: Plan
    events: Sequence[Event]

    @property
    def stage(self) -> Stage:
        return self.events[-1].stage if self.events else Stage.PLANNED

    @property
    def parts(self) -> tuple[PlanRecord, ...]:
        """The record as one record for each dataset of the plan, with the same events."""
        return tuple(replace(self, plan=part) for part in self.plan.parts)

    def of(self, dataset: str) -> PlanRecord:
        return next(part for part in self.parts if part.plan.dataset == dataset)

    @property
    def is_open(self) -> bool:
        """Whether the plan may still change what readers see."""
        return self.stage in OPEN

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow. A slice that was rolled back is never applied again."""
        return not TRANSITIONS[self.plan.kind][self.stage]

    def find(self, kind: type[Result]) -> Result | None:
        """Return the last result of this type, None when there is none."""
        return next((e.result for e in reversed(self.events) if isinstance(e.result, kind)), None)

    def last(self, kind: type[Result]) -> Result:
        """Return the last result of this type. Raises Terminal when there is none."""
        found = self.find(kind)
        if found is None:
            raise Terminal(f"plan {self.plan.id} has no {kind.__name__} result", f"headrace plan show {self.plan.id}")
        return found


def next_command(record: PlanRecord) -> str:
    """Return the command that leads on from where a plan is, also after a process of it has died."""
    plan = record.plan.id
    if record.stage is Stage.APPLIED:
        return f"headrace plan rollback {plan}"
    possible = Stage.APPLIED in TRANSITIONS[record.plan.kind][record.stage] or record.is_open
    return f"headrace plan apply {plan}" if possible else f"headrace plan show {plan}"


def validate_stage(record: PlanRecord, requested: Stage) -> None:
    """Raise StageRefused unless `requested` may follow the plan's stage."""
    allowed = TRANSITIONS[record.plan.kind][record.stage]
    if requested not in allowed:
        raise StageRefused(record.plan.id, record.stage, requested, allowed)
