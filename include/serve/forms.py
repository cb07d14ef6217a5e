"""What Airflow reads of this platform, and what its requests contain: datasets, forms of DAGs, models of bodies.

The form of a kind of DAG is made from the model of its values: a field of the model is a field of the form.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from include.change.plan_parameters import (
    BackfillParameters,
    DatasetName,
    Form,
    LoadParameters,
    Parameters,
    ReleaseParameters,
    ReplayParameters,
    SliceParameters,
    form,
)
from include.declare.analyses import analysis_files
from include.declare.dataset import dataset_names
from include.declare.derived_dataset import derived_names, load_derived, origin_datasets
from include.declare.gold import full_name
from include.declare.pipeline import load_pipeline
from include.declare.windows import Window, day_range
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.ground.strict_values import LAG_SECONDS, LONGEST_LAG
from include.plans.plan import PLAN_ID, Stage

log = logging.getLogger(__name__)


class BackfillRun(SliceParameters):
    """A backfill; without a range of event time, of the day of the run's partition."""

    def plan(self, since: datetime, until: datetime) -> BackfillParameters:
        return BackfillParameters(**{**dict(self), "start": since, "end": until})


class StreamParameters(Parameters):
    """When a stream is in breach: `lag_seconds` behind, for longer than `grace_seconds`."""

    lag_seconds: float = Field(
        gt=0,
        le=LONGEST_LAG,
        allow_inf_nan=False,
        title="Maximum lag, seconds",
        description="Age of the oldest unpublished record.",
        json_schema_extra={"default": LAG_SECONDS},
    )
    grace_seconds: float = Field(
        ge=0,
        le=LONGEST_LAG,
        allow_inf_nan=False,
        title="Grace period, seconds",
        description="A breach that ends within it does not fail the run.",
        json_schema_extra={"default": 180},
    )


class RollbackParameters(Parameters):
    """`plan`: the one to roll back; none: the last one that was applied."""

    # None and not "": Airflow's form takes an empty text for a missing value, and refuses it unless null is allowed.
    plan: Annotated[str, StringConstraints(pattern=f"^{PLAN_ID.pattern}$")] | None = Field(
        None,
        title="Plan",
        description="A plan of `headrace plan list`, for instance replay-flights-1. Empty: the last applied one.",
    )


class AuditParameters(Parameters):
    """`datasets`: the ones to audit; none named: all. `full`: also what an audit before verified."""

    datasets: Sequence[DatasetName] = Field(
        title="Datasets", description="Empty: all.", json_schema_extra={"default": []}
    )
    full: bool = Field(
        title="All records again",
        description="Otherwise those after the last balanced audit, as long as the older ones are unchanged.",
        json_schema_extra={"default": False},
    )


FORMS: Mapping[str, type[Parameters]] = {
    "stream": StreamParameters,
    "release": ReleaseParameters,
    "backfill": BackfillRun,
    "replay": ReplayParameters,
    "load": LoadParameters,
    "rollback": RollbackParameters,
    "audit": AuditParameters,
}
"""The kinds of DAGs that have a form, with the models of their values."""


def declarations(settings: Settings) -> Mapping[str, Any]:
    """Return the folders that have a stream, those with a topic first, and the form of each kind of DAG."""
    topics, derived = dataset_names(settings), derived_names(settings)
    known = {"with": derived, "datasets": [*topics, *derived]}
    return {
        "datasets": [
            *(_topic(settings, name) for name in topics),
            *(_derived(settings, name) for name in derived),
        ],
        "forms": {kind: dag_form(model, known) for kind, model in FORMS.items()},
    }


def dag_form(model: type[Parameters], choices: Mapping[str, Sequence[str]]) -> Form:
    """Return a model's form with the names that this platform has, which Airflow's page offers as choices."""
    return {
        name: {**field, "examples": choices[name]} if name in choices else field for name, field in form(model).items()
    }


def _topic(settings: Settings, name: str) -> Mapping[str, Any]:
    """Describe a dataset with a topic; one with an invalid pipeline has no gold, and its first task fails."""
    gold: list[str] = []
    days = 1
    try:
        pipeline = load_pipeline(settings.datasets / name)
    except HeadraceError as error:
        log.warning("%s", error.what)
    else:
        gold = [table.name for table in pipeline.gold]
        days = 1 + -(-(pipeline.lateness + _behind_utc(pipeline.windows)) // timedelta(days=1))
    return {
        "name": name,
        "tables": [f"silver.{name}", f"rejected.{name}", *(full_name(table) for table in gold)],
        "bronze": f"bronze.{name}",
        "complete_after": days,
        # A wrong file fails its own task.
        "analyses": [path.stem for path in analysis_files(settings.datasets / name)],
    }


def _derived(settings: Settings, name: str) -> Mapping[str, Any]:
    """Describe a derived dataset; an invalid one has no tables. Its days are complete when all sources have them."""
    tables, days = list[str](), 1
    try:
        derived = load_derived(name, settings.datasets / name, strict=False)
        tables = [f"gold.{table.name}" for table in derived.pipeline.gold]
        sources = origin_datasets(settings, name)
        days = max((int(_topic(settings, source)["complete_after"]) for source in sources), default=1)
    except HeadraceError as error:
        log.warning("%s", error.what)
    return {"name": name, "tables": tables, "bronze": None, "complete_after": days, "analyses": []}


def _behind_utc(windows: Sequence[Window]) -> timedelta:
    """Return how long after midnight (UTC) a day still lasts in the calendars of windows, in winter and in summer."""
    midnights = [datetime(2026, month, 2, tzinfo=UTC) for month in (1, 7)]
    ends = [day_range(windows, date(2026, month, 1))[1] for month in (1, 7)]
    return max(timedelta(), *(end - midnight for end, midnight in zip(ends, midnights, strict=True)))


Given = TypeVar("Given", bound=Parameters)
# A line of a log or a table, not an essay: a run of Airflow is named by two names of at most 250 characters.
Behalf = Annotated[str, StringConstraints(min_length=1, max_length=520, pattern=r"^[^\x00-\x1f\x7f]+$")]
# A verb, and whom or what it is about.
WorkKey = Annotated[str, StringConstraints(min_length=1, max_length=600)]

Line = Annotated[str, StringConstraints(max_length=250, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Body(BaseModel):
    """What a request must contain: `by` is the run or person for which the client acts, as it claims."""

    model_config = ConfigDict(extra="forbid")
    by: Behalf


class StreamBody(Body):
    """A request for a stream; `parameters` are validated for the client, which watches the stream."""

    parameters: StreamParameters | None = None


class PlanBody(Body, Generic[Given]):
    """A plan's parameters; a second request by the same `origin` gets the first one's plan."""

    dataset: DatasetName
    parameters: Given
    origin: Behalf


class BackfillBody(PlanBody[BackfillRun]):
    """A backfill of the parameters' range, else of the day `partition`."""

    partition: Line = ""


class EndedRunBody(Body):
    """The origin of a run that has ended."""

    origin: Behalf


class RunBody(Body):
    """How far a plan is to be run: `built`, `compared`, `approved` (by its threshold alone) or `applied`."""

    upto: Stage


class AuditBody(Body):
    """The datasets to audit (none: all), and whether also what an audit before verified."""

    parameters: AuditParameters = AuditParameters(datasets=(), full=False)


class DatasetBody(Body):
    """A dataset to validate or to maintain."""

    dataset: DatasetName


class AnalysisBody(DatasetBody):
    """A declared analysis of a dataset."""

    analysis: Line


class RollbackBody(PlanBody[RollbackParameters]):
    """The plan to roll back; a second request by the same `origin` rolls back no other."""


class FailureBody(Body):
    """A task that has failed; `by` is its run."""

    task: Behalf
    attempt: int
    error: Annotated[str, StringConstraints(max_length=4000, pattern=r"^[^\x00]*$")]
