"""The pipeline of a dataset: topic, event time, identity, and the gold tables as declared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from include.catalog.yaml_declarations import DeclarationRefused, Node, load_yaml

MEASURES = {"count", "count_if", "sum", "min", "max", "avg", "approx_distinct"}
WINDOW_UNITS = {"hour", "day", "month"}
COLUMN_TYPES = ("string", "integer", "long", "double", "boolean", "date")
TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")
TABLE = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
WORD = re.compile(r"'[^']*'|[A-Za-z_][A-Za-z0-9_]*(?!\w*\s*\()")


@dataclass(frozen=True)
class Window:
    """A tumbling window of one `unit` (hour, day, month; UTC) over a timestamp column, named `name` in gold."""

    column: str
    unit: str
    name: str


@dataclass(frozen=True)
class Measure:
    """One additive measure: `function` (see MEASURES) over an SQL expression of silver columns."""

    name: str
    function: str
    expression: str


@dataclass(frozen=True)
class AdditiveGold:
    """Rows that merge by addition: one per window and keys."""

    name: str
    partition: str
    window: Window
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class LatestGold:
    """The newest row per key by `order_by`; `columns` names an SQL expression of silver for each output."""

    name: str
    partition: str
    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class QueryGold:
    """Grains recomputed by an SQL query over `silver`, which has the window's column added.

    A grain is a window and the keys; `touched_by` says which silver rows touch a grain at all. The query's columns
    begin with the grain's, of the same names.
    """

    name: str
    partition: str
    query: str
    window: Window
    keys: tuple[str, ...]
    touched_by: str


Gold = AdditiveGold | LatestGold | QueryGold


@dataclass(frozen=True)
class ReferenceTable:
    """A small table that `silver` joins: its unique `keys`, and all columns with their types (see COLUMN_TYPES)."""

    name: str
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
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


def load_pipeline(folder: Path) -> Pipeline:
    """Read `pipeline.yaml` of a dataset's folder; DeclarationRefused names the first key that is wrong."""
    root = load_yaml(folder / "pipeline.yaml")
    topic, partitions = root.take("topic", str), root.maybe("partitions", int, 2)
    if not TOPIC.match(topic):
        raise DeclarationRefused(f"{root.place}.topic", f"{topic!r} is no name of a Kafka topic")
    identity = root.node("identity")
    pipeline = Pipeline(
        topic=topic,
        partitions=partitions,
        event_time=root.take("event_time", str),
        lateness=root.duration("lateness"),
        identity=identity.strings("columns"),
        horizon=identity.duration("horizon"),
        gold=tuple(_gold(name, node, folder) for name, node in root.named("gold").items()),
        reference=tuple(_reference(*item) for item in (root.named("reference") if "reference" in root else {}).items()),
    )
    identity.finish()
    root.finish()
    return pipeline


def _gold(name: str, node: Node, folder: Path) -> Gold:
    if not TABLE.match(name):
        raise DeclarationRefused(node.place, f"{name!r} is no table name")
    read = {"additive": _additive, "latest": _latest, "query": _query}
    kind = node.one_of("kind", read)
    partition = node.take("partition", str)
    gold = read[kind](name, partition, node, folder)
    node.finish()
    validate_partition(gold, node.place)
    return gold


def _additive(name: str, partition: str, node: Node, _: Path) -> Gold:
    measures = tuple(_measure(key, item) for key, item in node.named("measures").items())
    return AdditiveGold(name, partition, _window(node), node.strings("keys"), measures)


def _window(node: Node) -> Window:
    window = node.node("window")
    spec = Window(window.take("column", str), window.one_of("unit", WINDOW_UNITS), window.take("as", str))
    window.finish()
    return spec


def _measure(name: str, node: Node) -> Measure:
    functions = node.unread()
    if len(functions) != 1 or functions[0] not in MEASURES:
        raise DeclarationRefused(node.place, f"must have one of {', '.join(sorted(MEASURES))}, has {functions}")
    return Measure(name, functions[0], node.take(functions[0], str))


def _latest(name: str, partition: str, node: Node, _: Path) -> Gold:
    keys, order = node.strings("keys"), node.strings("order_by")
    return LatestGold(name, partition, keys, order, _pairs(node, "columns"))


def _query(name: str, partition: str, node: Node, folder: Path) -> Gold:
    path = folder / node.take("query", str)
    if not path.is_file():
        raise DeclarationRefused(f"{node.place}.query", f"there is no file {path}")
    touched_by = node.maybe("touched_by", str, "true")
    return QueryGold(name, partition, path.read_text("utf-8"), _window(node), node.strings("keys"), touched_by)


def _pairs(node: Node, key: str) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in node.take(key, dict).items())


def _reference(name: str, node: Node) -> ReferenceTable:
    if not TABLE.match(name):
        raise DeclarationRefused(node.place, f"{name!r} is no table name")
    keys, columns = node.strings("keys"), _pairs(node, "columns")
    node.finish()
    for column, kind in columns:
        if kind not in COLUMN_TYPES:
            raise DeclarationRefused(f"{node.place}.columns.{column}", f"must be one of {', '.join(COLUMN_TYPES)}")
    if not set(keys) <= {column for column, _ in columns}:
        raise DeclarationRefused(f"{node.place}.keys", f"must be columns of the table, are {list(keys)}")
    return ReferenceTable(name, keys, columns)


def grain_columns(gold: Gold) -> tuple[str, ...]:
    """Return the columns that name one grain of a gold table."""
    return gold.keys if isinstance(gold, LatestGold) else (gold.window.name, *gold.keys)


def time_columns(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the columns by which an event lies in a range of time: the event time, and what any window is over."""
    windows = [gold.window.column for gold in pipeline.gold if not isinstance(gold, LatestGold)]
    return tuple(dict.fromkeys([pipeline.event_time, *windows]))


def latest_keys(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the keys of all latest tables."""
    return tuple(key for gold in pipeline.gold if isinstance(gold, LatestGold) for key in gold.keys)


def validate_partition(gold: Gold, place: str) -> None:
    """The partition is an expression over the grain alone, so that a row never moves to another partition."""
    words = {word for word in WORD.findall(gold.partition) if not word.startswith("'")}
    strange = words - set(grain_columns(gold))
    if strange or not words:
        known = ", ".join(grain_columns(gold))
        raise DeclarationRefused(f"{place}.partition", f"must use only {known}, is {gold.partition!r}")
