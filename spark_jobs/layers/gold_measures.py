"""Each measure of additive gold as Spark columns: its state over new rows, how states merge, and its value.

The state of a measure holds all that a merge needs. Where the value is not enough, the state is in columns that begin
with `_`. A merge of states is associative and commutative, and a value is a function of the state alone, so that
neither batches nor their order change a value:

| measure | state | merge |
|---|---|---|
| count, count_if, sum | the value | sum |
| min, max | the value | min, max |
| avg | sum, count | sums |
| approx_distinct | HLL sketch | union |
| count_distinct | its values, sorted | union |
| first, last, min_by, max_by | the value and its order key (by, partition, offset) | that of the least or greatest |
| top_k | the count of each value, or the sum of its weights, sorted | sum of counts |
| approx_quantile | the count of each bucket of numbers within 1 % of its middle (DDSketch), sorted | sum of counts |
| histogram | the count of each bin | sums |
| ratio | that of its measures | – |
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.declare.measures import EARLIEST, MERGED_BY, PLACED, QUANTILE_ERROR, Measure

COUNTED = ("top_k", "approx_quantile")
MERGES = {"sum": F.sum, "min": F.min, "max": F.max}
GAMMA = (1 + QUANTILE_ERROR) / (1 - QUANTILE_ERROR)
"""Ratio of a bucket's bounds: Masson, Rim, Lee, DDSketch (VLDB 2019), section 2.1."""
MIDDLE = 1 << 20
"""Buckets of positive numbers are numbered from here to both sides; a double has fewer than 75,000."""


def kept_columns(measure: Measure) -> list[str]:
    """Return the names of the state's columns other than the value."""
    name, function = measure.name, measure.function
    if function == "avg":
        return [f"_{name}_sum", f"_{name}_count"]
    if function == "histogram":
        return [f"_{name}_{number}" for number in range(len(measure.bounds) + 1)]
    suffix = "_place" if function in PLACED else "_counts" if function in COUNTED else ""
    suffix = {"approx_distinct": "_sketch", "count_distinct": "_values"}.get(function, suffix)
    return [f"_{name}{suffix}"] if suffix else []


def state_of_rows(measure: Measure) -> list[Column]:
    """Return the aggregates that make the state of a measure from rows of silver."""
    if measure.function == "ratio":
        return []
    expression = F.expr(measure.expression) if measure.expression != "*" else F.lit(1)
    name, function, kept = measure.name, measure.function, kept_columns(measure)
    if function == "avg":
        return [F.sum(expression).alias(kept[0]), F.count(expression).alias(kept[1])]
    if function == "approx_distinct":
        return [F.hll_sketch_agg(expression).alias(kept[0])]
    if function == "count_distinct":
        return [F.array_sort(F.collect_set(expression)).alias(kept[0])]
    if function in PLACED:
        order_key = F.struct(F.expr(measure.by).alias("by"), "_partition", "_offset")
        known = F.when(F.expr(measure.by).isNotNull(), order_key)
        return [_at(measure, expression, known).alias(name), _outermost(measure, known).alias(kept[0])]
    if function in COUNTED:
        value = _bucket(expression.cast("double")) if function == "approx_quantile" else expression
        count = (F.expr(measure.weight) if measure.weight else F.lit(1)).cast("long")
        one = F.struct(value.alias("value"), count.alias("count"))
        is_known = value.isNotNull() & count.isNotNull()
        return [_counts(F.collect_list(F.when(is_known, one))).alias(kept[0])]
    if function == "histogram":
        return [F.count_if(chosen).alias(k) for chosen, k in zip(_bins(measure, expression), kept, strict=True)]
    plain = {"count": F.count, "count_if": F.count_if, "sum": F.sum, "min": F.min, "max": F.max}
    return [plain[function](expression).alias(name)]


def merged_state(measure: Measure) -> list[Column]:
    """Return the aggregates that make one state of several."""
    name, function, kept = measure.name, measure.function, kept_columns(measure)
    if function in ("avg", "histogram"):
        return [F.sum(column).alias(column) for column in kept]
    if function == "approx_distinct":
        return [F.hll_union_agg(kept[0]).alias(kept[0])]
    if function == "count_distinct":
        return [F.array_sort(F.array_distinct(F.flatten(F.collect_list(kept[0])))).alias(kept[0])]
    if function in PLACED:
        order_key = F.col(kept[0])
        return [_at(measure, F.col(name), order_key).alias(name), _outermost(measure, order_key).alias(kept[0])]
    if function in COUNTED:
        return [_counts(F.flatten(F.collect_list(kept[0]))).alias(kept[0])]
    return [] if function == "ratio" else [MERGES[MERGED_BY[function]](name).alias(name)]


def value_of_state(measure: Measure) -> Column:
    """Return the value of a measure, from the columns of its state; of a ratio, from the values of its measures."""
    function, kept = measure.function, kept_columns(measure)
    if function == "avg":
        return F.try_divide(F.col(kept[0]), F.col(kept[1]))
    if function == "approx_distinct":
        # A sketch that was never merged is estimated in another way; a union with itself makes both alike.
        return F.hll_sketch_estimate(F.hll_union(kept[0], kept[0]))
    if function == "count_distinct":
        return F.size(kept[0]).cast("long")
    if function == "top_k":
        ranked = F.array_sort(F.transform(kept[0], lambda each: F.struct(-each["count"], each["value"])))
        total = "weight" if measure.weight else "count"
        named = F.transform(ranked, lambda each: F.struct(each["value"].alias("value"), (-each["col1"]).alias(total)))
        return F.slice(named, 1, measure.k)
    if function == "approx_quantile":
        return _quantile(F.col(kept[0]), measure.at)
    if function == "histogram":
        return F.array(*kept)
    if function == "ratio":
        return F.try_divide(F.col(measure.of).cast("double"), F.col(measure.to).cast("double"))
    return F.col(measure.name)


def _at(measure: Measure, value: Column, order_key: Column) -> Column:
    return F.min_by(value, order_key) if measure.function in EARLIEST else F.max_by(value, order_key)


def _outermost(measure: Measure, order_key: Column) -> Column:
    return F.min(order_key) if measure.function in EARLIEST else F.max(order_key)


def _counts(pairs: Column) -> Column:
    """Return (value, count) pairs with one pair per value, by value: runs of the sorted pairs, each summed."""
    ordered = F.array_sort(pairs)
    # `transform` binds the sorted array once; as a plain column it would be sorted for each of its elements.
    return F.flatten(F.transform(F.array(ordered), _summed_runs))


def _summed_runs(pairs: Column) -> Column:
    last = F.size(pairs) - 1
    numbers = F.when(last >= 0, F.sequence(F.lit(0), last)).otherwise(F.array().cast("array<int>"))
    begins = F.filter(numbers, lambda n: (n == 0) | ~F.get(pairs, n)["value"].eqNullSafe(F.get(pairs, n - 1)["value"]))
    return F.flatten(F.transform(F.array(begins), lambda starts: F.transform(starts, _sum_of_run(pairs, starts))))


def _sum_of_run(pairs: Column, starts: Column) -> Callable[[Column, Column], Column]:
    def summed(start: Column, number: Column) -> Column:
        end = F.coalesce(F.get(starts, number + 1), F.size(pairs))
        run = F.slice(pairs, start + 1, end - start)
        total = F.aggregate(run, F.lit(0).cast("long"), lambda sum_, each: sum_ + each["count"])
        return F.struct(F.get(pairs, start)["value"].alias("value"), total.alias("count"))

    return summed


def _bucket(number: Column) -> Column:
    """Return the bucket of a number, in the order of numbers; null for null and NaN."""
    finite = F.greatest(F.lit(-1.7e308), F.least(number, F.lit(1.7e308)))
    index = F.ceil(F.log(F.abs(finite)) / math.log(GAMMA)) + MIDDLE
    placed = F.when(finite == 0, F.lit(0).cast("long")).otherwise(F.signum(finite).cast("long") * index)
    return F.when(number.isNotNull() & ~F.isnan(number), placed)


def _quantile(counts: Column, at: float) -> Column:
    """Return the number at a quantile: the middle of the bucket that has the row of rank ceil(at * rows)."""
    total = F.aggregate(counts, F.lit(0).cast("long"), lambda sum_, each: sum_ + each["count"])
    rank = F.greatest(F.ceil(total * F.lit(at)), F.lit(1).cast("long"))
    start = F.struct(F.lit(0).cast("long").alias("rows"), F.lit(None).cast("long").alias("bucket"))

    def step(found: Column, each: Column) -> Column:
        rows = found["rows"] + each["count"]
        is_first = (rows >= rank) & found["bucket"].isNull()
        bucket = F.when(is_first, each["value"]).otherwise(found["bucket"])
        return F.struct(rows.alias("rows"), bucket.alias("bucket"))

    return F.aggregate(counts, start, step, lambda found: _middle(found["bucket"]))


def _middle(bucket: Column) -> Column:
    """Return the number that is within the relative error of all numbers of a bucket."""
    size = F.pow(F.lit(GAMMA), F.abs(bucket) - MIDDLE) * (2 / (GAMMA + 1))
    return F.when(bucket == 0, F.lit(0.0)).otherwise(F.signum(bucket.cast("double")) * size)


def _bins(measure: Measure, value: Column) -> list[Column]:
    """Return the conditions of the bins: below the first bound, from each bound to the next, from the last."""
    bounds = [F.lit(bound) for bound in measure.bounds]
    between = [(value >= low) & (value < high) for low, high in zip(bounds, bounds[1:], strict=False)]
    return [value < bounds[0], *between, value >= bounds[-1]]
