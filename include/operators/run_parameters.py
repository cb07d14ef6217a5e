"""What a run was asked for, judged before anything is done: unknown keys, wrong types, ranges that cannot be.

Does not: import Airflow; the forms (forms.py) have the same fields, and a test holds them together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from include.errors import Terminal
from include.planning.slice_plan import ReplayRange

Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]
SHOWN = 120
WRITTEN_OUT = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


class ParamsRefused(Terminal):
    """A run was asked for what cannot be; `param` names the first wrong one, "" when they do not fit together."""

    def __init__(self, param: str, why: str, given: object) -> None:
        where = f"param {param!r}" if param else "the params"
        super().__init__(
            f"{where}: {why} (given: {_short(given)}); nothing was done", "trigger the DAG again with other params"
        )
        self.param, self.why = param, why


def _written_out(value: object) -> object:
    """A bare number would be taken for seconds since 1970."""
    if not isinstance(value, str):
        return value
    if not WRITTEN_OUT.match(value):
        raise ValueError("must be a time like 2013-06-10T00:00:00Z")
    return datetime.fromisoformat(value)


Moment = Annotated[AwareDatetime, BeforeValidator(_written_out)]


class RunParameters(BaseModel):
    """Every field typed, none unknown; texts are never rendered."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamParameters(RunParameters):
    """When a stream is in breach: `lag_seconds` behind, for longer than `grace_seconds`."""

    lag_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ReleaseParameters(RunParameters):
    """`threshold`: share of differing keys that needs no approval."""

    threshold: Threshold
    dry_run: bool


class BackfillParameters(ReleaseParameters):
    """A range of event time [start, end); without both, the run's partition, a day, is it.

    `reference`: tables that silver joins, as they were at each batch, or as they are now.
    """

    start: Moment | None
    end: Moment | None
    reference: Literal["as-of", "today"]

    @model_validator(mode="after")
    def _whole(self) -> BackfillParameters:
        if (self.start is None) != (self.end is None):
            raise ValueError("start and end belong together")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError("start is not before end")
        return self


class ReplayParameters(BackfillParameters):
    """Records by Kafka's time [start, end), by batches (both included), or by offsets [first, end) of partitions."""

    by: Literal["time", "batches", "offsets"]
    first_batch: Whole | None
    last_batch: Whole | None
    offsets: dict[str, tuple[Whole, Whole]] | None
    source: Literal["auto", "kafka", "bronze"]

    @model_validator(mode="after")
    def _one_kind(self) -> ReplayParameters:
        given = {
            "time": self.start is not None,
            "batches": self.first_batch is not None or self.last_batch is not None,
            "offsets": self.offsets is not None,
        }
        if [kind for kind, is_given in given.items() if is_given] != [self.by]:
            raise ValueError(f"by is {self.by!r}: give what that needs, and nothing else")
        return self

    @model_validator(mode="after")
    def _ranges(self) -> ReplayParameters:
        if self.by == "batches" and (self.first_batch is None or self.last_batch is None):
            raise ValueError("first_batch and last_batch belong together")
        if self.first_batch is not None and self.last_batch is not None and self.first_batch > self.last_batch:
            raise ValueError("first_batch is after last_batch")
        for partition, (first, end) in (self.offsets or {}).items():
            if not (partition.isascii() and partition.isdigit()) or first >= end:
                raise ValueError(f"offsets of partition {partition!r} are no range [first, end)")
        if self.offsets is not None and not self.offsets:
            raise ValueError("offsets name no partition")
        return self

    @property
    def wanted(self) -> ReplayRange:
        """What is asked for, as the planner takes it."""
        if self.offsets is not None:
            return ReplayRange(offsets={int(partition): span for partition, span in self.offsets.items()})
        if self.start is not None and self.end is not None:
            return ReplayRange(times=(self.start, self.end))
        assert self.first_batch is not None
        assert self.last_batch is not None
        return ReplayRange(batches=(self.first_batch, self.last_batch))


class RollbackParameters(RunParameters):
    """`plan`: the one to take back; "" is the last one that was applied."""

    plan: Annotated[str, Field(pattern=r"^([a-z]+-[A-Za-z0-9_.-]+-\d+)?$")]


class AuditParameters(RunParameters):
    """`datasets`: the ones to audit; none named: all."""

    datasets: Sequence[str]


Model = TypeVar("Model", bound=RunParameters)


def validated_params(model: type[Model], given: Mapping[str, Any]) -> Model:
    """Return what was asked for; ParamsRefused names the first thing that is wrong."""
    try:
        return model.model_validate_json(json.dumps(dict(given), default=str))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ParamsRefused(name, first["msg"], first["input"] if name else dict(given)) from error


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
