"""I5: every gold table is what its declaration says of silver, recomputed in one pass by DuckDB and compared by row.

Exact: counts, sums, minima, maxima, latest rows and the results of queries. `avg`: within one unit of the last
place of gold's decimal. `approx_distinct`: equal to the exact count below 200, where the sketch still holds every
value, else within 5 % of it (three standard errors).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from include.audit.audit_findings import Finding, FindingKind
from include.catalog.pipeline import AdditiveGold, Gold, LatestGold, Measure, QueryGold, Window, grain_columns

EXACT_BELOW = 200
RELATIVE_ERROR = 0.05
# A function of Spark SQL that DuckDB spells otherwise, for the expressions and queries of declarations.
DIALECT = "create or replace macro to_date(moment) as cast(moment as date)"


@dataclass(frozen=True)
class GoldCheck:
    """One gold table compared: rows published, grains recomputed from silver."""

    table: str
    rows: int
    grains: int


def gold_check(database: Any, gold: Gold) -> tuple[GoldCheck, list[Finding]]:
    """Recompute a gold table from the view `silver` and compare it with the view `published`, row by row.

    `database` is a DuckDB connection in UTC. Columns compared are the declared ones.
    """
    database.execute(DIALECT)
    sql = recompute_sql(gold, columns_of(database, "silver"))
    database.execute(f"create or replace temp table recomputed as {sql}")
    grain = ", ".join(_quoted(name) for name in grain_columns(gold))
    grains = _number(database, f"select count(*) from (select distinct {grain} from recomputed)")
    rows = _number(database, "select count(*) from published")
    check = GoldCheck(f"gold.{gold.name}", rows, grains)
    return check, list(_findings(database, gold, check.table))


def _findings(database: Any, gold: Gold, table: str) -> Iterator[Finding]:
    declared, there = columns_of(database, "recomputed"), columns_of(database, "published")
    absent = [name for name in declared if name not in there]
    if absent:
        yield Finding(FindingKind.missing, table, 0, f"has no column {', '.join(absent)}")
    elif isinstance(gold, QueryGold):
        yield from _query_findings(database, declared, table)
    else:
        yield from _keyed_findings(database, gold, table)


def recompute_sql(gold: Gold, silver: Sequence[str]) -> str:
    """Return the SQL that computes a gold table's declared columns from `silver`, which has the columns `silver`."""
    if isinstance(gold, AdditiveGold):
        return _additive(gold)
    if isinstance(gold, LatestGold):
        return _latest(gold)
    return _query(gold, silver)


def columns_of(database: Any, table: str) -> list[str]:
    """Return the columns of a view or table of the connection."""
    return [str(row[0]) for row in database.sql(f"select column_name from (describe {table})").fetchall()]


def _additive(gold: AdditiveGold) -> str:
    window = f"{_start(gold.window)} as {_quoted(gold.window.name)}"
    keys = [window, *(_quoted(key) for key in gold.keys)]
    measures = [f"{_aggregate(measure)} as {_quoted(measure.name)}" for measure in gold.measures]
    return f"select {', '.join(keys + measures)} from silver group by {', '.join(_ordinals(len(keys)))}"


def _start(window: Window) -> str:
    start = f"date_trunc('{window.unit}', {_quoted(window.column)})"
    return start if window.unit == "hour" else f"cast({start} as date)"


def _ordinals(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def _aggregate(measure: Measure) -> str:
    expression = measure.expression
    if measure.function == "count_if":
        return f"count(*) filter (where {expression})"
    if measure.function == "approx_distinct":
        return f"count(distinct {expression})"
    if measure.function == "avg":
        # One division after an exact sum: DuckDB's own avg adds up doubles.
        return f"cast(sum({expression}) as double) / nullif(count({expression}), 0)"
    return f"{measure.function}({expression})"


def _latest(gold: LatestGold) -> str:
    keys = ", ".join(_quoted(key) for key in gold.keys)
    order = ", ".join(f"{_quoted(column)} desc nulls last" for column in gold.order_by)
    columns = ", ".join(f"{expression} as {_quoted(name)}" for name, expression in gold.columns)
    newest = f"row_number() over (partition by {keys} order by {order}, _partition desc, _offset desc) = 1"
    return f"select {keys}, {columns} from silver qualify {newest}"


def _query(gold: QueryGold, silver: Sequence[str]) -> str:
    window = gold.window
    rest = f"* exclude ({_quoted(window.name)})" if window.name in silver else "*"
    listed = ", ".join(_quoted(name) for name in grain_columns(gold))
    same = " and ".join(f"grained.{c} is not distinct from touched.{c}" for c in map(_quoted, grain_columns(gold)))
    return (
        f"with grained as (select {rest}, {_start(window)} as {_quoted(window.name)} from silver), "
        f"touched as (select distinct {listed} from grained where {gold.touched_by}), "
        f"silver as (select * from grained semi join touched on {same}) "
        f"select * from ({gold.query})"
    )


def _keyed_findings(database: Any, gold: AdditiveGold | LatestGold, table: str) -> Iterator[Finding]:
    keys = list(grain_columns(gold))
    values = gold.measures if isinstance(gold, AdditiveGold) else [Measure(n, "max", n) for n, _ in gold.columns]
    listed = ", ".join(map(_quoted, keys))
    scales = _decimal_scales(database)
    same = " and ".join(f"p.{_quoted(key)} is not distinct from r.{_quoted(key)}" for key in keys)
    twice = f"select {listed}, count(*) as rows from published group by {listed} having count(*) > 1"
    yield from _first_of(database, twice, FindingKind.overlap, table, "grains with more than one row", keys)
    missing = f"select {listed} from recomputed as r anti join published as p on {same}"
    yield from _first_of(database, missing, FindingKind.missing, table, "grains that silver has and gold has not", keys)
    surplus = f"select {listed} from published as p anti join recomputed as r on {same}"
    yield from _first_of(database, surplus, FindingKind.surplus, table, "grains that come from nothing in silver", keys)
    for measure in values:
        yield from _differences(database, table, keys, same, measure, scales.get(measure.name))


def _differences(
    database: Any, table: str, keys: list[str], same: str, measure: Measure, scale: int | None
) -> Iterator[Finding]:
    shown = ", ".join(f"p.{_quoted(key)}" for key in keys)
    gold, expected = f"p.{_quoted(measure.name)}", f"r.{_quoted(measure.name)}"
    sql = (
        f"select {shown}, {gold} as gold, {expected} as recomputed from published as p "
        f"join recomputed as r on {same} where {_unequal(measure, gold, expected, scale)}"
    )
    yield from _first_of(database, sql, FindingKind.different, table, f"rows whose {measure.name} is wrong", keys)


def _unequal(measure: Measure, gold: str, expected: str, scale: int | None) -> str:
    if measure.function == "approx_distinct":
        near = f"{expected} >= {EXACT_BELOW} and abs({gold} - {expected}) <= {RELATIVE_ERROR} * {expected}"
        return f"({gold} is distinct from {expected}) and not coalesce({near}, false)"
    if measure.function == "avg":
        unit = 0.0 if scale is None else 10.0**-scale
        near = f"abs(cast({gold} as double) - {expected}) <= {unit} + 1e-12 * abs({expected})"
        return f"({gold} is distinct from {expected}) and not coalesce({near}, false)"
    return f"{gold} is distinct from {expected}"


def _query_findings(database: Any, columns: Sequence[str], table: str) -> Iterator[Finding]:
    listed = ", ".join(map(_quoted, columns))
    recomputed, published = f"select {listed} from recomputed", f"select {listed} from published"
    missing, surplus = f"{recomputed} except all {published}", f"{published} except all {recomputed}"
    yield from _first_of(
        database, missing, FindingKind.missing, table, "rows that the query gives and gold has not", columns
    )
    yield from _first_of(database, surplus, FindingKind.surplus, table, "rows that the query does not give", columns)


def _first_of(
    database: Any, sql: str, kind: FindingKind, table: str, detail: str, order: Sequence[str]
) -> Iterator[Finding]:
    """One finding for all rows of `sql`, naming how many they are and the first by `order`."""
    rows = _number(database, f"select count(*) from ({sql})")
    if rows:
        found = database.sql(f"select * from ({sql}) order by {', '.join(map(_quoted, order))} limit 1")
        first = ", ".join(f"{name}={value}" for name, value in zip(found.columns, found.fetchall()[0], strict=True))
        yield Finding(kind, table, rows, f"{rows} {detail}; the first: {first}")


def _number(database: Any, sql: str) -> int:
    return int(database.sql(sql).fetchall()[0][0])


def _decimal_scales(database: Any) -> dict[str, int]:
    rows = database.sql("select column_name, column_type from (describe published)").fetchall()
    return {name: int(kind.rstrip(")").split(",")[1]) for name, kind in rows if kind.startswith("DECIMAL")}


def _quoted(name: str) -> str:
    return f'"{name}"'
