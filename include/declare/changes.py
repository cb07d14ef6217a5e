"""Records that are changes of rows, and the gold tables that keep the rows: as they are now, or all versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from include.declare.gold import EVERY_RUN, Gold, Refresh, listed_once, pairs
from include.declare.yaml_declarations import CONFIG, Finding, Key, shown


@dataclass(frozen=True, config=CONFIG)
class Operation:
    """The column that says what a change does, with its values for a deleted row, and for the deletion of all rows, of
    which a record names none; any other value writes the row.
    """

    column: str
    delete: tuple[str, ...] = ()
    truncate: tuple[str, ...] = ()


@dataclass(frozen=True, config=CONFIG)
class Changes:
    """Records are changes of rows: which row (`keys`), in which order (`sequence`), and what happens to it."""

    keys: tuple[str, ...]
    sequence: tuple[str, ...] = ()
    operation: Operation | None = None


CHANGED = """
with changed as (
  select {keys}, {columns}, {order}, _partition, _offset, {deleted} as _deleted, {valid_by} as _time
  from silver where {row_condition}
),
"""
TRUNCATED = """
truncated as (
  select * from changed
  union all
  select {keys}, {nulls}, {sequence}, _partition, _offset, true, _time
  from (select distinct {keys} from changed)
  cross join (select {order}, _partition, _offset, {valid_by} as _time from silver where {everywhere})
),
"""
"""A truncation deletes each row."""
NEWEST = """
placed as (
  select *, row_number() over (partition by {keys} order by {newest_first}) as _place from {rows}
)
select {keys}, {names} from placed where _place = 1 and not _deleted
"""
VERSIONS = """
placed as (
  select *, row_number() over (partition by {keys} order by {oldest_first}) as _place from {rows}
),
timed as (
  select *, max(_time) over (partition by {keys} order by _place) as _at from placed
),
compared as (
  select *, lag(_deleted) over (partition by {keys} order by _place) as _was_deleted, {same} as _same from timed
),
begun as (
  select *, lead(_at) over (partition by {keys} order by _place) as _until
  from compared where _was_deleted is null or _deleted <> _was_deleted or not (_deleted or _same)
)
select {keys}, {names}, _at as valid_from, _until as valid_to, _until is null as is_current
from begun where not _deleted
"""
"""A version begins where a value changes or a deleted row comes back. Time never goes back from one to the next."""
VERSION = ("valid_from", "valid_to", "is_current")


@dataclass(frozen=True, config=CONFIG)
class ChangesGold(Gold):
    """What the changes of each key give: its current row (`scd: 1`), or all versions (`scd: 2`) with `valid_from`,
    `valid_to` and `is_current`.

    `columns` names an SQL expression of silver for each output. `keys`, `sequence` and `operation` are those of
    `changes`, unless the table has its own. Versions are valid by the event time, or by the column `valid_by`.
    """

    required = "columns"
    recomputes = True
    without_keys = "must name at least one column, here or in `changes`"
    name: str
    partition: str = ""
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    operation: Operation | None = None
    scd: Literal[1, 2] = 1
    columns: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    valid_by: str = ""
    refresh: Refresh = EVERY_RUN
    kind: Literal["changes"] = "changes"

    @property
    def row_condition(self) -> str:
        return f"not {self.everywhere}" if self.everywhere else "true"

    @property
    def everywhere(self) -> str:
        return self._is(self.operation.truncate) if self.operation and self.operation.truncate else ""

    @property
    def required_columns(self) -> tuple[str, ...]:
        return () if self.everywhere else self.keys

    @property
    def made_columns(self) -> tuple[str, ...]:
        return VERSION if self.scd == 2 else ()  # noqa: PLR2004

    @property
    def current_rows(self) -> str:
        return "is_current" if self.scd == 2 else "true"  # noqa: PLR2004

    @property
    def written_query(self) -> str:
        return "; ".join(sql for _, sql in self.columns)

    @property
    def query(self) -> str:  # type: ignore[override]
        """The SQL over the rows of some keys that computes theirs."""
        rows = VERSIONS if self.scd == 2 else NEWEST  # noqa: PLR2004
        text = "".join([CHANGED, TRUNCATED if self.everywhere else "", rows])
        return text.strip().format(**self._parts())

    def _parts(self) -> dict[str, str]:
        names, keys = [_column(name) for name, _ in self.columns], ", ".join(map(_column, self.keys))
        sequence = [f"_sequence_{n}" for n in range(len(self.sequence))]
        order = [*sequence, "_partition", "_offset"]
        before = f"over (partition by {keys} order by _place)"
        return {
            "keys": keys,
            "names": ", ".join(names),
            "columns": ", ".join(f"{sql} as {_column(name)}" for name, sql in self.columns),
            "nulls": ", ".join(f"null as {name}" for name in names),
            "sequence": ", ".join(sequence),
            "order": ", ".join(
                f"{_column(each)} as {name}" for each, name in zip(self.sequence, sequence, strict=True)
            ),
            "deleted": self._is(self.operation.delete if self.operation else ()),
            "valid_by": _column(self.valid_by),
            "row_condition": self.row_condition,
            "everywhere": self.everywhere,
            "rows": "truncated" if self.everywhere else "changed",
            "newest_first": ", ".join(f"{each} desc nulls last" for each in order),
            "oldest_first": ", ".join(f"{each} asc nulls first" for each in order),
            "same": " and ".join(f"{name} is not distinct from lag({name}) {before}" for name in names),
        }

    def _is(self, values: tuple[str, ...]) -> str:
        if self.operation is None or not values:
            return "false"
        listed = ", ".join(f"'{each}'" for each in values)
        return f"coalesce(cast({_column(self.operation.column)} as string) in ({listed}), false)"

    def completed(self, event_time: str, identity: Sequence[str], changes: Changes | None) -> Self:
        """Return the table with keys, sequence and operation of all changes, and its versions valid by event time."""
        own = replace(self, valid_by=self.valid_by or event_time)
        if changes is None:
            return own
        keys, sequence = self.keys or changes.keys, self.sequence or changes.sequence
        return replace(own, keys=keys, sequence=sequence, operation=self.operation or changes.operation)

    def expressions(self) -> Iterator[tuple[Key, str]]:
        yield from super().expressions()
        yield from ((("sequence", n), _column(name)) for n, name in enumerate(self.sequence))
        if self.operation is not None:
            yield ("operation", "column"), _column(self.operation.column)
        yield ("valid_by",), _column(self.valid_by)

    def _own_findings(self) -> Iterator[Finding]:
        yield from listed_once(("sequence",), self.sequence)
        if self.operation is None:
            return
        for part, values in (("delete", self.operation.delete), ("truncate", self.operation.truncate)):
            for n, value in enumerate(values):
                if not OPERATION.fullmatch(value):
                    yield ("operation", part, n), f"must be letters, digits, '_' or '-', is {shown(value)}"


OPERATION = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A value of the column of operations."""


def _column(path: str) -> str:
    """Return a column, or a field inside of one as `source.lsn`, quoted for Spark."""
    return ".".join(f"`{part}`" for part in path.split("."))
