"""The pipeline of a dataset: topic, event time, identity, and the gold tables as declared.

The values are the schema of `pipeline.yaml`: pydantic validates keys and
types; `pipeline_checks.py` checks what the values mean.
"""

from __future__ import annotations

from dataclasses import dataclass as plain_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictInt
from pydantic.dataclasses import dataclass

from include.declare.gold import CONFIG, AdditiveGold, Gold, LatestGold, QueryGold, pairs
from include.declare.time_zones import UTC_ZONE, TimeZone
from include.declare.windows import Window
from include.declare.yaml_declarations import Document, Duration, parsed_duration, raise_problems, shown

ColumnType = Literal["string", "integer", "long", "double", "boolean", "date"]
NEVER = "never"
IDLE_AFTER = timedelta(minutes=5)


def named_items(value: Any) -> Any:
    """Return a mapping of names to mappings as a list of mappings with `name`."""
    if not isinstance(value, dict):
        return value
    return [{"name": name, **item} if isinstance(item, dict) else item for name, item in value.items()]


def _parsed_idle(value: Any) -> Any:
    """Return a duration such as `5 minutes`; None for `never`."""
    if value == NEVER:
        return None
    try:
        found = parsed_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or '{NEVER}'") from error
    if not found:
        raise ValueError(f"must be at least '1 second', or '{NEVER}', is {shown(value)}")
    return found


DeclaredGold = Annotated[AdditiveGold | LatestGold | QueryGold, Field(discriminator="kind")]


@dataclass(frozen=True, config=CONFIG)
class ReferenceTable:
    """A small table that `silver` joins: its unique `keys`, and all columns with their types."""

    name: str
    keys: tuple[str, ...]
    columns: Annotated[tuple[tuple[str, ColumnType], ...], BeforeValidator(pairs)]


@dataclass(frozen=True, config=CONFIG)
class Retention:
    """How long unused data is kept: `versions`, files of table versions that newer ones have replaced;
    `releases`, tables and snapshots of retired, cancelled and rejected releases; `plans`, rows and comparisons of ended
    plans; `logs`, logs of its processes since the last write; `removed`, what `headrace repair` moved away.

    `bronze` and `silver` are ages of records since they arrived in Kafka: older ones expire from bronze, and from
    silver and rejected. None: never."""

    bronze: Duration | None = None
    silver: Duration | None = None
    versions: Duration = timedelta(hours=6)
    releases: Duration = timedelta(days=7)
    plans: Duration = timedelta(days=7)
    logs: Duration = timedelta(days=30)
    removed: Duration = timedelta(days=30)


@dataclass(frozen=True, config=CONFIG)
class _Identity:
    columns: tuple[str, ...]
    horizon: Duration


@dataclass(frozen=True, config=CONFIG)
class _PipelineFile:
    topic: str
    event_time: str
    lateness: Duration
    identity: _Identity
    gold: Annotated[tuple[DeclaredGold, ...], BeforeValidator(named_items)]
    reference: Annotated[tuple[ReferenceTable, ...], BeforeValidator(named_items)] = ()
    partitions: StrictInt = 2
    retention: Retention = Retention()
    idle: Annotated[timedelta | None, BeforeValidator(_parsed_idle)] = IDLE_AFTER


@plain_dataclass(frozen=True)
class Pipeline:
    """All that is declared of a dataset besides its contract."""

    topic: str
    partitions: int
    event_time: str
    lateness: timedelta
    identity: tuple[str, ...]
    horizon: timedelta
    gold: tuple[Gold, ...]
    reference: tuple[ReferenceTable, ...] = ()
    retention: Retention = Retention()
    idle: timedelta | None = IDLE_AFTER
    """A partition without records for so long does not hold the watermark back; None: it does."""

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns by which an event lies in a range of time: the event time and those of all windows."""
        timed = (gold.timed_by.column for gold in self.gold if gold.timed_by)
        return tuple(dict.fromkeys([self.event_time, *timed]))

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of the gold tables that have one."""
        return tuple(gold.window for gold in self.gold if gold.window is not None)

    @property
    def window_zones(self) -> tuple[TimeZone, ...]:
        """The time zones of the windows with the rules by which they are computed, without UTC."""
        return tuple(sorted({window.time_zone for window in self.windows} - {UTC_ZONE}, key=str))


def load_pipeline(folder: Path) -> Pipeline:
    """Return `pipeline.yaml` of a dataset's folder; raises DeclarationRefused when keys or types are wrong.

    What the values mean is checked by `load_dataset`.
    """
    document = Document(folder / "pipeline.yaml", strict=False)
    pipeline = read_pipeline(document)
    raise_problems(document)
    assert pipeline is not None
    return pipeline


def read_pipeline(document: Document) -> Pipeline | None:
    """Return the pipeline that a document declares; None when it is none, and the document has the problems."""
    found = document.parsed(_PipelineFile, folder=document.path.parent)
    if found is None:
        return None
    identity = found.identity
    return Pipeline(
        topic=found.topic,
        partitions=found.partitions,
        event_time=found.event_time,
        lateness=found.lateness,
        identity=identity.columns,
        horizon=identity.horizon,
        gold=tuple(gold.ordered(found.event_time) for gold in found.gold),
        reference=found.reference,
        retention=found.retention,
        idle=found.idle,
    )
