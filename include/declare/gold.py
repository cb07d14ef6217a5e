"""The gold tables of a dataset as declared: what names a row, which rows of silver count, and when rows appear.

There is one class for each kind (`changes.py` and `state_by_key.py` have further ones). All that other modules ask of
a table is a property of `Gold`, so that nobody has to ask for its kind: a table has no window, no measures or no query
where its kind has none. How Spark and DuckDB compute and merge a kind: `spark_jobs/layers/gold_rows.py`; how the audit
does: `include/audit/gold.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, ValidationInfo
from pydantic.dataclasses import dataclass

from include.declare.children import INDEX, Elements
from include.declare.measures import Measure, measure_expressions, measures_findings, ordered_by_time, parsed_measures
from include.declare.windows import Session, Timed, Window
from include.declare.yaml_declarations import CONFIG, NAME, NAME_RULE, Finding, Key, parsed_duration, shown

if TYPE_CHECKING:
    from include.declare.changes import Changes
    from include.declare.fold_function import FoldFunction

EVERY_RUN, ON_CLOSE = "every_run", "on_close"
INTERVAL = re.compile(r"every +(.+)")
WORD = re.compile(r"'[^']*'|[A-Za-z_][A-Za-z0-9_]*(?!\w*\s*\()")
"""Texts, which are skipped, and names that are not of functions."""


def parsed_refresh(value: Any) -> Any:
    """Return `every_run`, `on_close`, or of a text like `every 1 minute` the interval; ValueError."""
    if value in (EVERY_RUN, ON_CLOSE) or isinstance(value, timedelta):
        return value
    match = INTERVAL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be every_run, on_close or like 'every 1 minute', is {shown(value)}")
    interval = parsed_duration(match[1])
    if not interval:
        raise ValueError(f"must be at least 'every 1 second', is {shown(value)}")
    return interval


Refresh = Annotated[str | timedelta, BeforeValidator(parsed_refresh)]


def pairs(value: Any) -> Any:
    """Return a mapping as pairs of name and item."""
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


def _named_elements(value: Any) -> Any:
    """Return the elements that `over` names; what they are is known when the contract is read as well."""
    return Elements(value) if isinstance(value, str) else value


Over = Annotated[Elements | None, BeforeValidator(_named_elements)]
QueryText = Annotated[str, BeforeValidator(_query_text)]
"""The text of a gold table's query, declared as the path of its file."""


@plain_dataclass(frozen=True)
class History:
    """How long before its key's newest row a row counts, by the event time `column`."""

    length: timedelta
    column: str = ""


class Gold:
    """One gold table as declared. A *grain* is what one unit of it depends on: a window, keys, or both.

    `refresh`: each run merges its rows (`every_run`); the rows of several runs are merged at once, after an interval
    (`every 1 minute`); a window or session appears when the watermark has passed it, and changes when late rows come
    (`on_close`).
    """

    required: ClassVar[str]
    """The key without which there is no such table."""
    condition_key: ClassVar[str] = "where"
    recomputes: ClassVar[bool] = False
    """Whether the rows of a grain are computed from all of its rows of silver, not merged."""
    without_keys: ClassVar[str] = "must name at least one column, or the table needs a window"
    only_adds: ClassVar[bool] = False
    """Whether no run changes a row of an earlier one."""

    kind: str
    name: str
    partition: str = ""
    keys: tuple[str, ...] = ()
    window: Window | None = None
    session: Session | None = None
    measures: tuple[Measure, ...] = ()
    order_by: tuple[str, ...] = ()
    rows: int = 1
    """How many of a key's newest rows a table of such rows has."""
    columns: tuple[tuple[str, str], ...] = ()
    query: str = ""
    returns: tuple[tuple[str, str], ...] = ()
    """The columns that a Python function makes, with their Spark types."""
    refresh: Refresh = EVERY_RUN
    dated_by: str = ""
    """The column whose month partitions the rows of children."""
    within: History | None = None
    """The part of a key's rows of which it is computed; None for all."""
    where: str = "true"
    """The SQL condition of the rows of silver that count."""
    over: Over = None
    """The children whose rows it is computed from, each with its parent's columns; None: the rows of silver."""

    @property
    def table(self) -> str:
        """The full name of the table."""
        return full_name(self.name)

    @property
    def row_condition(self) -> str:
        """The SQL condition of the rows of silver that touch a grain."""
        return self.where

    @property
    def counted(self) -> str:
        """The SQL condition of the rows of silver from which rows are computed."""
        return "true" if self.recomputes else self.row_condition

    @property
    def everywhere(self) -> str:
        """The SQL condition of the rows of silver that belong to each grain, whatever their keys; "" without any."""
        return ""

    @property
    def current_rows(self) -> str:
        """The SQL condition of the rows that the table of a database has now; "" for a table that keeps none."""
        return ""

    @property
    def query_key(self) -> str:
        """The key of `pipeline.yaml` that names the file of the query."""
        return "query"

    @property
    def by_python(self) -> FoldFunction | None:
        """The Python function that makes the table's rows of each key's rows in the result of `query`."""
        return None

    @property
    def written_query(self) -> str:
        """What the declaration itself says in SQL of how `query` computes rows."""
        return self.query

    @property
    def timed_by(self) -> Timed | None:
        """What gives the rows their time."""
        return self.window or self.session

    @property
    def grain_columns(self) -> tuple[str, ...]:
        return self.keys if self.window is None else (self.window.name, *self.keys)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns that name a row: those of the grain, and of a session its start and end."""
        return self.grain_columns if self.session is None else (*self.keys, self.session.start, self.session.end)

    @property
    def declared_columns(self) -> tuple[str, ...]:
        """The columns that the declaration names; those of a query are in its text."""
        return (*self.row_columns, *(name for _, name in self._outputs()))

    @property
    def bounded_columns(self) -> tuple[str, ...]:
        """The columns of silver whose bounds in each file the table needs."""
        if self.window is not None:
            return (self.window.column,)
        own = self.over.fields if self.over else ()
        keys = (key for key in self.keys if key not in own)
        timed = (each.column for each in (self.session, self.within) if each is not None)
        return (*keys, *timed)

    @property
    def pruning_column(self) -> str:
        """The column of silver by whose bounds the files of some grains are found."""
        return self.keys[0] if self.window is None else self.window.column

    @property
    def required_columns(self) -> tuple[str, ...]:
        """The columns of the contract that no record may lack."""
        return (self.timed_by.column,) if self.timed_by else ()

    @property
    def made_columns(self) -> tuple[str, ...]:
        """The columns that every table of the kind has, whatever is declared."""
        return ()

    @property
    def deciding_columns(self) -> list[tuple[str, str]]:
        """The columns of silver that decide between rows of a key, in order, each with the column that keeps it."""
        return []

    @property
    def partition_expression(self) -> str:
        """The SQL expression by which the table is partitioned: as declared, or the month of its time."""
        by_default = f"date_format(`{self.timed_by.starts_at}`, 'yyyy-MM')" if self.timed_by else "'all'"
        return self.partition or by_default

    @property
    def is_partitioned_by_month(self) -> bool:
        """Whether it is partitioned by the month of its window: by default, or because it is declared so."""
        if self.window is None:
            return False
        by_month = rf"\s*date_format\s*\(\s*`?{re.escape(self.window.name)}`?\s*,\s*'yyyy-MM'\s*\)\s*"
        return re.fullmatch(f"|{by_month}", self.partition) is not None

    @property
    def closes(self) -> bool:
        """Whether rows appear when the watermark has passed them."""
        return self.refresh == ON_CLOSE

    @property
    def refresh_interval(self) -> timedelta | None:
        """The interval of `refresh: every …`; None for `every_run` and `on_close`."""
        return self.refresh if isinstance(self.refresh, timedelta) else None

    @property
    def described_refresh(self) -> str:
        """When the table gets its rows, in words."""
        interval = self.refresh_interval
        return f"every {interval.total_seconds():g} s" if interval else str(self.refresh).replace("_", " ")

    @property
    def silver_measures(self) -> tuple[Measure, ...]:
        """The measures, with their expressions over rows of silver."""
        return self.measures

    def completed(self, event_time: str, identity: Sequence[str], changes: Changes | None) -> Self:
        """Return the table with what the pipeline says about all of them."""
        return self

    def reading(self, over: Elements | None) -> Self:
        """Return the table over other rows."""
        return replace(self, over=over)  # type: ignore[type-var]

    def expressions(self) -> Iterator[tuple[Key, str]]:
        """Yield the key and the SQL of each expression over silver's rows with their windows."""
        yield from ((("keys", n), name) for n, name in enumerate(self.keys))
        for measure in self.silver_measures:
            yield from ((("measures", measure.name, *key), sql) for key, sql in measure_expressions(measure))
        yield from ((("order_by", n), name) for n, name in enumerate(self.order_by))
        yield from ((("columns", name), sql) for name, sql in self.columns)
        yield (self.condition_key,), self.row_condition

    def findings(self, event_time: str) -> Iterator[Finding]:
        """Yield what is wrong with the declaration, apart from its SQL; the watermark is of the event time."""
        if not getattr(self, self.required):
            yield (self.required,), "is required and missing"
        if self.window is None and not self.keys:
            yield ("keys",), self.without_keys
        yield from repeated(("keys",), self.keys)
        yield from ((("measures", *key), why) for key, why in measures_findings(self.measures))
        yield from self._own_findings()
        for timed in filter(None, (self.window, self.session)):
            yield from (((timed.part, *key), why) for key, why in timed.findings(self.keys))
        if self.window is not None and self.session is not None:
            yield ("session",), "cannot have a window as well"
        if self.over is not None and self.session is not None:
            yield ("session",), f"is of records: a table over {self.over.name} cannot have one"
        yield from self._column_findings()
        yield from self._refresh_findings(event_time)

    def _own_findings(self) -> Iterator[Finding]:
        yield from ()

    def _outputs(self) -> Iterator[tuple[str, str]]:
        """Yield the columns besides those that name a row, each with the key that declares it."""
        yield from (("columns", name) for name, _ in self.columns)
        yield from (("measures", measure.name) for measure in self.measures)

    def _column_findings(self) -> Iterator[Finding]:
        named, listed, made = self.row_columns, ", ".join(self.row_columns), ", ".join(self.made_columns)
        for n, name in enumerate(self.keys):
            if name in self.made_columns:
                why = f"the table has {made} of its own: give the column another name in silver.py, is {name!r}"
                yield ("keys", n), why
        for part, name in self._outputs():
            if not NAME.fullmatch(name):
                yield (part, name), f"{NAME_RULE}, is {shown(name)}"
            if name in named:
                yield (part, name), f"{name!r} is already a column of the table: {listed} name its grain"
            elif name in self.made_columns:
                yield (part, name), f"{name!r} is already a column of the table, which has {made}"
        words = {word for word in WORD.findall(self.partition) if not word.startswith("'")}
        if self.partition and (words - set(named) or not words):
            why = f"must be an expression over {listed} alone, so that a row never moves, is {self.partition!r}"
            yield ("partition",), why

    def _refresh_findings(self, event_time: str) -> Iterator[Finding]:
        if not self.closes:
            return
        if self.timed_by is None:
            why = "cannot be on_close: only a window or a session closes; use every_run or 'every 1 minute'"
            yield ("refresh",), why
        elif self.timed_by.column != event_time:
            why = f"its windows are of {self.timed_by.column}, and the watermark that closes them is of {event_time}"
            yield ("refresh",), f"cannot be on_close: {why}"


@dataclass(frozen=True, config=CONFIG)
class AdditiveGold(Gold):
    """Rows that merge by addition: one per window and keys, per keys alone, or per session of the keys."""

    required = "measures"
    name: str
    partition: str = ""
    window: Window | None = None
    keys: tuple[str, ...] = ()
    measures: Annotated[tuple[Measure, ...], BeforeValidator(parsed_measures)] = ()
    session: Session | None = None
    where: str = "true"
    refresh: Refresh = EVERY_RUN
    over: Over = None
    kind: Literal["additive"] = "additive"

    def completed(self, event_time: str, identity: Sequence[str], changes: Changes | None) -> Self:
        """Return the table with measures `first` and `last` by event time."""
        return replace(self, measures=ordered_by_time(self.measures, event_time))


@dataclass(frozen=True, config=CONFIG)
class LatestGold(Gold):
    """The newest row per key by `order_by`; `columns` names an SQL expression of silver for each output."""

    required = "columns"
    name: str
    partition: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    columns: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    where: str = "true"
    refresh: Refresh = EVERY_RUN
    over: Over = None
    kind: Literal["latest"] = "latest"

    @property
    def required_columns(self) -> tuple[str, ...]:
        return self.keys

    @property
    def deciding_columns(self) -> list[tuple[str, str]]:
        """The columns of silver by which a row is the newest, in order, each with the column that keeps it."""
        position = [(name, f"_by{name}") for name in self._position]
        taken, declared = {kept for _, kept in position}, list[tuple[str, str]]()
        for name in self.order_by:
            kept = f"_by_{name.removeprefix('_')}"
            declared.append((name, f"_by_{name}_column" if kept in taken else kept))
            taken.add(declared[-1][1])
        return [*declared, *position]

    @property
    def _position(self) -> tuple[str, ...]:
        """The columns that decide between rows that are equal by `order_by`."""
        return ("_partition", "_offset", *((INDEX,) if self.over else ()))

    def _own_findings(self) -> Iterator[Finding]:
        yield from listed_once(("order_by",), self.order_by)


@dataclass(frozen=True, config=CONFIG)
class QueryGold(Gold):
    """Grains recomputed by an SQL query over `silver`, which has the window's column added.

    A grain is a window and the keys, or the keys alone; `touched_by` says which silver rows touch a grain at all. The
    query's columns begin with the grain's, of the same names.
    """

    required = "query"
    condition_key = "touched_by"
    recomputes = True
    name: str
    partition: str = ""
    query: QueryText = ""
    window: Window | None = None
    keys: tuple[str, ...] = ()
    touched_by: str = "true"
    refresh: Refresh = EVERY_RUN
    over: Over = None
    kind: Literal["query"] = "query"

    @property
    def row_condition(self) -> str:
        return self.touched_by

    @property
    def written_query(self) -> str:
        return self.query if self.touched_by == "true" else f"{self.query}; select {self.touched_by}"


@plain_dataclass(frozen=True)
class ChildGold(Gold):
    """The rows of children, a table of the layer silver or rejected that is made as gold is: a row for each element.

    What touches it is a record: its children are replaced together.
    """

    required = "columns"
    only_adds = True
    name: str
    over: Over
    columns: tuple[tuple[str, str], ...]
    dated_by: str
    keys: tuple[str, ...] = ("_offset", "_partition")
    kind: str = "children"

    @property
    def row_columns(self) -> tuple[str, ...]:
        return (*self.keys, INDEX)

    @property
    def partition_expression(self) -> str:
        return f"date_format(`{self.dated_by}`, 'yyyy-MM')"


def full_name(name: str) -> str:
    """Return the full name of a table that is listed as gold; a table of children is listed by its full name."""
    return name if "." in name else f"gold.{name}"


def listed_once(key: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding for an empty list, and for each repeated name."""
    if not names:
        yield key, "must name at least one column"
    yield from repeated(key, names)


def repeated(key: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding for each repeated name."""
    for n, name in enumerate(names):
        if name in names[:n]:
            yield (*key, n), f"{name!r} occurs twice"
