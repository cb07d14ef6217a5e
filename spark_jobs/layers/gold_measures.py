"""Each measure of additive gold: its state over new rows, how states merge, and its value, in Spark and in DuckDB.

The state of a measure holds all that a merge needs. Where the value is not enough, the state is in columns that begin
with `_`. A merge of states is associative and commutative, and a value is a function of the state alone, so that
neither batches nor their order change a value. The class of a measure has both engines' forms: `state`, `merged` and
`value` as Spark's columns, `new_sql`, `merged_sql` and `value_sql` for a merge without Spark (adr-0012). DuckDB merges
only what it computes as Spark does, to the last bit (`is_embedded`); a table with others is merged by Spark.

A further measure: an entry of `FUNCTIONS` in `include/declare/measures.py`, one here, and the audit's own formula in
`include/audit/measures.py`, which is separate so that an error here is found there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.declare.measures import QUANTILE_ERROR, Measure
from include.ground.sql_quoting import sql_identifier
from spark_jobs.layers.gold_inputs import GoldInputs

Types = tuple[type[T.DataType], ...]
WHOLE: Types = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
# DuckDB orders and groups them as Spark does. Not so floats, of which Spark makes one zero and one NaN.
COMPARED: Types = (*WHOLE, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType)
CARRIED: Types = (*COMPARED, T.DoubleType, T.FloatType, T.BinaryType)
"""Types that a merge passes on unchanged."""
GAMMA = (1 + QUANTILE_ERROR) / (1 - QUANTILE_ERROR)
"""Ratio of a bucket's bounds: Masson, Rim, Lee, DDSketch (VLDB 2019), section 2.1."""
MIDDLE = 1 << 20
"""Buckets of positive numbers are numbered from here to both sides; a double has fewer than 75,000."""
PLAIN: Mapping[str, Callable[[Column], Column]] = {
    "count": F.count,
    "count_if": F.count_if,
    "sum": F.sum,
    "min": F.min,
    "max": F.max,
}
OF_TYPES: Mapping[str, Types] = {
    "sum": (*WHOLE, T.DecimalType),
    "min": (*COMPARED, T.DoubleType, T.FloatType),
    "max": (*COMPARED, T.DoubleType, T.FloatType),
}


class GoldMeasure:
    """A measure that has its value as its state: a count, sum, minimum or maximum."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of the state's columns."""
    is_state: ClassVar[bool] = True
    """Whether the value is a part of the state; else it is computed after each merge."""
    of_values: ClassVar[bool] = False
    """Whether the value is computed from the values of other measures."""
    of_numbers: ClassVar[bool] = False

    def __init__(self, measure: Measure) -> None:
        self.measure, self.name, self.quoted = measure, measure.name, sql_identifier(measure.name)
        self.kept = self._kept()
        """The names of the state's columns other than the value."""
        self.kept_sql = [sql_identifier(name) for name in self.kept]

    @property
    def added_up(self) -> str:
        """The column that has a sum, which must be exact; empty without one."""
        return self.name if self.measure.function == "sum" else ""

    @property
    def new_values(self) -> str:
        """The quoted name of the column with values that are added to the state outside DuckDB; empty for none."""
        return ""

    def state(self) -> list[Column]:
        """Return the aggregates that make the state from rows of silver."""
        return [PLAIN[self.measure.function](self._expression()).alias(self.name)]

    def merged(self) -> list[Column]:
        """Return the aggregates that make one state of several."""
        return [PLAIN[self.measure.declared.merged_by](F.col(self.name)).alias(self.name)]

    def value(self) -> Column:
        """Return the value, from the columns of the state; of a ratio, from the values of its measures."""
        return F.col(self.name)

    def value_input(self, inputs: GoldInputs, where: str) -> str:
        """Return the column that has the expression's value for DuckDB; empty when there is none."""
        return inputs.of(self.measure.expression, where) if self.measure.expression not in ("", "*") else ""

    def order_input(self, inputs: GoldInputs, where: str) -> str:
        """Return the column that has the value of `by`; empty when there is none."""
        return inputs.of(self.measure.by, where) if self.measure.by else ""

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        """Whether DuckDB computes it exactly as Spark does; `column` and `by` are its columns in `inputs`."""
        types = OF_TYPES.get(self.measure.function)
        return types is None or isinstance(inputs[column].dataType, types)

    def new_sql(self, column: str, by: str) -> list[str]:
        """Return the aggregates of the state over rows with its columns."""
        value = sql_identifier(column) if column else "*"
        if self.measure.function == "count_if":
            return [f"count(*) filter (where {value}) as {self.quoted}"]
        return [f"{self.measure.function}({value}) as {self.quoted}"]

    def merged_sql(self) -> list[str]:
        """Return the aggregates that make one state of several."""
        return [f"{self.measure.declared.merged_by}({self.quoted}) as {self.quoted}"]

    def value_sql(self) -> str:
        """Return the value, from the columns of the state."""
        return self.quoted

    @property
    def state_columns(self) -> list[str]:
        """The quoted names of the columns that a merge reads of old rows."""
        return [self.quoted, *self.kept_sql] if self.is_state else self.kept_sql

    def _kept(self) -> list[str]:
        return [f"_{self.name}_{suffix}" for suffix in self.suffixes]

    def _expression(self) -> Column:
        return F.expr(self.measure.expression) if self.measure.expression != "*" else F.lit(1)


class _Average(GoldMeasure):
    """State: sum and count."""

    suffixes = ("sum", "count")
    is_state = False

    @property
    def added_up(self) -> str:
        return self.kept[0]

    def state(self) -> list[Column]:
        total, number = self.kept
        return [F.sum(self._expression()).alias(total), F.count(self._expression()).alias(number)]

    def merged(self) -> list[Column]:
        return [F.sum(column).alias(column) for column in self.kept]

    def value(self) -> Column:
        return F.try_divide(*map(F.col, self.kept))

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return isinstance(inputs[column].dataType, WHOLE)

    def new_sql(self, column: str, by: str) -> list[str]:
        value, (total, number) = sql_identifier(column), self.kept_sql
        return [f"sum({value}) as {total}", f"count({value}) as {number}"]

    def merged_sql(self) -> list[str]:
        return [f"sum({each}) as {each}" for each in self.kept_sql]

    def value_sql(self) -> str:
        return _quotient(*self.kept_sql)


class _ApproxDistinct(GoldMeasure):
    """State: an HLL sketch. In DuckDB it is two lists of values here, and merges in `distinct_sketches.py`."""

    suffixes = ("sketch",)

    @property
    def new_values(self) -> str:
        return sql_identifier(f"_{self.name}_new")

    def state(self) -> list[Column]:
        return [F.hll_sketch_agg(self._expression()).alias(self.kept[0])]

    def merged(self) -> list[Column]:
        return [F.hll_union_agg(self.kept[0]).alias(self.kept[0])]

    def value(self) -> Column:
        # A sketch that was never merged is estimated in another way; a union with itself makes both alike.
        return F.hll_sketch_estimate(F.hll_union(self.kept[0], self.kept[0]))

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return isinstance(inputs[column].dataType, (*WHOLE, T.StringType))

    def new_sql(self, column: str, by: str) -> list[str]:
        return [f"{_distinct(column)} as {self.new_values}", f"null::blob as {self.kept_sql[0]}"]

    def merged_sql(self) -> list[str]:
        # At most one row of a grain is old, and at most one is new.
        kept, new, name = self.kept_sql[0], self.new_values, self.quoted
        return [f"max({kept}) as {kept}", f"any_value({new}) as {new}", f"any_value({name}) as {name}"]


class _CountDistinct(GoldMeasure):
    """State: its values, sorted."""

    suffixes = ("values",)
    is_state = False

    def state(self) -> list[Column]:
        return [F.array_sort(F.collect_set(self._expression())).alias(self.kept[0])]

    def merged(self) -> list[Column]:
        (kept,) = self.kept
        return [F.array_sort(F.array_distinct(F.flatten(F.collect_list(kept)))).alias(kept)]

    def value(self) -> Column:
        return F.size(self.kept[0]).cast("long")

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return isinstance(inputs[column].dataType, COMPARED)

    def new_sql(self, column: str, by: str) -> list[str]:
        return [f"list_sort({_distinct(column)}) as {self.kept_sql[0]}"]

    def merged_sql(self) -> list[str]:
        (kept,) = self.kept_sql
        return [f"list_sort(list_distinct(flatten(list({kept})))) as {kept}"]

    def value_sql(self) -> str:
        return f"len({self.kept_sql[0]})"


class _Placed(GoldMeasure):
    """The value of one row by its order key (by, partition, offset), which is in the state: the least or greatest."""

    suffixes = ("place",)

    def state(self) -> list[Column]:
        order_key = F.struct(F.expr(self.measure.by).alias("by"), "_partition", "_offset")
        known = F.when(F.expr(self.measure.by).isNotNull(), order_key)
        return self._at(self._expression(), known)

    def merged(self) -> list[Column]:
        return self._at(F.col(self.name), F.col(self.kept[0]))

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return isinstance(inputs[by].dataType, COMPARED) and isinstance(inputs[column].dataType, CARRIED)

    def new_sql(self, column: str, by: str) -> list[str]:
        order_key = f"struct_pack(by := {sql_identifier(by)}, _partition := _partition, _offset := _offset)"
        return self._at_sql(sql_identifier(column), order_key, sql_identifier(by))

    def merged_sql(self) -> list[str]:
        # A row without an order key has no value either.
        return self._at_sql(self.quoted, self.kept_sql[0], self.kept_sql[0])

    def _at(self, value: Column, order_key: Column) -> list[Column]:
        choose, outermost = (F.min_by, F.min) if self.measure.declared.earliest else (F.max_by, F.max)
        return [choose(value, order_key).alias(self.name), outermost(order_key).alias(self.kept[0])]

    def _at_sql(self, value: str, order_key: str, known: str) -> list[str]:
        choose, outermost = ("arg_min", "min") if self.measure.declared.earliest else ("arg_max", "max")
        where = f"filter (where {known} is not null)"
        # Of a struct, since a value that is null would be passed over.
        chosen = f"({choose}(struct_pack(v := {value}), {order_key}) {where}).v"
        return [f"{chosen} as {self.quoted}", f"{outermost}({order_key}) {where} as {self.kept_sql[0]}"]


class _TopK(GoldMeasure):
    """State: the count of each value, or the sum of its weights, sorted."""

    suffixes = ("counts",)
    is_state = False

    def state(self) -> list[Column]:
        value = self._counted()
        count = (F.expr(self.measure.weight) if self.measure.weight else F.lit(1)).cast("long")
        one = F.struct(value.alias("value"), count.alias("count"))
        is_known = value.isNotNull() & count.isNotNull()
        return [_counts(F.collect_list(F.when(is_known, one))).alias(self.kept[0])]

    def merged(self) -> list[Column]:
        return [_counts(F.flatten(F.collect_list(self.kept[0]))).alias(self.kept[0])]

    def value(self) -> Column:
        ranked = F.array_sort(F.transform(self.kept[0], lambda each: F.struct(-each["count"], each["value"])))
        total = "weight" if self.measure.weight else "count"
        named = F.transform(ranked, lambda each: F.struct(each["value"].alias("value"), (-each["col1"]).alias(total)))
        return F.slice(named, 1, self.measure.k)

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return not self.measure.weight and isinstance(inputs[column].dataType, COMPARED)

    def new_sql(self, column: str, by: str) -> list[str]:
        pair = "struct_pack(value := _each.key, count := _each.value::bigint)"
        entries = f"list_sort(map_entries(histogram({sql_identifier(column)})))"
        return [f"coalesce(list_transform({entries}, lambda _each: {pair}), []) as {self.kept_sql[0]}"]

    def merged_sql(self) -> list[str]:
        (kept,) = self.kept_sql
        return [f"{_summed(kept)} as {kept}"]

    def value_sql(self) -> str:
        pair = "struct_pack(n := -_each.count, v := _each.value)"
        named = "struct_pack(value := _each.v, count := -_each.n)"
        ranked = f"list_sort(list_transform({self.kept_sql[0]}, lambda _each: {pair}))"
        return f"list_transform({ranked}, lambda _each: {named})[1:{self.measure.k}]"

    def _counted(self) -> Column:
        return self._expression()


class _ApproxQuantile(_TopK):
    """State: the count of each bucket of numbers within 1 % of its middle (DDSketch), sorted. Spark merges it."""

    of_numbers = True

    def value(self) -> Column:
        return _quantile(F.col(self.kept[0]), self.measure.at)

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return False

    def _counted(self) -> Column:
        return _bucket(self._expression().cast("double"))


class _Histogram(GoldMeasure):
    """State: the count of each bin: below the first bound, from each bound to the next, from the last."""

    of_numbers = True
    is_state = False

    def state(self) -> list[Column]:
        value, bounds = self._expression(), [F.lit(bound) for bound in self.measure.bounds]
        between = [(value >= low) & (value < high) for low, high in zip(bounds, bounds[1:], strict=False)]
        bins = [value < bounds[0], *between, value >= bounds[-1]]
        return [F.count_if(chosen).alias(name) for chosen, name in zip(bins, self.kept, strict=True)]

    def merged(self) -> list[Column]:
        return [F.sum(column).alias(column) for column in self.kept]

    def value(self) -> Column:
        return F.array(*self.kept)

    def is_embedded(self, inputs: T.StructType, column: str, by: str) -> bool:
        return False

    def _kept(self) -> list[str]:
        return [f"_{self.name}_{number}" for number in range(len(self.measure.bounds) + 1)]


class _Ratio(GoldMeasure):
    """The state of its measures."""

    is_state = False
    of_values = True

    def state(self) -> list[Column]:
        return []

    def merged(self) -> list[Column]:
        return []

    def value(self) -> Column:
        return F.try_divide(F.col(self.measure.of).cast("double"), F.col(self.measure.to).cast("double"))

    def new_sql(self, column: str, by: str) -> list[str]:
        return []

    def merged_sql(self) -> list[str]:
        return []

    def value_sql(self) -> str:
        return _quotient(sql_identifier(self.measure.of), sql_identifier(self.measure.to))


MEASURES: Mapping[str, type[GoldMeasure]] = {
    **dict.fromkeys(PLAIN, GoldMeasure),
    **dict.fromkeys(("first", "last", "min_by", "max_by"), _Placed),
    "avg": _Average,
    "approx_distinct": _ApproxDistinct,
    "count_distinct": _CountDistinct,
    "top_k": _TopK,
    "approx_quantile": _ApproxQuantile,
    "histogram": _Histogram,
    "ratio": _Ratio,
}


def gold_measures(measures: Sequence[Measure]) -> list[GoldMeasure]:
    """Return how the measures of a table are computed and merged."""
    return [MEASURES[each.function](each) for each in measures]


def _distinct(column: str) -> str:
    value = sql_identifier(column)
    return f"coalesce(list(distinct {value}) filter (where {value} is not null), [])"


def _quotient(of: str, to: str) -> str:
    return f"cast({of} as double) / nullif(cast({to} as double), 0)"


def _summed(counts: str) -> str:
    """Lists of (value, count), each with a value once: one list of the sums, by value."""
    each = f"select unnest(flatten(list({counts}))) as _each"
    summed = f"select _each.value as _value, sum(_each.count)::bigint as _count from ({each}) group by _value"
    return f"(select coalesce(list(struct_pack(value := _value, count := _count) order by _value), []) from ({summed}))"


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
