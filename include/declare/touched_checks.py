"""Checks that `touched_by` names the grains to which a derived query assigns the rows of each source.

The query assigns each row of a source to a grain. Where the query's text shows that grain as an
expression over the source, `touched_by` must be that expression, or an array that has it.

The origins of a query's grain: for each source the expressions that equal a column of the grain.

A column of the result is followed through subqueries and common table expressions; what a join or condition equates
with it equals it too. What is computed in another way (an aggregate, a coalesce) has no known origin.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

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

    `one_sided`: the sources that it compares with others from one side alone, as in `seen_at <= departed_at`.
    """

    columns: Mapping[str, Origins]
    sources: frozenset[str]
    one_sided: frozenset[str] = frozenset()

    def origins(self, column: str, source: str) -> frozenset[str]:
        return self.columns.get(column.lower(), {}).get(source, frozenset())


@dataclass
class _Relation:
    """A table of a select: a source, or a subquery with the columns of one branch.

    `branch` has the columns that it surely has; a source may have others.
    """

    source: str = ""
    branch: Branch = field(default_factory=lambda: Branch({}, frozenset()))

    def origins(self, column: str) -> Origins:
        if self.source:
            return {self.source: frozenset({column})}
        return self.branch.columns.get(column, {})

    def has(self, column: str) -> bool:
        return bool(self.source) or column in self.branch.columns


Relations = Mapping[str, _Relation]


def query_branches(sql: str, sources: Mapping[str, Collection[str]]) -> list[Branch]:
    """Return the branches of a query over these sources; none when there are too many of them.

    `sources` has columns that each surely has; so an unqualified column belongs to the table that has it.
    """
    (tree,) = parsed_statements(sql)
    known = {name.lower(): [_source_branch(name, columns)] for name, columns in sources.items()}
    return _branches(tree, known, {name.lower() for name in sources})


def _source_branch(source: str, columns: Collection[str]) -> Branch:
    return Branch({column: {source: frozenset({column})} for column in columns}, frozenset({source}))


def normalized(expression: Any) -> str:
    """Return the SQL of an expression without names of tables, in one spelling."""
    plain = expression.copy().transform(
        lambda node: exp.column(node.name.lower()) if isinstance(node, exp.Column) else node
    )
    return str(plain.unnest().sql(dialect="spark", normalize=True, identify=False))


def _branches(query: Any, known: Mapping[str, list[Branch]], sources: set[str]) -> list[Branch]:
    known, sources = dict(known), set(sources)
    for cte in query.ctes if isinstance(query, exp.Query) else ():
        known[cte.alias.lower()] = _branches(cte.this, known, sources)
        sources.discard(cte.alias.lower())
    if isinstance(query, exp.Subquery):
        return _branches(query.this, known, sources)
    if isinstance(query, exp.SetOperation):
        left, right = _branches(query.this, known, sources), _branches(query.expression, known, sources)
        names = [*left[0].columns] if left else []
        # The columns of a union have the names of its first branch.
        return [*left, *(_renamed(branch, names) for branch in right)]
    if not isinstance(query, exp.Select):
        return []
    tables = [query.args["from_"].this] if query.args.get("from_") else []
    tables += [join.this for join in query.args.get("joins") or ()]
    choices = [_alternatives(table, known, sources) for table in tables]
    if math.prod(map(len, choices)) > MOST_BRANCHES:
        return []
    return [_select(query, dict(chosen)) for chosen in product(*choices)]


def _renamed(branch: Branch, names: Sequence[str]) -> Branch:
    return replace(branch, columns=dict(zip(names, branch.columns.values(), strict=False)))


def _alternatives(table: Any, known: Mapping[str, list[Branch]], sources: set[str]) -> list[tuple[str, _Relation]]:
    name = table.name.lower() if isinstance(table, exp.Table) else ""
    alias = (table.alias or name).lower()
    if name in sources:
        return [(alias, _Relation(next(iter(known[name][0].sources)), known[name][0]))]
    found = known.get(name, []) if name else _branches(table, known, sources)
    return [(alias, _Relation("", branch)) for branch in found] or [(alias, _Relation())]


def _select(query: Any, relations: Relations) -> Branch:
    equal = list(_equalities(query, relations))
    columns = {}
    for projection in query.expressions:
        if isinstance(projection, exp.Star):
            for name in [name for each in relations.values() for name in each.branch.columns]:
                columns[name] = _class_origins(exp.column(name), equal, relations)
        else:
            columns[projection.alias_or_name.lower()] = _class_origins(projection.unalias(), equal, relations)
    sources = frozenset().union(*(each.branch.sources for each in relations.values()))
    below = frozenset().union(*(each.branch.one_sided for each in relations.values()))
    return Branch(columns, sources, below | frozenset(_sources_bounded_on_one_side(query, relations)))


def _conditions(query: Any) -> Iterator[Any]:
    """Yield the conditions that all rows of a select keep, of joins and of `where`."""
    found = [join.args.get("on") for join in query.args.get("joins") or ()]
    found.append(query.args["where"].this if query.args.get("where") else None)
    for each in filter(None, found):
        yield from (part.unnest() for part in (each.flatten() if isinstance(each, exp.And) else [each]))


def _equalities(query: Any, relations: Relations) -> Iterator[tuple[str, str]]:
    """Yield pairs of expressions that are equal, as SQL with the names of tables."""
    for condition in _conditions(query):
        if isinstance(condition, exp.EQ | exp.NullSafeEQ):
            yield _qualified(condition.this, relations), _qualified(condition.expression, relations)
    for join in query.args.get("joins") or ():
        for column in join.args.get("using") or ():
            having = [alias for alias, each in relations.items() if each.has(column.name.lower())]
            names = [f"{alias}.{column.name.lower()}" for alias in having]
            yield from ((names[0], name) for name in names[1:])


def _qualified(expression: Any, relations: Relations) -> str:
    return str(_with_tables(expression, relations).sql(dialect="spark"))


def _with_tables(expression: Any, relations: Relations) -> Any:
    """Return an expression whose columns name their table, where it is known."""

    def named(node: Any) -> Any:
        if not isinstance(node, exp.Column):
            return node
        table, column = node.table.lower(), node.name.lower()
        having = [alias for alias, each in relations.items() if each.has(column)]
        surely = [alias for alias in having if column in relations[alias].branch.columns]
        known = table or (having[0] if len(having) == 1 else surely[0] if surely else "")
        return exp.column(column, table=known or None)

    return expression.unnest().copy().transform(named)


def _class_origins(expression: Any, equal: Sequence[tuple[str, str]], relations: Relations) -> Origins:
    found, before = {_qualified(expression, relations)}, 0
    while len(found) > before:
        before = len(found)
        found |= {one for pair in equal for one in pair if found & set(pair)}
    merged: dict[str, frozenset[str]] = {}
    for text in found:
        for source, texts in _origins(parsed_statements(text)[0], relations).items():
            merged[source] = merged.get(source, frozenset()) | texts
    return merged


def _origins(expression: Any, relations: Relations) -> Origins:
    """Return what an expression of one row is over the columns of each source; nothing for an aggregate."""
    columns = list(expression.find_all(exp.Column))
    tables = {column.table.lower() for column in columns}
    if len(tables) != 1 or expression.find(exp.AggFunc, exp.Window, exp.Query):
        return {}
    relation = relations.get(tables.pop())
    if relation is None:
        return {}
    by_column = {column.name.lower(): relation.origins(column.name.lower()) for column in columns}
    sources = set.intersection(*(set(each) for each in by_column.values()))
    return {source: frozenset(_substituted(expression, by_column, source)) for source in sources}


def _substituted(expression: Any, by_column: Mapping[str, Origins], source: str) -> Iterator[str]:
    names = list(by_column)
    for texts in product(*(sorted(by_column[name][source]) for name in names)):
        trees = {name: parsed_statements(text)[0] for name, text in zip(names, texts, strict=True)}
        yield normalized(
            expression.copy().transform(
                lambda node, trees=trees: trees[node.name.lower()].copy() if isinstance(node, exp.Column) else node
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
    tables = {column.table.lower() for column in _with_tables(expression, relations).find_all(exp.Column)}
    return frozenset().union(*(relations[table].branch.sources for table in tables if table in relations))


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
