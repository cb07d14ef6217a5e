"""The stages of a plan and the typed result of each, as events.jsonl stores them. Keys of older versions are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from include.plans.reader_effects import Analysed
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
        """Return the build of one of the plan's datasets."""
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
