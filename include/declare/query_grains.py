"""Whether a gold query computes each grain from the rows of that grain alone.

A run recomputes the grains that it touched: the query's view `silver` has their rows and no others. A query that looks
at several grains at once (a running total over days, a `limit`) would give different rows in the stream and in a
rebuild.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlglot import exp

Reason = tuple[int, str]
"""Line of the query and what is wrong there."""


def grain_problems(query: Any, grain: Sequence[str]) -> Iterator[Reason]:
    """Yield where a parsed query combines rows of several grains, which `grain` names."""
    columns = {name.lower() for name in grain}
    listed = ", ".join(grain)
    for select in query.find_all(exp.Select):
        yield from _select_problems(select, columns, listed)
    for part in query.find_all(exp.Limit, exp.Offset, exp.Fetch):
        yield (
            _line(part),
            f"takes rows of all grains together; use row_number() over (partition by {listed} order by …)",
        )
    for condition in query.find_all(exp.In, exp.Exists):
        if condition.find(exp.Query):
            yield _line(condition), f"looks into rows of other grains; join the subquery using ({listed})"
    for subquery in query.find_all(exp.Subquery):
        if not isinstance(subquery.parent, exp.From | exp.Join | exp.SetOperation | exp.Subquery | exp.CTE):
            yield _line(subquery), f"looks into rows of other grains; join the subquery using ({listed})"


def _select_problems(select: Any, grain: set[str], listed: str) -> Iterator[Reason]:
    for projection in select.expressions:
        if projection.alias.lower() in grain and _name(projection.unalias()) != projection.alias.lower():
            yield _line(projection), f"{projection.alias} must be the grain's own column, is {_text(projection)}"
    own = [node for node in select.find_all(exp.Window, exp.AggFunc) if node.find_ancestor(exp.Select) is select]
    windows = [node for node in own if isinstance(node, exp.Window)]
    for window in windows:
        if not grain <= _partition_of(window, select):
            yield _line(window), f"ranges over several grains: {_text(window)}; partition by {listed}"
    over = {id(node) for window in windows for node in window.this.walk()}
    has_aggregates = any(isinstance(node, exp.AggFunc) and id(node) not in over for node in own)
    group = select.args.get("group")
    if (group or has_aggregates) and not grain <= _group_columns(group, select):
        yield _line(group or select), f"aggregates several grains; group by {listed}"
    if select.args.get("distinct") and not grain <= {_name(each) for each in select.expressions}:
        yield _line(select), f"select distinct must have the columns {listed}, or it mixes grains"
    for join in select.args.get("joins") or ():
        if not isinstance(join.this, exp.Unnest | exp.Lateral) and not grain <= _equated_columns(join):
            yield _line(join), f"joins rows of several grains; join using ({listed})"


def _partition_of(window: Any, select: Any) -> set[str]:
    named = {each.this.name.lower(): each for each in select.args.get("windows") or ()}
    base = named.get(window.alias.lower()) if window.alias else None
    return {_name(each) for each in (base or window).args.get("partition_by") or ()}


def _group_columns(group: Any, select: Any) -> set[str]:
    """Return the names of the columns by which a select groups; of none for grouping sets."""
    if group is None or any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets")):
        return set()
    if group.args.get("all"):
        return {_name(each) for each in select.expressions if not each.find(exp.AggFunc)}
    positions = [int(each.name) for each in group.expressions if isinstance(each, exp.Literal) and each.is_int]
    placed = [select.expressions[n - 1] for n in positions if 0 < n <= len(select.expressions)]
    return {_name(each) for each in (*group.expressions, *placed)}


def _equated_columns(join: Any) -> set[str]:
    """Return the names of the columns that a join equates on both sides."""
    names = {each.name.lower() for each in join.args.get("using") or ()}
    on = join.args.get("on")
    conditions = list(on.flatten()) if isinstance(on, exp.And) else [on] if on is not None else []
    for each in (condition.unnest() for condition in conditions):
        if isinstance(each, exp.EQ | exp.NullSafeEQ) and _name(each.this) == _name(each.expression):
            names.add(_name(each.this))
    return names


def _name(node: Any) -> str:
    """Return the lower-case name of a plain column, empty for any other expression."""
    plain = node.unalias() if isinstance(node, exp.Alias) and node.alias.lower() == node.this.name.lower() else node
    return str(plain.name).lower() if isinstance(plain, exp.Column) else ""


def _line(node: Any) -> int:
    return next((each.meta["line"] for each in node.walk() if "line" in each.meta), 1)


def _text(node: Any) -> str:
    return str(node.sql(dialect="spark"))
