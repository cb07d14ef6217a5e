"""The audit's own formula of each measure: its value over rows of silver, and when a published value is wrong.

It shares nothing with what writes gold (`spark_jobs/layers/gold_measures.py`), so that an error there is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from include.declare.measures import QUANTILE_ERROR, SUM_ERROR, Measure
from include.ground.sql_quoting import duckdb_expression, sql_identifier

EXACT_BELOW = 200
RELATIVE_ERROR = 0.05


@dataclass(frozen=True)
class Aggregates:
    """Aggregates of a table's `measures` over rows of silver with these columns."""

    columns: Sequence[str]
    measures: Sequence[Measure]

    def sql(self, expression: str) -> str:
        """Return an expression of the declaration as DuckDB's SQL."""
        return duckdb_expression(expression, self.columns)

    def of(self, measure: Measure) -> str:
        return FORMULAS[measure.function].value(measure, self)

    def named(self, name: str) -> str:
        return self.of(next(each for each in self.measures if each.name == name))


@dataclass(frozen=True)
class Formula:
    """How the audit computes a measure.

    `value`: its aggregate. `near`: the condition of a value that is right although it differs, by the published and the
    recomputed one, and the scale of a decimal column. `merged`: the aggregate of a verified value and of newer rows'.
    """

    value: Callable[[Measure, Aggregates], str]
    near: Callable[[str, str, int | None], str] | None = None
    merged: Callable[[Measure], str] | None = None


def is_wrong_sql(measure: Measure, gold: str, expected: str, scale: int | None) -> str:
    """Return the condition that a published value is not the recomputed one; `scale` is of a decimal column."""
    differs, near = f"{gold} is distinct from {expected}", FORMULAS[measure.function].near
    return f"({differs}) and not coalesce({near(gold, expected, scale)}, false)" if near else differs


def merged_sql(measures: Sequence[Measure]) -> list[str] | None:
    """Return the columns that verified values and those of newer rows give; None when rows must be read again."""
    formulas = [(each, FORMULAS[each.function].merged) for each in measures]
    if not all(merged for _, merged in formulas):
        return None
    return [f"{merged(each)} as {sql_identifier(each.name)}" for each, merged in formulas if merged]


def _merged_by(function: str) -> Callable[[Measure], str]:
    return lambda measure: f"{function}({sql_identifier(measure.name)})"


def _by_name(measure: Measure, rows: Aggregates) -> str:
    return f"{measure.function}({rows.sql(measure.expression)})"


def _counted_if(measure: Measure, rows: Aggregates) -> str:
    return f"count(*) filter (where {rows.sql(measure.expression)})"


def _sum_is_near(gold: str, expected: str, scale: int | None) -> str:
    relative = f"abs({gold} - {expected}) <= {SUM_ERROR} * abs({expected})"
    return f"{relative} and typeof({gold}) = 'DOUBLE'" if scale is None else "false"


def _average(measure: Measure, rows: Aggregates) -> str:
    expression = rows.sql(measure.expression)
    # One division after an exact sum: DuckDB's own avg adds up doubles.
    return f"cast(sum({expression}) as double) / nullif(count({expression}), 0)"


def _average_is_near(gold: str, expected: str, scale: int | None) -> str:
    unit = 0.0 if scale is None else 10.0**-scale
    return f"abs(cast({gold} as double) - {expected}) <= {unit} + 1e-12 * abs({expected})"


def _distinct(measure: Measure, rows: Aggregates) -> str:
    return f"count(distinct {rows.sql(measure.expression)})"


def _estimate_is_near(gold: str, expected: str, scale: int | None) -> str:
    return f"{expected} >= {EXACT_BELOW} and abs({gold} - {expected}) <= {RELATIVE_ERROR} * {expected}"


def _chosen(choose: str) -> Callable[[Measure, Aggregates], str]:
    def value(measure: Measure, rows: Aggregates) -> str:
        expression, by = rows.sql(measure.expression), rows.sql(measure.by)
        order_key = f"struct_pack(a := {by}, b := _partition, c := _offset)"
        # Of a struct, since a value that is null would be passed over.
        return f"({choose}(struct_pack(v := {expression}), {order_key}) filter (where {by} is not null)).v"

    return value


def _top(measure: Measure, rows: Aggregates) -> str:
    if measure.weight:
        return _heaviest(measure, rows.sql(measure.expression), rows.sql(measure.weight))
    counted = f"map_entries(histogram({rows.sql(measure.expression)}))"
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


def _quantile(measure: Measure, rows: Aggregates) -> str:
    return f"quantile_disc(cast({rows.sql(measure.expression)} as double), {measure.at})"


def _quantile_is_near(gold: str, expected: str, scale: int | None) -> str:
    return f"abs({gold} - {expected}) <= {QUANTILE_ERROR} * abs({expected}) * (1 + 1e-9)"


def _histogram(measure: Measure, rows: Aggregates) -> str:
    value = f"cast({rows.sql(measure.expression)} as double)"
    bounds = [f"{bound!r}::double" for bound in measure.bounds]
    between = [f"{value} >= {low} and {value} < {high}" for low, high in zip(bounds, bounds[1:], strict=False)]
    bins = [f"{value} < {bounds[0]}", *between, f"{value} >= {bounds[-1]}"]
    return f"[{', '.join(f'count(*) filter (where {chosen})' for chosen in bins)}]"


def _quotient(of: str, to: str) -> str:
    return f"cast({of} as double) / nullif(cast({to} as double), 0)"


FORMULAS: Mapping[str, Formula] = {
    "count": Formula(_by_name, merged=_merged_by("sum")),
    "count_if": Formula(_counted_if, merged=_merged_by("sum")),
    "sum": Formula(_by_name, _sum_is_near, _merged_by("sum")),
    "min": Formula(_by_name, merged=_merged_by("min")),
    "max": Formula(_by_name, merged=_merged_by("max")),
    "avg": Formula(_average, _average_is_near),
    "approx_distinct": Formula(_distinct, _estimate_is_near),
    "count_distinct": Formula(_distinct),
    "first": Formula(_chosen("arg_min")),
    "last": Formula(_chosen("arg_max")),
    "min_by": Formula(_chosen("arg_min")),
    "max_by": Formula(_chosen("arg_max")),
    "top_k": Formula(_top),
    "approx_quantile": Formula(_quantile, _quantile_is_near),
    "histogram": Formula(_histogram),
    "ratio": Formula(
        lambda measure, rows: _quotient(rows.named(measure.of), rows.named(measure.to)),
        merged=lambda measure: _quotient(*(f"sum({sql_identifier(part)})" for part in (measure.of, measure.to))),
    ),
}
