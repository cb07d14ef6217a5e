"""The params of an Airflow run, validated before anything is done; those of plans are the plans' own parameter models.

Does not: import Airflow; a test compares these fields with the forms (dag_forms.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from include.change.plan_parameters import (
    BackfillParameters,
    DatasetName,
    MemberNames,
    Parameters,
    PlanParameters,
    ReleaseParameters,
    SliceParameters,
)
from include.ground.errors import Terminal
from include.ground.strict_values import LONGEST_LAG
from include.plans.plan import PLAN_ID_OR_EMPTY

SHOWN = 120


class ParamsRefused(Terminal):
    """The params of a run are invalid; `param` names the first wrong one, "" when they contradict each other."""

    def __init__(self, param: str, why: str, given: object) -> None:
        where = f"param {param!r}" if param else "the params"
        super().__init__(
            f"{where}: {why} (given: {_short(given)}); nothing was done", "trigger the DAG again with other params"
        )
        self.param, self.why = param, why


class StreamParameters(Parameters):
    """When a stream is in breach: `lag_seconds` behind, for longer than `grace_seconds`."""

    lag_seconds: Annotated[float, Field(gt=0, le=LONGEST_LAG, allow_inf_nan=False)]
    grace_seconds: Annotated[float, Field(ge=0, le=LONGEST_LAG, allow_inf_nan=False)]


class ReleaseRun(PlanParameters):
    """A release from the first batch; `members`, in the form `with`: derived datasets that are released too."""

    members: MemberNames = ()

    @property
    def plan(self) -> ReleaseParameters:
        """The plan's parameters."""
        return ReleaseParameters(members=self.members, threshold=self.threshold, dry_run=self.dry_run)


class BackfillRun(SliceParameters):
    """A backfill; without a range of event time, of the day of the run's partition."""

    def plan(self, since: datetime, until: datetime) -> BackfillParameters:
        """Return the plan's parameters for the range [since, until)."""
        chosen = self.model_dump(exclude={"start", "end"})
        return BackfillParameters(start=since, end=until, **chosen)


class RollbackParameters(Parameters):
    """`plan`: the one to roll back; "" is the last one that was applied."""

    plan: Annotated[str, Field(pattern=PLAN_ID_OR_EMPTY)]


class AuditParameters(Parameters):
    """`datasets`: the ones to audit; none named: all. `full`: also what an audit before verified."""

    datasets: Sequence[DatasetName]
    full: bool


Model = TypeVar("Model", bound=Parameters)


def validated_params(model: type[Model], given: Mapping[str, Any]) -> Model:
    """Return a run's params as `model`. Raises ParamsRefused with the first wrong one."""
    try:
        return model.model_validate_json(json.dumps(dict(given), default=str))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ParamsRefused(name, first["msg"], first["input"] if name else dict(given)) from error


def _short(given: object) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
