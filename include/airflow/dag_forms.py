"""Trigger forms of the DAGs; `run_parameters.py` validates the values."""

from __future__ import annotations

from collections.abc import Sequence

from airflow.sdk import Param

from include.declare.yaml_declarations import NAME
from include.ground.strict_values import LAG_SECONDS, LONGEST_LAG, MAX_OFFSET
from include.plans.plan import PLAN_ID_OR_EMPTY

Form = dict[str, Param]
TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})$"
OFFSET = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET}


def stream_form() -> Form:
    """Return the fields of a stream's service level."""
    return {
        "lag_seconds": Param(
            LAG_SECONDS,
            type="number",
            exclusiveMinimum=0,
            maximum=LONGEST_LAG,
            title="Maximum lag, seconds",
            description="Age of the oldest unpublished record.",
        ),
        "grace_seconds": Param(
            180,
            type="number",
            minimum=0,
            maximum=LONGEST_LAG,
            title="Grace period, seconds",
            description="A breach that ends within it does not fail the run.",
        ),
    }


def release_form(readers: Sequence[str]) -> Form:
    """Return the fields of a release; `readers`: derived datasets that may be released with it."""
    return {
        "with": Param(
            [],
            type="array",
            items={"type": "string"},
            examples=list(readers),
            title="Together with",
            description="Derived datasets that are released in the same plan, because they read changed columns.",
        ),
        **plan_form(),
    }


def plan_form() -> Form:
    """Return the fields of every plan's form."""
    return {
        "threshold": Param(
            0,
            type="number",
            minimum=0,
            maximum=1,
            title="Differing keys that need no approval",
            description="Share of the keys of each table, 0 to 1. 0: any difference needs approval.",
            examples=[0, 0.001, 0.01],
        ),
        "dry_run": Param(
            False, type="boolean", title="Dry run", description="Logs what the plan would do; nothing is stored."
        ),
    }


def backfill_form() -> Form:
    """Return the fields of a backfill: a range of event time; empty for the run's partition."""
    return {
        "start": _moment("First event time", "Empty: recompute the day of the run's partition."),
        "end": _moment("End of the event times", "Exclusive."),
        "reference": _reference(),
        **plan_form(),
    }


def replay_form() -> Form:
    """Return the fields of a replay: which Kafka records, and where they are read."""
    return {
        "by": Param(
            "time",
            type="string",
            enum=["time", "batches", "offsets"],
            values_display={"time": "Kafka's time", "batches": "bronze batches", "offsets": "offsets of partitions"},
            title="Which records",
            description="Fill in only the fields of this choice.",
        ),
        "start": _moment("First time in Kafka", "By time: the broker's timestamp of the record.", "by time"),
        "end": _moment("End of the times in Kafka", "By time: exclusive.", "by time"),
        "first_batch": _number("First batch", "by batches"),
        "last_batch": _number("Last batch, included", "by batches"),
        "offsets": Param(
            None,
            type=["null", "object"],
            propertyNames={"pattern": r"^\d{1,10}$"},
            additionalProperties={"type": "array", "items": OFFSET, "minItems": 2, "maxItems": 2},
            title="Offsets by partition",
            description='Half-open, for instance {"0": [100, 200], "1": [0, 50]}.',
            section="by offsets",
        ),
        "source": Param(
            "auto",
            type="string",
            enum=["auto", "kafka", "bronze"],
            values_display={
                "auto": "Kafka where it has them, bronze for the rest",
                "kafka": "Kafka only",
                "bronze": "bronze only",
            },
            title="Read from",
            description="Records that Kafka has deleted are still in bronze.",
        ),
        "reference": _reference(),
        **plan_form(),
    }


def rollback_form() -> Form:
    """Return the field of a rollback: the plan."""
    return {
        "plan": Param(
            "",
            type="string",
            pattern=PLAN_ID_OR_EMPTY,
            title="Plan",
            description="A plan of `headrace plan list`, for instance replay-flights-1. Empty: the last applied one.",
        )
    }


def audit_form(datasets: list[str]) -> Form:
    """Return the fields of an audit: the datasets, and whether everything is compared again."""
    return {
        "datasets": Param(
            [],
            type="array",
            items={"type": "string", "pattern": f"^{NAME.pattern}$"},
            examples=datasets,
            title="Datasets",
            description="Empty: all.",
        ),
        "full": Param(
            False,
            type="boolean",
            title="All records again",
            description="Otherwise those after the last balanced audit, as long as the older ones are unchanged.",
        ),
    }


def _moment(title: str, description: str, section: str | None = None) -> Param:
    more = {"section": section} if section else {}
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=TIME,
        title=title,
        description=f"{description} UTC, like 2013-06-10T00:00:00Z.",
        **more,
    )


def _reference() -> Param:
    return Param(
        "as-of",
        type="string",
        enum=["as-of", "today"],
        values_display={"as-of": "as they were at each batch", "today": "as they are now"},
        title="Reference tables",
        description="What silver joins; without effect where it joins none, but “as they are now” is refused there.",
    )


def _number(title: str, section: str) -> Param:
    return Param(
        None, **{**OFFSET, "type": ["null", "integer"]}, title=title, section=section, description="A bronze batch."
    )
