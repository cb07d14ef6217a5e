"""From which columns a column is computed, and how: the values of column lineage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlglot import exp

Use = Literal[
    "identity", "transformation", "aggregation", "conditional", "window", "filter", "join", "group_by", "sort"
]
"""How a value depends on a column. The first three pass its values on; the others only select values or rows."""
DIRECT: tuple[Use, ...] = ("identity", "transformation", "aggregation")
"""In order of precedence when one use follows another."""


@dataclass(frozen=True, order=True)
class ColumnOrigin:
    """A column from which another is computed; `table` is named as in a LineageEdge."""

    table: str
    column: str
    use: Use


Origins = tuple[ColumnOrigin, ...]


@dataclass(frozen=True)
class TableColumns:
    """The origins of a table's columns, and of its rows: the columns that decide which rows it has."""

    columns: Mapping[str, Origins] = field(default_factory=dict)
    rows: Origins = ()


def followed_by(inner: Use, outer: Use) -> Use:
    """Return how a column is used through two steps: its values are passed on only if both pass them on."""
    for use in (outer, inner):
        if use not in DIRECT:
            return use
    return max(inner, outer, key=DIRECT.index)


def used(origins: Origins, outer: Use) -> Iterator[ColumnOrigin]:
    """Yield the origins of a column that is itself used as `outer`."""
    return (replace(each, use=followed_by(each.use, outer)) for each in origins)


def use_of(column: Any, expression: Any) -> Use:
    """Return how an expression uses one of the columns in it; both are nodes of sqlglot."""
    use: Use = "identity" if column is expression.unalias() else "transformation"
    node = column
    while node is not expression:
        above = node.parent
        if isinstance(above, exp.If) and node.arg_key == "this":
            return "conditional"
        if isinstance(above, exp.Window) and node.arg_key != "this":
            return "window"
        if isinstance(above, exp.AggFunc):
            use = "aggregation"
        node = above
    return "aggregation" if isinstance(expression, exp.AggFunc) else use


def unique(origins: Iterator[ColumnOrigin]) -> Origins:
    """Return the origins without repetitions, sorted."""
    return tuple(sorted(set(origins)))
