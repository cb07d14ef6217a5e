"""The origins of the columns of an SQL query, followed through subqueries, unions and common table expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

from include.declare.column_origins import ColumnOrigin, TableColumns, Use, unique, use_of, used
from include.declare.sql_checks import parsed_statements

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
