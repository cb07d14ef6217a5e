"""The parameters of plans, validated once: command line options and Airflow params both become these models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from include.declare.yaml_declarations import NAME
from include.ground.strict_values import MAX_OFFSET

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
