"""From which columns a column is computed, and how: the values of column lineage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

from include.declare.sql_checks import parsed_statements

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


CLAUSES: tuple[tuple[str, Use], ...] = (
    *(("where", "filter"), ("having", "filter"), ("qualify", "filter"), ("joins", "join"), ("group", "group_by")),
    *(("order", "sort"),),
)


def query_columns(sql: str, tables: Mapping[str, Sequence[str]], dialect: str = "spark") -> TableColumns:
    """Return the origins of a query's columns over these tables and their columns.

    A column has no origins where the text does not show them: an unknown column, an unnested array.
    """
    try:
        tree = parsed_query(sql, dialect)
        schema = {name: dict.fromkeys(columns, "unknown") for name, columns in tables.items()}
        qualified = qualify(
            tree, schema=nested_schema(schema), dialect=dialect, validate_qualify_columns=False, identify=False
        )
    except (SqlglotError, RecursionError):
        return TableColumns()
    scope: Any = build_scope(qualified)
    columns = {name: unique(_origins_of(name, scope)) for name in scope.expression.named_selects}
    return TableColumns(columns, unique(_row_origins(scope)))


def parsed_query(sql: str, dialect: str) -> Any:
    """Return the tree of a query. Raises SqlglotError."""
    import sqlglot

    return parsed_statements(sql)[0] if dialect == "spark" else sqlglot.parse_one(sql, dialect=dialect)


def nested_schema(schema: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the tables in the form of sqlglot's schema: `gold.route_days` below `gold`."""
    found: dict[str, Any] = {}
    for name, columns in schema.items():
        layer, _, table = name.rpartition(".")
        (found.setdefault(layer, {}) if layer else found)[table] = dict(columns)
    return found


def _origins_of(name: str, scope: Any) -> Iterator[ColumnOrigin]:
    """Yield the origins of one column of a scope; of a union those in each branch, by position."""
    if scope.set_operation_scopes:
        position = scope.expression.named_selects.index(name)
        for branch in scope.set_operation_scopes:
            yield from _origins_of(branch.expression.named_selects[position], branch)
        return
    for projection in scope.expression.selects:
        if projection.alias_or_name == name:
            value = projection.unalias()
            yield from _expression_origins(value, scope)
            if value.find(exp.AggFunc) and not value.find(exp.Column):
                # A count of rows is computed from no column: it depends on the rows alone.
                yield from _clause_origins(scope)


def _expression_origins(expression: Any, scope: Any, use: Use | None = None) -> Iterator[ColumnOrigin]:
    for column in expression.find_all(exp.Column):
        outer = use or use_of(column, expression)
        source = source_of(column, scope)
        if isinstance(source, exp.Table):
            yield ColumnOrigin(".".join(filter(None, (source.db, source.name))), column.name, outer)
        elif source is not None and source.is_udtf:
            yield from used(unique(_expression_origins(source.expression, source, "transformation")), outer)
        elif source is not None and column.name in source.expression.named_selects:
            yield from used(unique(_origins_of(column.name, source)), outer)


def source_of(column: Any, scope: Any) -> Any:
    """Return the table or scope of a column; an unknown column belongs to the only source, if there is just one."""
    if not column.table and len(scope.selected_sources) == 1:
        return next(iter(scope.selected_sources.values()))[1]
    return scope.sources.get(column.table)


def _row_origins(scope: Any) -> Iterator[ColumnOrigin]:
    """Yield the columns that decide which rows a scope and its inner scopes have."""
    for below in scope.traverse():
        if not below.is_udtf:
            yield from _clause_origins(below)


def _clause_origins(scope: Any) -> Iterator[ColumnOrigin]:
    for key, use in CLAUSES:
        clause = scope.expression.args.get(key) or ()
        for part in clause if isinstance(clause, list | tuple) else [clause]:
            condition = part.args.get("on") if use == "join" else part
            if condition is not None:
                yield from _expression_origins(condition, scope, use)
