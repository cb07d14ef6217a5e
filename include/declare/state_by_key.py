"""Gold that needs the order of a key's rows: its newest ones (`last`), and what a function makes of all (`fold`).

The order is `order_by` (nothing, unless declared), then the event time, then the identity: two rows of silver never
share all of these, and none of them says when a record arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, StrictInt, ValidationInfo
from pydantic.dataclasses import dataclass

from include.declare.children import INDEX
from include.declare.fold_function import PLACE_IN_ORDER, FoldFunction, parsed_function
from include.declare.gold import EVERY_RUN, Gold, History, LatestGold, Over, Refresh, pairs
from include.declare.measures import Measure, measure_expressions, parsed_measures
from include.declare.yaml_declarations import CONFIG, NAME, NAME_RULE, Finding, parsed_duration

if TYPE_CHECKING:
    from include.declare.changes import Changes

PLACE = "place"
MOST_KEPT = 10_000
OF_KEPT_ROWS = ("count", "count_if", "sum", "min", "max", "avg", "count_distinct", "top_k", "histogram")
"""The functions of measures over kept rows: all are exact, and none needs an order."""


def complete_order(order_by: Sequence[str], event_time: str, identity: Sequence[str], over: Over) -> tuple[str, ...]:
    """Return the columns that decide between any two rows of a key, those of `order_by` first."""
    return tuple(dict.fromkeys((*order_by, event_time, *identity, *((INDEX,) if over else ()))))


@dataclass(frozen=True, config=CONFIG)
class LastGold(LatestGold):
    """The `rows` newest rows per key, each with its `place`: 1 is the newest. `measures` are over a key's rows as the
    table has them: the value of each is a column, and all rows of the key have the result.
    """

    rows: StrictInt = 0
    measures: Annotated[tuple[Measure, ...], BeforeValidator(parsed_measures)] = ()
    kind: Literal["last"] = "last"  # type: ignore[assignment]

    @property
    def row_columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.made_columns)

    @property
    def made_columns(self) -> tuple[str, ...]:
        return (PLACE,)

    @property
    def _position(self) -> tuple[str, ...]:
        return ()

    @property
    def silver_measures(self) -> tuple[Measure, ...]:
        columns = dict(self.columns)

        def of_silver(text: str) -> str:
            return columns.get(text, text)

        return tuple(
            replace(each, expression=of_silver(each.expression), weight=of_silver(each.weight))
            for each in self.measures
        )

    def completed(self, event_time: str, identity: Sequence[str], changes: Changes | None) -> Self:
        """Return the table with an order that decides between any two rows."""
        return replace(self, order_by=complete_order(self.order_by, event_time, identity, self.over))

    def _own_findings(self) -> Iterator[Finding]:
        if not 1 <= self.rows <= MOST_KEPT:
            yield ("rows",), f"must be from 1 to {MOST_KEPT:,}, is {self.rows}"
        names = [name for name, _ in self.columns]
        for each in self.measures:
            if each.function not in OF_KEPT_ROWS:
                yield ("measures", each.name, each.function), f"must be one of {', '.join(OF_KEPT_ROWS)}"
                continue
            for key, name in measure_expressions(each):
                if name not in names:
                    listed = ", ".join(names) or "none"
                    yield ("measures", each.name, *key), f"must be one of its `columns` ({listed}), is {name!r}"


def parsed_within(value: Any) -> Any:
    """Return a duration such as `30 days` as a history."""
    return value if value is None or isinstance(value, History) else History(parsed_duration(value))


def _function(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str) or not info.context:
        return value
    return parsed_function(value, info.context["folder"], strict=info.context["strict"])


@dataclass(frozen=True, config=CONFIG)
class FoldGold(Gold):
    """What a function makes of all rows of a key in their order, or of those at most `within` before the newest.

    `columns` names an SQL expression of silver for each column that the function reads besides the keys. A Python
    function (`file.py:name`) gets a key's rows as an Arrow table and returns rows, of which `returns` declares columns
    and Spark types; a query (`file.sql`) reads the rows of its keys from `ordered`, with their number `_place`.
    """

    required = "function"
    recomputes = True
    without_keys = "must name at least one column"
    name: str
    partition: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    columns: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    function: Annotated[FoldFunction | None, BeforeValidator(_function)] = None
    returns: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    within: Annotated[History | None, BeforeValidator(parsed_within)] = None
    where: str = "true"
    refresh: Refresh = EVERY_RUN
    over: Over = None
    kind: Literal["fold"] = "fold"

    @property
    def query_key(self) -> str:
        return "" if self.by_python else "function"

    @property
    def by_python(self) -> FoldFunction | None:
        return None if self.function is None or self.function.is_sql else self.function

    @property
    def written_query(self) -> str:
        own = [self.function.text] if self.function is not None and self.function.is_sql else []
        return "; ".join([*own, *(sql for _, sql in self.columns), self.where])

    @property
    def query(self) -> str:  # type: ignore[override]
        """The SQL over the rows of some keys: what the function reads in order, and of a query its rows."""
        keys = ", ".join(f"`{name}`" for name in self.keys)
        order = ", ".join(f"`{name}` asc nulls first" for name in self.order_by)
        read = "".join(f", {sql} as `{name}`" for name, sql in self.columns)
        place = f"cast(row_number() over (partition by {keys} order by {order}) as bigint) as {PLACE_IN_ORDER}"
        ordered = f"select {keys}{read}, {place} from {self._history(keys)}"
        if self.by_python or self.function is None:
            return ordered
        # Of one line, so that an error names the line of the file.
        return f"with ordered as ({ordered}) select * from ({self.function.text}\n)"

    def _history(self, keys: str) -> str:
        rows = f"silver where {self.where}"
        if self.within is None:
            return rows
        newest = f"select *, max(`{self.within.column}`) over (partition by {keys}) as _newest from {rows}"
        length = f"interval '{int(self.within.length.total_seconds())}' second"
        return f"({newest}) as known where `{self.within.column}` > _newest - {length}"

    def completed(self, event_time: str, identity: Sequence[str], changes: Changes | None) -> Self:
        """Return the table with an order that decides between any two rows, and a history by event time."""
        order = complete_order(self.order_by, event_time, identity, self.over)
        return replace(self, order_by=order, within=self.within and replace(self.within, column=event_time))

    def _outputs(self) -> Iterator[tuple[str, str]]:
        yield from (("returns", name) for name, _ in self.returns)

    def _own_findings(self) -> Iterator[Finding]:
        if self.by_python and not self.returns:
            yield ("returns",), "must name the columns that the function makes, with their types of Spark"
        if self.returns and not self.by_python:
            yield ("returns",), "is of a Python function; the columns of a query are in its text"
        if self.by_python and not self.columns:
            yield ("columns",), "must name at least one column for the function to read"
        for name in (each for each, _ in self.columns if each in self.keys or not NAME.fullmatch(each)):
            yield ("columns", name), f"must be another name than that of a key; {NAME_RULE}"
