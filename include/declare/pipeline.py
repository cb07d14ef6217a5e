"""The pipeline of a dataset: topic, event time, identity, and the gold tables as declared.

pydantic validates keys and types of `pipeline.yaml`, and functions here check what the values mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictInt
from pydantic.dataclasses import dataclass

from include.declare.changes import Changes, ChangesGold
from include.declare.children import BAD_CHILDREN, Children, Elements, child_table
from include.declare.contract import Contract
from include.declare.envelopes import ENVELOPES, known_envelope
from include.declare.gold import EVERY_RUN, AdditiveGold, ChildGold, Gold, LatestGold, QueryGold, listed_once, pairs
from include.declare.state_by_key import FoldGold, LastGold
from include.declare.time_zones import UTC_ZONE, TimeZone
from include.declare.windows import Window
from include.declare.yaml_declarations import (
    CONFIG,
    Document,
    Duration,
    Finding,
    accepted_names,
    parsed_duration,
    raise_problems,
    shown,
)
from include.ground.record_coordinates import COORDINATES, POSITION

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


DeclaredGold = Annotated[
    AdditiveGold | LatestGold | LastGold | FoldGold | QueryGold | ChangesGold, Field(discriminator="kind")
]


@dataclass(frozen=True, config=CONFIG)
class ReferenceTable:
    """A small table that `silver` joins: its unique `keys`, and all columns with their types."""

    name: str
    keys: tuple[str, ...]
    columns: Annotated[tuple[tuple[str, ColumnType], ...], BeforeValidator(pairs)]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]


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
    sleep_after: Annotated[timedelta | None, BeforeValidator(_parsed_idle)] = None
    driver: str = ""
    changes: Changes | None = None
    children: Annotated[tuple[Children, ...], BeforeValidator(named_items)] = ()
    envelope: Annotated[str, BeforeValidator(known_envelope)] = ""


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
    sleep_after: timedelta | None = None
    """A driver whose topic brings nothing for so long ends, until records come; None: it runs on."""
    driver: str = ""
    """The process that it shares with other datasets, or `own`; "": as HEADRACE_SHARED_DRIVER says."""
    children: tuple[Children, ...] = ()
    changes: Changes | None = None
    envelope: str = ""

    def opened(self, contract: Contract) -> Contract:
        """Return the contract with what the envelope adds to the rows that it describes."""
        keys = self.changes.keys if self.changes else ()
        return replace(ENVELOPES[self.envelope].opened(contract, keys), identity=self.identity)

    @property
    def silver_columns(self) -> tuple[str, ...]:
        """The columns that silver needs for tables of children."""
        bad = [BAD_CHILDREN] if any(each.rejects_alone for each in self.children) else []
        return (*(each.column for each in self.children), *bad)

    def with_children(self, dataset: str, contract: Contract) -> Pipeline:
        """Return the pipeline with the tables of its children, and with what the gold tables over them read."""
        elements = {each.name: each.elements(contract) for each in self.children}
        over = tuple(each.reading(elements[each.over.name]) if each.over else each for each in self.gold)
        tables = [table for each in elements.values() for table in self._child_tables(dataset, each)]
        return replace(self, gold=(*tables, *over))

    def _child_tables(self, dataset: str, elements: Elements) -> Iterator[ChildGold]:
        """Yield the table of the accepted children, and the one of the rejected."""
        parent = dict.fromkeys((*self.identity, self.event_time))
        for layer, each in (("silver", elements), ("rejected", elements.rejected)):
            if each is not None:
                values = [*parent, *each.values, "_topic", "_timestamp", "_batch_id"]
                name = f"{layer}.{child_table(dataset, each.name)}"
                yield ChildGold(name, each, tuple((value, value) for value in values), self.event_time)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The columns by which an event lies in a range of time: the event time and those of all windows."""
        timed = (gold.timed_by.column for gold in self.gold if gold.timed_by)
        return tuple(dict.fromkeys([self.event_time, *timed]))

    @property
    def windows(self) -> tuple[Window, ...]:
        return tuple(gold.window for gold in self.gold if gold.window is not None)

    @property
    def window_zones(self) -> tuple[TimeZone, ...]:
        """The time zones of the windows with the rules by which they are computed, without UTC."""
        return tuple(sorted({window.time_zone for window in self.windows} - {UTC_ZONE}, key=str))


def load_pipeline(folder: Path) -> Pipeline:
    """Return `pipeline.yaml` of a dataset's folder; raises DeclarationRefused when keys or types are wrong.

    What the values mean is checked by `load_dataset`.
    """
    document = Document(folder / PIPELINE, strict=False)
    pipeline = read_pipeline(document)
    raise_problems(document)
    assert pipeline is not None
    return pipeline


def read_pipeline(document: Document) -> Pipeline | None:
    """Return the pipeline that a document declares; None when it is none, and the document has the problems."""
    found = document.parsed(_PipelineFile, folder=document.path.parent)
    if found is None:
        return None
    changes = ENVELOPES[found.envelope].of_changes(found.changes) if found.envelope else found.changes
    identity, horizon = found.identity.columns, found.identity.horizon
    gold = tuple(each.completed(found.event_time, identity, changes) for each in found.gold)
    return Pipeline(**{**vars(found), "identity": identity, "horizon": horizon, "gold": gold, "changes": changes})


OWN_DRIVER = "own"
PIPELINE = "pipeline.yaml"
DRIVER_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
MAX_PARTITIONS = 10_000
SHORTEST_RETENTION = timedelta(hours=1)
COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def pipeline_findings(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield what is wrong with a pipeline, whatever the contract."""
    if not TOPIC.fullmatch(pipeline.topic) or pipeline.topic in (".", "..") or pipeline.topic.startswith("__"):
        rule = "must be 1 to 249 letters, digits, '.', '_' or '-', neither '.' nor '..', and not begin with '__'"
        yield ("topic",), f"{rule}, is {shown(pipeline.topic)}"
    if not 1 <= pipeline.partitions <= MAX_PARTITIONS:
        yield ("partitions",), f"must be from 1 to {MAX_PARTITIONS}, is {pipeline.partitions}"
    if pipeline.retention.versions < SHORTEST_RETENTION:
        yield ("retention", "versions"), "must be at least 1 hour: readers keep the version that they began with"
    if not COLUMN.fullmatch(pipeline.event_time):
        yield ("event_time",), f"must be the name of a column, is {shown(pipeline.event_time)}"
    if pipeline.sleep_after is not None and pipeline.idle is not None and pipeline.sleep_after <= pipeline.idle:
        why = "must be longer than `idle`: before that, windows that wait for a quiet partition are not closed"
        yield ("sleep_after",), f"{why}, is {pipeline.sleep_after}, and idle is {pipeline.idle}"
    if pipeline.driver and not DRIVER_NAME.fullmatch(pipeline.driver):
        yield ("driver",), f"must be a name of small letters, digits and _, is {shown(pipeline.driver)}"
    yield from listed_once(("identity", "columns"), pipeline.identity)
    yield from accepted_names((("gold", gold.name), gold.name) for gold in pipeline.gold)
    for gold in pipeline.gold:
        yield from ((("gold", gold.name, *key), why) for key, why in gold.findings(pipeline.event_time))
    yield from accepted_names((("children", each.name), each.name) for each in pipeline.children)
    known = [each.name for each in pipeline.children]
    for gold in pipeline.gold:
        if gold.over is not None and gold.over.name not in known:
            children = f"the children of pipeline.yaml ({', '.join(known) or 'none'})"
            yield ("gold", gold.name, "over"), f"must be one of {children}, is {shown(gold.over.name)}"
    for table in pipeline.reference:
        place = ("reference", table.name)
        yield from accepted_names([(place, table.name)])
        yield from listed_once((*place, "keys"), table.keys)
        if not set(table.keys) <= set(table.names):
            why = f"must be columns of the table ({', '.join(table.names)}), are {', '.join(table.keys)}"
            yield (*place, "keys"), why


def dataset_findings(pipeline: Pipeline, contract: Contract) -> Iterator[Finding]:
    """Yield where a pipeline contradicts the contract."""
    records = types = {column.name: column for column in contract.columns}
    known = f"is not a column of the contract; columns: {', '.join(types)}"
    if pipeline.envelope and not contract.payload.has_members:
        why = f"a record of {contract.payload.name} has no members"
        yield ("envelope",), f"{why}, so no row lies in an envelope of {pipeline.envelope}"
    for n, name in enumerate(pipeline.identity):
        if name not in (*types, *POSITION):
            yield ("identity", "columns", n), f"{name!r} {known}"
    for name in pipeline.time_columns:
        if name in types and types[name].type != "timestamp":
            key = _time_key(pipeline, name)
            yield key, f"must be a timestamp; {name} is of type {types[name].type_text}"
    for each in pipeline.children:
        yield from ((("children", each.name, *key), why) for key, why in each.findings(contract))
    children = {each.name: each for each in pipeline.children}
    for gold in pipeline.gold:
        over = gold.over.name if gold.over else ""
        of_child = children[over].fields(contract) if over in children else {}
        types = records | of_child
        if gold.timed_by is not None and gold.timed_by.column in of_child:
            why = f"is of an element; the time of a table over {over} is one of the record"
            yield ("gold", gold.name, gold.timed_by.part, "column"), why
        for n, name in enumerate(gold.keys):
            if name in types and types[name].kind.no_key:
                why = f"{name} is of type {types[name].type_text}, no key: {types[name].kind.no_key}"
                yield ("gold", gold.name, "keys", n), why
        window = gold.window
        if window is not None and window.name in (*types, *COORDINATES):
            why = f"{window.name!r} is already a column of silver; give the window a name of its own"
            yield ("gold", gold.name, "window", "as"), why


def contract_findings(pipeline: Pipeline, contract: Contract, name: str) -> Iterator[Finding]:
    """Yield where a contract contradicts the pipeline, or the folder `name`."""
    if contract.dataset != name:
        yield ("name",), f"must be the name of the folder, {name!r}, is {contract.dataset!r}"
    tables = {gold.table for gold in pipeline.gold}
    for n, table in enumerate(contract.gold, 1):
        if table not in tables:
            yield ("schema", n, "name"), f"{table} is not a gold table of pipeline.yaml; tables: {', '.join(tables)}"
    needed = {name: f"a time or a key of {gold.table}" for gold in pipeline.gold for name in gold.required_columns}
    needed |= {pipeline.event_time: "the event time", **dict.fromkeys(pipeline.identity, "an identity")}
    for n, column in enumerate(contract.columns):
        if column.name in needed and not column.required:
            why = f"{column.name} is {needed[column.name]}, so it needs required: true"
            yield ("schema", 0, "properties", n, "required"), why
    if pipeline.envelope:
        for n, why in ENVELOPES[pipeline.envelope].hidden(contract):
            yield ("schema", 0, "properties", n, "name"), why
    added = () if pipeline.envelope else set(pipeline.identity) - set(POSITION)
    own = [name for name in pipeline.identity if name in contract.names or name in added]
    if list(contract.identity) != own:
        declared, expected = (", ".join(names) or "none" for names in (contract.identity, own))
        why = f"columns with primaryKey ({declared}) must be identity.columns of pipeline.yaml ({expected})"
        yield ("schema", 0, "properties"), why


def _time_key(pipeline: Pipeline, column: str) -> tuple[str, ...]:
    if column == pipeline.event_time:
        return ("event_time",)
    timed = {gold.timed_by.column: (gold.name, gold.timed_by.part) for gold in pipeline.gold if gold.timed_by}
    return ("gold", *timed[column], "column")


def retention_findings(pipeline: Pipeline, contract: Contract) -> Iterator[Finding]:
    """Yield the ages of expiry that would change how later records are classified.

    A record that arrives finds its duplicates in silver. Silver may therefore expire only rows that no later record can
    duplicate: the contract's `past` and `future` limit the distance between event time and arrival.
    """
    retention, key = pipeline.retention, ("retention", "silver")
    if retention.bronze is not None and retention.bronze < SHORTEST_RETENTION:
        yield ("retention", "bronze"), "must be at least 1 hour: the stream reads its records from bronze"
    if retention.silver is None:
        return
    if pipeline.children:
        yield key, "cannot be declared with children: their rows would stay when the ones of their records expire"
        return
    for gold in pipeline.gold:
        if gold.recomputes or gold.refresh != EVERY_RUN:
            yield key, f"{gold.table} computes rows from silver again, so silver must keep all records"
    time = next((column for column in contract.columns if column.name == pipeline.event_time), None)
    if time is None or time.past is None:
        remedy = f"customProperties: [{{property: past, value: 30 days}}] on {pipeline.event_time} in contract.yaml"
        yield key, f"needs a limit of how old a record may be when it arrives: {remedy}"
    elif retention.silver < (longest := time.past + time.future + pipeline.horizon):
        why = "a later record may still be a duplicate: past and future of the event time, and the horizon"
        yield key, f"must be at least {_duration_text(longest)} ({why})"


def _duration_text(length: timedelta) -> str:
    minutes = -(-length // timedelta(minutes=1))
    for name, size in (("days", 1440), ("hours", 60)):
        if minutes % size == 0:
            return f"{minutes // size} {name}"
    return f"{minutes} minutes"
