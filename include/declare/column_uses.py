"""Which columns of which tables a derived dataset or an analysis reads, each with the file and line that names it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

from include.declare.analyses import Analysis
from include.declare.column_use import ColumnUse
from include.declare.dataset import ANALYSES, DERIVED
from include.declare.derived_dataset import DerivedDataset, DerivedGold
from include.declare.query_columns import nested_schema, parsed_query, source_of
from include.declare.sql_checks import parsed_statements
from include.declare.yaml_declarations import Document

Columns = Mapping[str, Collection[str]]
"""The columns of tables, by full name."""


def derived_uses(derived: DerivedDataset, columns: Columns) -> list[ColumnUse]:
    """Return what the queries and `touched_by` of a derived dataset read; `columns`: those that the tables may have."""
    document = Document(derived.folder / DERIVED, strict=False)
    found = {
        use for gold in derived.pipeline.gold for use in _gold_uses(gold, derived.pipeline.sources, columns, document)
    }
    return sorted(found)


def analysis_uses(analysis: Analysis, columns: Columns) -> list[ColumnUse]:
    """Return what the query of an analysis reads. Its lines are counted from the query's own first line."""
    file = f"{ANALYSES}/{analysis.name}.yaml"
    return sorted(set(query_uses(analysis.declared.query, {name: name for name in columns}, columns, file, "duckdb")))


def query_uses(
    sql: str, sources: Mapping[str, str], columns: Columns, file: str, dialect: str = "spark"
) -> Iterator[ColumnUse]:
    """Yield the columns that a query reads; `sources`: full names by the name in the query.

    A column that no table is known to have counts as one of the only table, if there is just one.
    """
    known = {name: columns.get(table, ()) for name, table in sources.items()}
    try:
        schema = nested_schema({name: {each.lower(): "unknown" for each in found} for name, found in known.items()})
        tree = qualify(
            parsed_query(sql, dialect), schema=schema, dialect=dialect, validate_qualify_columns=False, identify=False
        )
    except (SqlglotError, RecursionError):
        return
    scope: Any = build_scope(tree)
    for below in scope.traverse() if scope is not None else ():
        aliases = {name.lower() for name in getattr(below.expression, "named_selects", ())}
        for column in below.columns:
            source = source_of(column, below)
            if not isinstance(source, exp.Table):
                continue
            name, own = ".".join(filter(None, (source.db, source.name))), column.name.lower()
            is_known = own in {each.lower() for each in known.get(name, ())}
            if name in sources and (is_known or own not in aliases):
                yield ColumnUse(sources[name], own, f"{file}:{_line(column)}")


def _gold_uses(
    gold: DerivedGold, sources: Mapping[str, str], columns: Columns, document: Document
) -> Iterator[ColumnUse]:
    declared = document.value["gold"][gold.name]
    yield from query_uses(gold.query, sources, columns, str(declared["query"]))
    for source, expressions in gold.touched_by.items():
        for grain, expression in expressions.items():
            line = document.line(("gold", gold.name, "touched_by", source, grain))
            for column in parsed_statements(expression)[0].find_all(exp.Column):
                yield ColumnUse(sources[source], column.name.lower(), f"{DERIVED}:{line}")


def _line(column: Any) -> int:
    """Return the line of a column in the query; a column of `*` has none and counts as read in the first."""
    return int(column.this.meta.get("line", 1))
