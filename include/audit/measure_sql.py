"""Measures of additive gold in DuckDB: recomputed from silver, and when a published value is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from include.declare.comparable_doubles import SUM_ERROR
from include.declare.measures import EARLIEST, PLACED, QUANTILE_ERROR, Measure
from include.ground.sql_quoting import duckdb_expression

EXACT_BELOW = 200
RELATIVE_ERROR = 0.05


def aggregate_sql(measure: Measure, silver: Sequence[str], measures: Sequence[Measure]) -> str:
    """Return the aggregate of a measure over rows with the columns `silver`; a ratio is of two of `measures`."""
    expression, function = duckdb_expression(measure.expression, silver), measure.function
    if function == "ratio":
        of, to = (next(each for each in measures if each.name == name) for name in (measure.of, measure.to))
        of_sql, to_sql = (f"cast({aggregate_sql(each, silver, measures)} as double)" for each in (of, to))
        return f"{of_sql} / nullif({to_sql}, 0)"
    if function == "count_if":
        return f"count(*) filter (where {expression})"
    if function in ("approx_distinct", "count_distinct"):
        return f"count(distinct {expression})"
    if function == "avg":
        # One division after an exact sum: DuckDB's own avg adds up doubles.
        return f"cast(sum({expression}) as double) / nullif(count({expression}), 0)"
    if function in PLACED:
        return _in_order(measure, expression, duckdb_expression(measure.by, silver))
    if function == "top_k" and measure.weight:
        return _heaviest(measure, expression, duckdb_expression(measure.weight, silver))
    if function == "top_k":
        return _top(measure, expression)
    if function == "approx_quantile":
        return f"quantile_disc(cast({expression} as double), {measure.at})"
    if function == "histogram":
        return f"[{', '.join(f'count(*) filter (where {chosen})' for chosen in _bins(measure, expression))}]"
    return f"{function}({expression})"


def is_wrong_sql(measure: Measure, gold: str, expected: str, scale: int | None) -> str:
    """Return the condition that a published value is not the recomputed one; `scale` is of a decimal column."""
    differs, near = f"{gold} is distinct from {expected}", ""
    if measure.function == "approx_distinct":
        near = f"{expected} >= {EXACT_BELOW} and abs({gold} - {expected}) <= {RELATIVE_ERROR} * {expected}"
    elif measure.function == "approx_quantile":
        near = f"abs({gold} - {expected}) <= {QUANTILE_ERROR} * abs({expected}) * (1 + 1e-9)"
    elif measure.function == "avg":
        unit = 0.0 if scale is None else 10.0**-scale
        near = f"abs(cast({gold} as double) - {expected}) <= {unit} + 1e-12 * abs({expected})"
    elif measure.function == "sum" and scale is None:
        near = f"abs({gold} - {expected}) <= {SUM_ERROR} * abs({expected}) and typeof({gold}) = 'DOUBLE'"
    return f"({differs}) and not coalesce({near}, false)" if near else differs


def _in_order(measure: Measure, expression: str, by: str) -> str:
    choose = "arg_min" if measure.function in EARLIEST else "arg_max"
    order_key = f"struct_pack(a := {by}, b := _partition, c := _offset)"
    # Of a struct, since a value that is null would be passed over.
    return f"({choose}(struct_pack(v := {expression}), {order_key}) filter (where {by} is not null)).v"


def _top(measure: Measure, expression: str) -> str:
    counted = f"map_entries(histogram({expression}))"
    pair = "struct_pack(n := -cast(_each.value as bigint), v := _each.key)"
    ranked = f"list_sort(list_transform({counted}, lambda _each: {pair}))"
    named = "struct_pack(value := _each.v, count := -_each.n)"
    return f"coalesce(list_transform({ranked}, lambda _each: {named})[1:{measure.k}], [])"


def _heaviest(measure: Measure, expression: str, weight: str) -> str:
    pairs = f"select unnest(list(struct_pack(v := {expression}, w := {weight}))) as _each"
    known = f"select * from ({pairs}) where _each.v is not null and _each.w is not null"
    summed = f"select _each.v as _v, cast(sum(_each.w) as bigint) as _w from ({known}) group by all"
    ranked = "list(struct_pack(value := _v, weight := _w) order by _w desc, _v)"
    return f"coalesce((select {ranked}[1:{measure.k}] from ({summed})), [])"


def _bins(measure: Measure, expression: str) -> list[str]:
    value, bounds = f"cast({expression} as double)", [f"{bound!r}::double" for bound in measure.bounds]
    between = [f"{value} >= {low} and {value} < {high}" for low, high in zip(bounds, bounds[1:], strict=False)]
    return [f"{value} < {bounds[0]}", *between, f"{value} >= {bounds[-1]}"]
