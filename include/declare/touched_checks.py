"""Checks that `touched_by` names the grains to which a derived query assigns the rows of each source.

The query assigns each row of a source to a grain. Where the query's text shows that grain as an
expression over the source, `touched_by` must be that expression, or an array that has it.

The origins of a query's grain: for each source the expressions that equal a column of the grain.

A column of the result is followed through subqueries and common table expressions; what a join or condition equates
with it equals it too. What is computed in another way (an aggregate, one of two unequal values) has no known origin.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from include.declare.column_lineage import qualified_scope
from include.declare.derived_dataset import DerivedGold
from include.declare.sql_checks import parsed_statements
from include.declare.yaml_declarations import Finding

MOST_BRANCHES = 32
"""Combinations of the branches of unions that are followed; beyond, no origin is known."""
Origins = Mapping[str, frozenset[str]]
"""By source the SQL of expressions over its columns alone."""


@dataclass(frozen=True)
class Branch:
    """One way through the unions of a query: the origins of its columns, and the sources that it reads.

    `one_sided`: the sources that it compares with others from one side alone, as in `seen_at <= departed_at`. `source`:
    the name of a source that is read itself; it may have other columns, too.
    """

    columns: Mapping[str, Origins] = field(default_factory=dict)
    sources: frozenset[str] = frozenset()
    one_sided: frozenset[str] = frozenset()
    source: str = ""

    def origins(self, column: str, source: str) -> frozenset[str]:
        return self.of_column(column.lower()).get(source, frozenset())

    def of_column(self, column: str) -> Origins:
        return {self.source: frozenset({column})} if self.source else self.columns.get(column, {})


Relations = Mapping[str, Branch]
"""The tables of a select: each is a source, or one branch of a subquery."""


def query_branches(sql: str, sources: Mapping[str, Collection[str]]) -> list[Branch]:
    """Return the branches of a query over these sources; none when there are too many of them.

    `sources` has columns that each surely has; so an unqualified column belongs to the table that has it. Those that
    `using` joins may be of any.
    """
    joins = [join for tree in parsed_statements(sql) for join in tree.find_all(exp.Join)]
    shared = {column.name.lower() for join in joins for column in join.args.get("using") or ()}
    scope = qualified_scope(sql, {name: {*own, *shared} for name, own in sources.items()}, have_others=True)
    return [] if scope is None else _branches(scope, {name.lower(): name for name in sources})


def normalized(expression: Any) -> str:
    """Return the SQL of an expression without names of tables, in one spelling."""
    plain = expression.copy().transform(
        lambda node: exp.column(node.name.lower()) if isinstance(node, exp.Column) else node
    )
    return str(plain.unnest().sql(dialect="spark", normalize=True, identify=False))


def _branches(scope: Any, sources: Mapping[str, str]) -> list[Branch]:
    if scope.set_operation_scopes:
        left, right = (_branches(each, sources) for each in scope.set_operation_scopes)
        names = [*left[0].columns] if left else []
        # The columns of a union have the names of its first branch.
        return [*left, *(replace(b, columns=dict(zip(names, b.columns.values(), strict=False))) for b in right)]
    if not isinstance(scope.expression, exp.Select):
        return []
    choices = {alias: _alternatives(found, sources) for alias, (_, found) in scope.selected_sources.items()}
    if math.prod(map(len, choices.values())) > MOST_BRANCHES:
        return []
    return [_select(scope.expression, dict(zip(choices, each, strict=True))) for each in product(*choices.values())]


def _alternatives(found: Any, sources: Mapping[str, str]) -> list[Branch]:
    """Return the branches of a table of a select, a source or a scope; one without columns if nothing is known."""
    if not isinstance(found, exp.Table):
        return _branches(found, sources) or [Branch()]
    name = sources.get(found.name, "")
    return [Branch(sources=frozenset({name} - {""}), source=name)]


def _select(query: Any, relations: Relations) -> Branch:
    equal = list(_equalities(query, relations))
    columns = {each.alias_or_name: _class_origins(each.unalias(), equal, relations) for each in query.selects}
    sources = frozenset().union(*(each.sources for each in relations.values()))
    below = frozenset().union(*(each.one_sided for each in relations.values()))
    return Branch(columns, sources, below | frozenset(_sources_bounded_on_one_side(query, relations)))


def _conditions(query: Any) -> Iterator[Any]:
    """Yield the conditions that all rows of a select keep, of joins and of `where`."""
    found = [join.args.get("on") for join in query.args.get("joins") or ()]
    found.append(query.args["where"].this if query.args.get("where") else None)
    for each in filter(None, found):
        yield from (part.unnest() for part in (each.flatten() if isinstance(each, exp.And) else [each]))


def _equalities(query: Any, relations: Relations) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of expressions that are equal."""
    for condition in _conditions(query):
        if isinstance(condition, exp.EQ | exp.NullSafeEQ):
            yield _with_tables(condition.this, relations), _with_tables(condition.expression, relations)


def _with_tables(expression: Any, relations: Relations) -> Any:
    """Return an expression whose columns name their table; one that no table surely has is of the only source."""
    read = [alias for alias, each in relations.items() if each.source]
    only = read[0] if len(read) == 1 else None
    return (
        expression.unnest()
        .copy()
        .transform(
            lambda node: exp.column(node.name, table=node.table or only) if isinstance(node, exp.Column) else node
        )
    )


def _class_origins(expression: Any, equal: Sequence[tuple[Any, Any]], relations: Relations) -> Origins:
    """Return the origins of all that equals an expression; what `using` joins is the first of two equal columns."""
    found, before = {_with_tables(expression, relations)}, 0
    while len(found) > before:
        before = len(found)
        found |= {one for pair in equal for one in pair if found & set(pair)}
        found |= {each.this for each in found if isinstance(each, exp.Coalesce) and _is_of_equals(each, equal)}
    merged: dict[str, frozenset[str]] = {}
    for each in found:
        for source, texts in _origins(each, relations).items():
            merged[source] = merged.get(source, frozenset()) | texts
    return merged


def _is_of_equals(found: Any, equal: Sequence[tuple[Any, Any]]) -> bool:
    return all({found.this, other} in map(set, equal) for other in found.expressions)


def _origins(expression: Any, relations: Relations) -> Origins:
    """Return what an expression of one row is over the columns of each source; nothing for an aggregate."""
    columns = list(expression.find_all(exp.Column))
    tables = {column.table for column in columns}
    if len(tables) != 1 or expression.find(exp.AggFunc, exp.Window, exp.Query):
        return {}
    relation = relations.get(tables.pop(), Branch())
    by_column = {column.name: relation.of_column(column.name) for column in columns}
    sources = set.intersection(*(set(each) for each in by_column.values()))
    return {source: frozenset(_substituted(expression, by_column, source)) for source in sources}


def _substituted(expression: Any, by_column: Mapping[str, Origins], source: str) -> Iterator[str]:
    names = list(by_column)
    for texts in product(*(sorted(by_column[name][source]) for name in names)):
        trees = {name: parsed_statements(text)[0] for name, text in zip(names, texts, strict=True)}
        yield normalized(
            expression.copy().transform(
                lambda node, trees=trees: trees[node.name].copy() if isinstance(node, exp.Column) else node
            )
        )


def _sources_bounded_on_one_side(query: Any, relations: Relations) -> Iterator[str]:
    """Yield the sources whose rows a select compares with rows of others by a lower or an upper bound alone."""
    sides: dict[str, set[str]] = {}
    for condition in _conditions(query):
        if not isinstance(condition, exp.LT | exp.LTE | exp.GT | exp.GTE):
            continue
        left, right = (_sources_of(part, relations) for part in (condition.this, condition.expression))
        is_less = isinstance(condition, exp.LT | exp.LTE)
        for own, other, side in ((left, right, is_less), (right, left, not is_less)):
            for source in own if other and own != other else ():
                sides.setdefault(source, set()).add("upper" if side else "lower")
    yield from (source for source, found in sides.items() if len(found) == 1)


def _sources_of(expression: Any, relations: Relations) -> frozenset[str]:
    tables = {column.table for column in _with_tables(expression, relations).find_all(exp.Column)}
    return frozenset().union(*(relations[table].sources for table in tables if table in relations))


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
    found = branch.origins(column, source)
    if found and all(_are_different_functions(touched, _parsed(text)) for text in found):
        shown = " or ".join(sorted(found))
        return f"the query puts a row of {source} into {column} = {shown}, not {normalized(touched)}"
    if not found and source in branch.one_sided:
        why = f"the query joins rows of {source} with all earlier or all later ones, so a row is part of many grains"
        return f"{why}; give the join both bounds and touched_by an array, or leave {column} out of the grain"
    return ""


def _is_proven(gold: DerivedGold, source: str, column: str, branch: Branch | None) -> bool:
    touched = _parsed(gold.touched_by[source][column])
    if branch is None or touched is None:
        return False
    found = branch.origins(column, source)
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
