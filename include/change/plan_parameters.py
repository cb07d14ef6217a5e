"""The parameters of plans, each declared once: validation, options of commands and fields of forms are made from it.

A new parameter is a field of one of these models, and what its kind of plan does with it. A field's title, description
and extras are those of its form; `Option` says what is different on the command line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from include.declare.event_times import utc_text
from include.declare.yaml_declarations import NAME
from include.ground import strict_values
from include.ground.strict_values import MAX_OFFSET, offset_range, partition_number

TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})$"
AS_OF = "as-of"
OFFSET = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET}
OFFSETS = {
    "type": "object",
    "propertyNames": {"pattern": r"^\d{1,10}$"},
    "additionalProperties": {"type": "array", "items": OFFSET, "minItems": 2, "maxItems": 2},
}


def _utc(value: object) -> object:
    """A bare number would be read as seconds since 1970, a time without a zone as local time."""
    text = value.isoformat() if isinstance(value, datetime) else value
    if not isinstance(text, str):
        return value
    if not re.match(TIME, text, re.ASCII):
        raise ValueError("must be a time like 2013-06-10T00:00:00Z")
    return strict_values.utc_time(text)


def _offset_ranges(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    if not given:
        raise ValueError("offsets name no partition")
    return {partition_number(str(p)): offset_range(str(p), span) for p, span in given.items()}


UtcTime = Annotated[
    AwareDatetime,
    BeforeValidator(_utc),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": TIME}),
]
Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=MAX_OFFSET)]
Offsets = Annotated[dict[int, tuple[int, int]], BeforeValidator(_offset_ranges), WithJsonSchema(OFFSETS)]
DatasetName = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
"""A dataset's name from outside; whether the dataset exists is another question."""
MemberNames = Annotated[Sequence[DatasetName], Field(alias="with")]


@dataclass(frozen=True)
class Option:
    """How a command takes a field.

    `name`: by default the field's own. `metavar`: what help calls the value. `parser`: turns the text into the value;
    ValueError says why it is wrong. `help`: by default the field's description. `hidden`: the command has no option.
    """

    name: str = ""
    metavar: str | None = None
    parser: Callable[[Any], Any] | None = None
    help: str = ""
    hidden: bool = False


HIDDEN = Option(hidden=True)
Reference = Annotated[
    Literal["as-of", "today"],
    Option(help="as-of: reference tables as they were at each batch; today: as they are now."),
    Field(
        title="Reference tables",
        description="What silver joins; without effect where it joins none, but “as they are now” is refused there.",
        json_schema_extra={"values_display": {"as-of": "as they were at each batch", "today": "as they are now"}},
    ),
]


def time_option(name: str, help_: str) -> Option:
    """Return an option for a time, which a form takes with its zone and a command in UTC."""
    return Option(name, "TIME", strict_values.utc_time, help_)


OFFSETS_OPTION = Option(
    "--offsets", "JSON", strict_values.offset_ranges, 'By partition, end exclusive: {"0": [100, 200]}.'
)
FROM = time_option("--from", "First event time, UTC.")
TO = time_option("--to", "End of the event times, exclusive, UTC.")
FIRST_EVENT = Field(
    title="First event time",
    description="Empty: recompute the day of the run's partition. UTC, like 2013-06-10T00:00:00Z.",
)
LAST_EVENT = Field(title="End of the event times", description="Exclusive. UTC, like 2013-06-10T00:00:00Z.")


class Parameters(BaseModel):
    """Every field is typed, unknown fields are errors, nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

    @classmethod
    def names(cls) -> Sequence[str]:
        """The fields in the order of forms and options: a class's own first, the inherited ones after them."""
        declared = [name for each in cls.__mro__ for name in inspect.get_annotations(each)]
        return [name for name in dict.fromkeys(declared) if name in cls.model_fields]

    @classmethod
    def option(cls, name: str) -> Option:
        """Return how a command takes a field, which an error names by its alias."""
        field = cls.model_fields.get(name) or next(f for f in cls.model_fields.values() if f.alias == name)
        found = next((each for each in field.metadata if isinstance(each, Option)), Option())
        return found if found.name else replace(found, name=f"--{name.replace('_', '-')}")

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the parameters for the options of a command; None was not given. Raises ValueError."""
        return cls.model_validate({name: value for name, value in options.items() if value is not None})


Form = dict[str, dict[str, Any]]


def form(model: type[Parameters]) -> Form:
    """Return the fields of a form: by name, a JSON schema with a default, as Airflow's `Param` takes them."""
    schemas = model.model_json_schema()["properties"]
    names = (model.model_fields[name].alias or name for name in model.names())
    return {name: _form_field(schemas[name]) for name in names}


def _form_field(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's schema; one that may be left out has a type and "null", instead of one of two schemas."""
    merged = {"default": None, **schema}
    for shape in merged.pop("anyOf", ()):
        if shape["type"] != "null":
            merged |= {**shape, "type": ["null", shape["type"]]}
    return merged


class PlanParameters(Parameters):
    """What every kind of plan takes."""

    threshold: Annotated[
        Threshold,
        Option(
            "--threshold", "SHARE", strict_values.share, "Share of differing keys that needs no approval: 0.01 or 1%."
        ),
    ] = Field(
        0.0,
        title="Differing keys that need no approval",
        description="Share of the keys of each table, 0 to 1. 0: any difference needs approval.",
        examples=[0, 0.001, 0.01],
    )
    dry_run: Annotated[bool, HIDDEN] = Field(
        False, title="Dry run", description="Logs what the plan would do; nothing is stored."
    )
    """The plan is returned and not stored; open plans do not matter to it."""


class SliceParameters(PlanParameters):
    """A range of time [start, end), and which versions of the reference tables silver joins."""

    start: Annotated[UtcTime | None, FROM, FIRST_EVENT] = None
    end: Annotated[UtcTime | None, TO, LAST_EVENT] = None
    reference: Reference = "as-of"

    @model_validator(mode="after")
    def _require_start_before_end(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise ValueError("start and end belong together")
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise ValueError("start is not before end")
        return self


class ReleaseParameters(PlanParameters):
    """Where the release starts: a bronze batch, or the first batch of a Kafka time; neither: the first batch."""

    members: Annotated[
        MemberNames,
        Option(
            "--with", "DERIVED", None, "A derived dataset to release in the same plan; give it again for another one."
        ),
    ] = Field(
        (),
        title="Together with",
        description="Derived datasets that are released in the same plan, because they read changed columns.",
    )
    from_batch: Annotated[
        Number | None, Option("--from-batch", "N", help="First bronze batch to recompute. (default: all)")
    ] = Field(None, title="First batch", description="Earlier rows are inherited from the published release.")
    from_timestamp: Annotated[
        UtcTime | None, time_option("--from-timestamp", "First Kafka time to recompute, UTC, instead of a batch.")
    ] = Field(
        None,
        title="First time in Kafka",
        description="Instead of a first batch. UTC, like 2013-06-10T00:00:00Z.",
    )

    @model_validator(mode="after")
    def _require_at_most_one_start(self) -> Self:
        if self.from_batch is not None and self.from_timestamp is not None:
            raise ValueError("give one of from_batch and from_timestamp")
        return self

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the parameters; a derived dataset that is named twice is released once."""
        return super().of_options({**options, "members": tuple(dict.fromkeys(options.get("members") or ()))})


FilePattern = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]


class LoadParameters(PlanParameters):
    """Which files are loaded, and how they are read."""

    files: Annotated[
        Sequence[FilePattern],
        Option("--files", "PATTERN", None, "Files to load: a path or s3://…, with *, ? and **; again for more."),
    ] = Field(
        title="Which files",
        description="Paths in the folder HEADRACE_FILES, or addresses in a store; with patterns, as a shell has them.",
        min_length=1,
    )
    form: Annotated[
        Literal["auto", "jsonl", "csv", "parquet", "avro"],
        Option("--format", help="How the files are read; auto: as their names end."),
    ] = Field("auto", title="Format", description="auto: as the names of the files end.")
    skip_loaded: Annotated[
        bool, Option("--skip-loaded", help="Leave out files that are loaded already, instead of refusing them.")
    ] = Field(
        False,
        title="Leave out what is loaded already",
        description="A file with the bytes of a loaded one is otherwise refused, by name.",
    )


def format_range(since: datetime, until: datetime) -> str:
    """Return the range [since, until) in words."""
    return f"from {utc_text(since, 'minutes')} to before {utc_text(until, 'minutes')} UTC"


class BackfillParameters(SliceParameters):
    """A range of event time [start, end)."""

    start: Annotated[UtcTime, FROM, FIRST_EVENT]
    end: Annotated[UtcTime, TO, LAST_EVENT]


def section(choice: str) -> dict[str, Any]:
    """Return the section of a form that a choice of `by` fills in."""
    return {"section": f"by {choice}"}


class ReplayParameters(SliceParameters):
    """Records by Kafka's time [start, end), by batches (both included), or by offsets [start, end) of partitions."""

    by: Annotated[Literal["time", "batches", "offsets"], HIDDEN] = Field(
        title="Which records",
        description="Fill in only the fields of this choice.",
        json_schema_extra={
            "default": "time",
            "values_display": {
                "time": "Kafka's time",
                "batches": "bronze batches",
                "offsets": "offsets of partitions",
            },
        },
    )
    start: Annotated[UtcTime | None, time_option("--from-timestamp", "First time in Kafka, UTC.")] = Field(
        None,
        title="First time in Kafka",
        description="By time: the broker's timestamp of the record. UTC, like 2013-06-10T00:00:00Z.",
        json_schema_extra=section("time"),
    )
    end: Annotated[UtcTime | None, time_option("--to-timestamp", "End of the times in Kafka, exclusive, UTC.")] = Field(
        None,
        title="End of the times in Kafka",
        description="By time: exclusive. UTC, like 2013-06-10T00:00:00Z.",
        json_schema_extra=section("time"),
    )
    first_batch: Annotated[
        Number | None, Option("--batches", "A..B", strict_values.batch_range, "Bronze batches, both included.")
    ] = Field(None, title="First batch", description="A bronze batch.", json_schema_extra=section("batches"))
    last_batch: Annotated[Number | None, HIDDEN] = Field(
        None, title="Last batch, included", description="A bronze batch.", json_schema_extra=section("batches")
    )
    offsets: Annotated[Offsets | None, OFFSETS_OPTION] = Field(
        None,
        title="Offsets by partition",
        description='Half-open, for instance {"0": [100, 200], "1": [0, 50]}.',
        json_schema_extra=section("offsets"),
    )
    source: Annotated[
        Literal["auto", "kafka", "bronze"],
        Option(help="auto: Kafka where it has the records, bronze for the rest; kafka or bronze: nothing else."),
    ] = Field(
        "auto",
        title="Read from",
        description="Records that Kafka has deleted are still in bronze.",
        json_schema_extra={
            "values_display": {
                "auto": "Kafka where it has them, bronze for the rest",
                "kafka": "Kafka only",
                "bronze": "bronze only",
            }
        },
    )

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

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the parameters; the option that is given names `by`, and `--batches` gives both batches."""
        times, batches = (options["start"], options["end"]), options["first_batch"]
        given = {"offsets": options["offsets"], "time": times[0] or times[1], "batches": batches}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise ValueError("give one of --offsets, --from-timestamp with --to-timestamp, --batches")
        ends = {} if batches is None else {"first_batch": batches.first, "last_batch": batches.last}
        return super().of_options({**options, **ends, "by": chosen[0]})

    @property
    def requested(self) -> str:
        """The range in words."""
        if self.offsets is not None:
            return "offsets " + ", ".join(f"{p}: {start} to {end - 1}" for p, (start, end) in self.offsets.items())
        if self.start is not None and self.end is not None:
            return f"records of Kafka time {format_range(self.start, self.end)}"
        return f"batches {self.first_batch} to {self.last_batch}"
