"""Gold that needs the order of a key's rows: its newest ones (`last`).

The order is `order_by` (nothing, unless declared), then the event time, then the identity: two rows of silver never
share all of these, and none of them says when a record arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, StrictInt
from pydantic.dataclasses import dataclass

from include.declare.children import INDEX
from include.declare.gold import CONFIG, EVERY_RUN, LatestGold, Over, Refresh, pairs
from include.declare.measures import Measure, measure_expressions, parsed_measures
from include.declare.yaml_declarations import Finding

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

    name: str
    partition: str = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    rows: StrictInt = 0
    columns: Annotated[tuple[tuple[str, str], ...], BeforeValidator(pairs)] = ()
    measures: Annotated[tuple[Measure, ...], BeforeValidator(parsed_measures)] = ()
    where: str = "true"
    refresh: Refresh = EVERY_RUN
    over: Over = None
    kind: Literal["last"] = "last"  # type: ignore[assignment]

    @property
    def row_columns(self) -> tuple[str, ...]:
        return (*self.keys, PLACE)

    @property
    def deciding_columns(self) -> list[tuple[str, str]]:
        return [(name, f"_by_{name.removeprefix('_')}") for name in self.order_by]

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
