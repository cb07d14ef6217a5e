"""The pipeline of a dataset: topic, event time, identity, and the gold tables as declared.

The values are the schema of `pipeline.yaml`: pydantic validates keys and
types; `pipeline_checks.py` checks what the values mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt, ValidationInfo
from pydantic.dataclasses import dataclass

from include.declare.gold_refresh import EVERY_RUN, ON_CLOSE, Refresh
from include.declare.measures import Measure, ordered_by_time, parsed_measures
from include.declare.time_zones import UTC_ZONE, TimeZone
from include.declare.windows import Session, Window
from include.declare.yaml_declarations import Document, Duration, parsed_duration, raise_problems, shown

ColumnType = Literal["string", "integer", "long", "double", "boolean", "date"]
NEVER = "never"
IDLE_AFTER = timedelta(minutes=5)
CONFIG = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True)


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


def _pairs(value: Any) -> Any:
    return tuple((name, item) for name, item in value.items()) if isinstance(value, dict) else value


def _query_text(value: Any, info: ValidationInfo) -> Any:
    """The text of the SQL file that `query` names, when a folder is being read."""
    if not isinstance(value, str) or not info.context:
        return value
    folder: Path = info.context["folder"]
    file = folder / value
    if info.context["strict"] and not (file.resolve().is_relative_to(folder.resolve()) and file.suffix == ".sql"):
        raise ValueError(f"must be a .sql file inside the dataset's folder, is {value!r}")
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8") from error
    except OSError as error:
        raise ValueError(f"there is no file {file}") from error
    if info.context["strict"] and not text.strip():
        raise ValueError(f"{file} is empty")
    return text


QueryText = Annotated[str, BeforeValidator(_query_text)]
"""The text of a gold table's query, declared as the path of its file."""


@dataclass(frozen=True, config=CONFIG)
class AdditiveGold:
    """Rows that merge by addition: one per window and keys, per keys alone, or per session of the keys.

    Only rows of silver with the condition `where` count, here and in LatestGold.
    """

    name: str
    partition: str = ""
    window: Window | None = None
    keys: tuple[str, ...] = ()
    measures: Annotated[tuple[Measure, ...], BeforeValidator(parsed_measures)] = ()
    session: Session | None = None
    where: str = "true"
    refresh: Refresh = EVERY_RUN
    kind: Literal["additive"] = "additive"


@dataclass(frozen=True, config=CONFIG)
class LatestGold:
    """The newest row per key by `order_by`; `columns` names an SQL expression of silver for each output."""

    name: str
    partition: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    columns: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = ()
    where: str = "true"
    refresh: Refresh = EVERY_RUN
    kind: Literal["latest"] = "latest"


@dataclass(frozen=True, config=CONFIG)
class QueryGold:
    """Grains recomputed by an SQL query over `silver`, which has the window's column added.

    A grain is a window and the keys, or the keys alone; `touched_by` says which silver rows touch a grain at all. The
    query's columns begin with the grain's, of the same names.
    """

    name: str
    partition: str = ""
    query: QueryText = ""
    window: Window | None = None
    keys: tuple[str, ...] = ()
    touched_by: str = "true"
    refresh: Refresh = EVERY_RUN
    kind: Literal["query"] = "query"


Gold = AdditiveGold | LatestGold | QueryGold


@dataclass(frozen=True, config=CONFIG)
class ReferenceTable:
    """A small table that `silver` joins: its unique `keys`, and all columns with their types."""

    name: str
    keys: tuple[str, ...]
    columns: Annotated[tuple[tuple[str, ColumnType], ...], BeforeValidator(_pairs)]


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
    gold: Annotated[tuple[Annotated[Gold, Field(discriminator="kind")], ...], BeforeValidator(named_items)]
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
        gold=tuple(_timed(gold, found.event_time) for gold in found.gold),
        reference=found.reference,
        retention=found.retention,
        idle=found.idle,
    )


def _timed(gold: Gold, event_time: str) -> Gold:
    if not isinstance(gold, AdditiveGold):
        return gold
    return replace(gold, measures=ordered_by_time(gold.measures, event_time))


def gold_window(gold: Gold) -> Window | None:
    """Return the window of a gold table; None when its grains are keys alone."""
    return None if isinstance(gold, LatestGold) else gold.window


def grain_columns(gold: Gold) -> tuple[str, ...]:
    """Return the columns that name one grain of a gold table."""
    window = gold_window(gold)
    return gold.keys if window is None else (window.name, *gold.keys)


def gold_session(gold: Gold) -> Session | None:
    """Return the sessions of a gold table; None when it has none."""
    return gold.session if isinstance(gold, AdditiveGold) else None


def refresh_interval(gold: Gold) -> timedelta | None:
    """Return the interval of `refresh: every …`; None for `every_run` and `on_close`."""
    return gold.refresh if isinstance(gold.refresh, timedelta) else None


def timed_by(gold: Gold) -> Window | Session | None:
    """Return what gives the rows of a gold table their time."""
    return gold_window(gold) or gold_session(gold)


def described_refresh(gold: Gold) -> str:
    """Return when a gold table gets its rows, in words."""
    interval = refresh_interval(gold)
    if interval is None:
        return str(gold.refresh).replace("_", " ")
    return f"every {interval.total_seconds():g} s"


def closes(gold: Gold) -> bool:
    """Whether rows appear when the watermark has passed them."""
    return gold.refresh == ON_CLOSE


def row_condition(gold: Gold) -> str:
    """Return the SQL condition of the rows of silver that touch a grain."""
    return gold.touched_by if isinstance(gold, QueryGold) else gold.where


def row_columns(gold: Gold) -> tuple[str, ...]:
    """Return the columns that name a row: those of the grain, and of a session its start and end."""
    session = gold_session(gold)
    return grain_columns(gold) if session is None else (*gold.keys, session.start, session.end)


def bounded_columns(gold: Gold) -> tuple[str, ...]:
    """Return the columns of silver whose bounds in each file a gold table needs."""
    window, session = gold_window(gold), gold_session(gold)
    return (window.column,) if window else (*gold.keys, *([session.column] if session else ()))


def pruning_column(gold: Gold) -> str:
    """Return the column of silver by whose bounds the files of some grains are found."""
    window = gold_window(gold)
    return gold.keys[0] if window is None else window.column


def partition_expression(gold: Gold) -> str:
    """Return the SQL expression by which a gold table is partitioned: as declared, or the month of the window."""
    window, session = gold_window(gold), gold_session(gold)
    time = window.name if window else session.start if session else None
    return gold.partition or ("'all'" if time is None else f"date_format(`{time}`, 'yyyy-MM')")


def is_partitioned_by_month(gold: Gold) -> bool:
    """Whether a gold table is partitioned by the month of its window: by default, or because it is declared so."""
    window = gold_window(gold)
    if window is None:
        return False
    by_month = rf"\s*date_format\s*\(\s*`?{re.escape(window.name)}`?\s*,\s*'yyyy-MM'\s*\)\s*"
    return re.fullmatch(f"|{by_month}", gold.partition) is not None


def time_columns(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns by which an event lies in a range of time: the event time and those of all windows."""
    timed = [each for gold in pipeline.gold for each in (gold_window(gold), gold_session(gold)) if each is not None]
    return tuple(dict.fromkeys([pipeline.event_time, *(each.column for each in timed)]))


def window_zones(pipeline: Pipeline) -> tuple[TimeZone, ...]:
    """Return the time zones of the windows of gold with the rules by which they are computed, without UTC."""
    return tuple(sorted({window.time_zone for window in windows_of_gold(pipeline)} - {UTC_ZONE}, key=str))


def windows_of_gold(pipeline: Pipeline) -> tuple[Window, ...]:
    """Return the windows of the gold tables that have one."""
    return tuple(window for gold in pipeline.gold if (window := gold_window(gold)) is not None)


def latest_keys(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the keys of all latest tables."""
    return tuple(key for gold in pipeline.gold if isinstance(gold, LatestGold) for key in gold.keys)


def deciding_columns(gold: LatestGold) -> list[tuple[str, str]]:
    """Return the columns of silver by which a row is the newest, in order, each with the column that keeps it."""
    position = [(name, f"_by{name}") for name in ("_partition", "_offset")]
    taken, declared = {kept for _, kept in position}, list[tuple[str, str]]()
    for name in gold.order_by:
        kept = f"_by_{name.removeprefix('_')}"
        declared.append((name, f"_by_{name}_column" if kept in taken else kept))
        taken.add(declared[-1][1])
    return [*declared, *position]
