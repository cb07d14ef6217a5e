"""The SQL, in DuckDB's dialect, that computes a gold table's declared columns from silver. It runs no query."""

from __future__ import annotations

from collections.abc import Sequence

from include.audit.measure_sql import aggregate_sql
from include.declare.pipeline import (
    AdditiveGold,
    Gold,
    LatestGold,
    QueryGold,
    deciding_columns,
    gold_window,
    grain_columns,
)
from include.declare.window_sql import SESSION_NUMBER, numbered_sessions_sql, session_bounds_sql, windowed_sql
from include.ground.sql_quoting import duckdb_expression, same_sql, sql_identifier


def recompute_sql(gold: Gold, silver: Sequence[str]) -> str:
    """Return the SQL that computes a gold table's declared columns from the view `silver` with the columns `silver`."""
    if isinstance(gold, AdditiveGold):
        return _additive(gold, silver)
    if isinstance(gold, LatestGold):
        return newest_sql(gold, latest_candidates_sql(gold, silver))
    return _query(gold, silver)


def _additive(gold: AdditiveGold, silver: Sequence[str]) -> str:
    columns = grained_columns(gold, silver)
    keys = selected = [sql_identifier(name) for name in grain_columns(gold)]
    measures = [
        f"{aggregate_sql(measure, columns, gold.measures)} as {sql_identifier(measure.name)}"
        for measure in gold.measures
    ]
    source = "grained"
    if gold.session is not None:
        source = f"({numbered_sessions_sql(gold.session, gold.keys, source)})"
        keys, selected = [*keys, SESSION_NUMBER], [*keys, *session_bounds_sql(gold.session)]
    return (
        f"{grained_sql(gold, silver)} select {', '.join(selected + measures)} from {source} group by {', '.join(keys)}"
    )


def grained_columns(gold: Gold, silver: Sequence[str]) -> list[str]:
    """Return the columns of silver and the window."""
    window = gold_window(gold)
    return list(silver) if window is None else [*silver, window.name]


def latest_candidates_sql(gold: LatestGold, silver: Sequence[str]) -> str:
    """Return the query of all rows of `silver` as rows of the table, with what decides which is the newest."""
    columns = [f"{duckdb_expression(sql, silver)} as {sql_identifier(name)}" for name, sql in gold.columns]
    kept = [f"{sql_identifier(name)} as {sql_identifier(by)}" for name, by in deciding_columns(gold)]
    return f"select {', '.join([*map(sql_identifier, gold.keys), *columns, *kept])} from {_source(gold, silver)}"


def newest_sql(gold: LatestGold, candidates: str) -> str:
    """Return the query of the newest row of each key."""
    keys = ", ".join(map(sql_identifier, gold.keys))
    order = ", ".join(f"{sql_identifier(by)} desc nulls last" for _, by in deciding_columns(gold))
    newest = f"row_number() over (partition by {keys} order by {order}) = 1"
    return f"select * from ({candidates}) qualify {newest}"


def _query(gold: QueryGold, silver: Sequence[str]) -> str:
    columns = grained_columns(gold, silver)
    grain = [sql_identifier(name) for name in grain_columns(gold)]
    same = same_sql(grain_columns(gold), "grained", "touched")
    return (
        f"{grained_sql(gold, silver)}, touched as "
        f"(select distinct {', '.join(grain)} from grained where {duckdb_expression(gold.touched_by, columns)}), "
        f"silver as (select * from grained semi join touched on {same}) "
        f"select * from ({duckdb_expression(gold.query, columns)})"
    )


def grained_sql(gold: Gold, silver: Sequence[str]) -> str:
    """Return the beginning of a statement that names `grained`: silver with the window's column."""
    window = gold_window(gold)
    replaced = [name for name in silver if window is not None and name == window.name]
    return f"with grained as ({windowed_sql(window, _source(gold, silver), replaced)})"


def _source(gold: Gold, silver: Sequence[str]) -> str:
    """Return the relation of the rows that count; a query sees all rows of the grains that its `touched_by` finds."""
    if isinstance(gold, QueryGold) or gold.where == "true":
        return "silver"
    return f"(select * from silver where {duckdb_expression(gold.where, silver)})"
