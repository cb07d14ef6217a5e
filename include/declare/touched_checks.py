"""Checks that `touched_by` names the grains to which a derived query assigns the rows of each source.

The query assigns each row of a source to a grain. Where the query's text shows that grain as an
expression over the source, `touched_by` must be that expression, or an array that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from include.declare.derived_dataset import DerivedGold
from include.declare.grain_origins import Branch, normalized, query_branches
from include.declare.sql_checks import parsed_statements
from include.declare.yaml_declarations import Finding


def grain_mismatches(gold: DerivedGold) -> Iterator[Finding]:
    """Yield the expressions of `touched_by` that name other grains than those to which the query assigns the rows."""
    for source, column, branch in _expressions_by_branch(gold):
        if why := _mismatch(gold, source, column, branch):
            yield ("touched_by", source, column), why


def unproven_expressions(gold: DerivedGold) -> list[str]:
    """Return source and column (`weather.hour`) of the expressions that are neither proven right nor wrong."""
    found = [
        f"{source}.{column}"
        for source, column, branch in _expressions_by_branch(gold)
        if not _mismatch(gold, source, column, branch) and not _is_proven(gold, source, column, branch)
    ]
    return list(dict.fromkeys(found))


def _expressions_by_branch(gold: DerivedGold) -> Iterator[tuple[str, str, Branch | None]]:
    """Yield source and column of each expression with each branch of the query that reads the source.

    None instead of a branch when the query cannot be followed.
    """
    try:
        named = {source: _columns_of(touched.values()) for source, touched in gold.touched_by.items()}
        branches = query_branches(gold.query, named)
    except (SqlglotError, ValueError):
        branches = []
    for source, columns in gold.touched_by.items():
        for column in columns:
            reading: list[Branch | None] = [branch for branch in branches if source in branch.sources]
            yield from ((source, column, branch) for branch in (reading if branches else [None]))


def _mismatch(gold: DerivedGold, source: str, column: str, branch: Branch | None) -> str:
    touched = _parsed(gold.touched_by[source][column])
    if branch is None or touched is None or isinstance(touched, exp.Array | exp.GenerateSeries):
        return ""
    found = branch.columns.get(column.lower(), {}).get(source, frozenset())
    if found and all(_are_different_functions(touched, _parsed(text)) for text in found):
        shown = " or ".join(sorted(found))
        return f"the query puts a row of {source} into {column} = {shown}, not {normalized(touched)}"
    if not found and source in branch.one_sided:
        return (
            f"the query joins rows of {source} with all earlier or all later ones, so a row is part of many grains; "
            f"give the join both bounds and touched_by an array, or leave {column} out of the grain"
        )
    return ""


def _is_proven(gold: DerivedGold, source: str, column: str, branch: Branch | None) -> bool:
    touched = _parsed(gold.touched_by[source][column])
    if branch is None or touched is None:
        return False
    found = branch.columns.get(column.lower(), {}).get(source, frozenset())
    named = touched.expressions if isinstance(touched, exp.Array) else [touched]
    return not found.isdisjoint(normalized(each) for each in named)


def _parsed(text: str) -> Any:
    trees = parsed_statements(text)
    return trees[0].unnest() if len(trees) == 1 else None


def _are_different_functions(one: Any, other: Any) -> bool:
    """Return whether two expressions are surely different functions of a row: of other columns, or of other units."""
    if _columns(one) != _columns(other):
        return True
    cuts = (exp.TimestampTrunc, exp.DateTrunc)
    is_cut = isinstance(one, cuts) and isinstance(other, cuts) and normalized(one.this) == normalized(other.this)
    return is_cut and str(one.args.get("unit")).lower() != str(other.args.get("unit")).lower()


def _columns_of(expressions: Iterable[str]) -> set[str]:
    return {name for text in expressions for tree in parsed_statements(text) for name in _columns(tree)}


def _columns(tree: Any) -> set[str]:
    return {column.name.lower() for column in tree.find_all(exp.Column)}
