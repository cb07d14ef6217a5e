"""The parameters of plans, declared and validated once; options, forms and requests become these models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from include.declare.event_times import utc_text
from include.declare.yaml_declarations import NAME
from include.ground.strict_values import MAX_OFFSET, offset_range, partition_number

WRITTEN_OUT = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d", re.ASCII)
AS_OF = "as-of"


def _utc(value: object) -> object:
    """A bare number would be read as seconds since 1970, a time without a zone as local time."""
    if isinstance(value, str):
        if not WRITTEN_OUT.match(value):
            raise ValueError("must be a time like 2013-06-10T00:00:00Z")
        value = datetime.fromisoformat(value)
    try:
        return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
    except OverflowError as error:
        raise ValueError("is outside the years 1 to 9999 in UTC") from error


UtcTime = Annotated[AwareDatetime, BeforeValidator(_utc)]
Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=MAX_OFFSET)]
Reference = Literal["as-of", "today"]
DatasetName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
"""A dataset's name from outside; whether the dataset exists is another question."""


class Parameters(BaseModel):
    """Every field is typed, unknown fields are errors, nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


MemberNames = Annotated[Sequence[DatasetName], Field(alias="with")]


class PlanParameters(Parameters):
    """`threshold`: share of differing keys that needs no approval.

    `dry_run`: the plan is returned and not stored; open plans do not matter to it.
    """

    threshold: Threshold = 0.0
    dry_run: bool = False


class SliceParameters(PlanParameters):
    """A range of time [start, end), and which versions of the reference tables silver joins.

    `reference`: `as-of` joins them as they were at each batch, `today` as they are now.
    """

    start: UtcTime | None = None
    end: UtcTime | None = None
    reference: Reference = "as-of"

    @model_validator(mode="after")
    def _require_start_before_end(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise ValueError("start and end belong together")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError("start is not before end")
        return self


class ReleaseParameters(PlanParameters):
    """Where the release starts: a bronze batch, or the first batch of a Kafka time; neither: the first batch.

    `members`, given as `with`: derived datasets that are released together with the dataset.
    """

    from_batch: Number | None = None
    from_timestamp: UtcTime | None = None
    members: MemberNames = ()

    @model_validator(mode="after")
    def _require_at_most_one_start(self) -> Self:
        if self.from_batch is not None and self.from_timestamp is not None:
            raise ValueError("give one of from_batch and from_timestamp")
        return self


def format_range(since: datetime, until: datetime) -> str:
    """Return the range [since, until) in words."""
    return f"from {utc_text(since, 'minutes')} to before {utc_text(until, 'minutes')} UTC"


class BackfillParameters(SliceParameters):
    """A range of event time [start, end)."""

    start: UtcTime
    end: UtcTime


def _offset_ranges(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    if not given:
        raise ValueError("offsets name no partition")
    return {partition_number(str(p)): offset_range(str(p), span) for p, span in given.items()}


Offsets = Annotated[dict[int, tuple[int, int]], BeforeValidator(_offset_ranges)]


class ReplayParameters(SliceParameters):
    """Records by Kafka's time [start, end), by batches (both included), or by offsets [start, end) of partitions.

    `source`: `kafka` or `bronze` reads only there, `auto` reads bronze for what Kafka has deleted.
    """

    by: Literal["time", "batches", "offsets"]
    first_batch: Number | None = None
    last_batch: Number | None = None
    offsets: Offsets | None = None
    source: Literal["auto", "kafka", "bronze"] = "auto"

    @model_validator(mode="after")
    def _require_one_range(self) -> Self:
        given = {
            "time": self.start is not None,
            "batches": self.first_batch is not None or self.last_batch is not None,
            "offsets": self.offsets is not None,
        }
        if [name for name, is_given in given.items() if is_given] != [self.by]:
            raise ValueError(f"by is {self.by!r}: give what that needs, and nothing else")
        if (self.first_batch is None) != (self.last_batch is None):
            raise ValueError("first_batch and last_batch belong together")
        if self.first_batch is not None and self.last_batch is not None and self.first_batch > self.last_batch:
            raise ValueError("first_batch is after last_batch")
        return self

    @property
    def requested(self) -> str:
        """The range in words."""
        if self.offsets is not None:
            return "offsets " + ", ".join(f"{p}: {start} to {end - 1}" for p, (start, end) in self.offsets.items())
        if self.start is not None and self.end is not None:
            return f"records of Kafka time {format_range(self.start, self.end)}"
        return f"batches {self.first_batch} to {self.last_batch}"
