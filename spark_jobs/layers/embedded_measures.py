"""Measures of additive gold in DuckDB's SQL: the states of `gold_measures.py`, computed and merged without Spark.

Only measures whose states and values are the same to the last bit are here (`is_embedded`); a table with others is
merged by Spark (adr-0012). An `approx_distinct` merges in `distinct_sketches.py`, so its state is two lists here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from include.declare.measures import EARLIEST, MERGED_BY, PLACED, Measure
from include.ground.sql_quoting import sql_identifier
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.gold_measures import kept_columns

WHOLE = (ByteType, ShortType, IntegerType, LongType)
# DuckDB orders and groups them as Spark does. Not so floats, of which Spark makes one zero and one NaN.
COMPARED = (*WHOLE, StringType, BooleanType, DateType, TimestampType, DecimalType)
OF_TYPES: Mapping[str, tuple[type[DataType], ...]] = {
    "sum": (*WHOLE, DecimalType),
    "avg": WHOLE,
    "min": (*COMPARED, DoubleType, FloatType),
    "max": (*COMPARED, DoubleType, FloatType),
    "approx_distinct": (*WHOLE, StringType),
    "count_distinct": COMPARED,
    "top_k": COMPARED,
}
"""By function the types of its expression; of other functions the type does not matter."""
CARRIED = (*COMPARED, DoubleType, FloatType, BinaryType)
"""Types that a merge passes on unchanged."""
VALUED_BY_STATE = ("avg", "count_distinct", "top_k")
"""Functions whose value is not part of the state."""
EMBEDDED = ("count", "count_if", "ratio", *PLACED, *OF_TYPES)


def is_embedded(measure: Measure, inputs: StructType, column: str, by: str) -> bool:
    """Whether DuckDB computes the measure exactly as Spark does; `column` and `by` are its columns in `inputs`."""
    if measure.function not in EMBEDDED or measure.weight:
        return False
    if measure.function in PLACED:
        return isinstance(inputs[by].dataType, COMPARED) and isinstance(inputs[column].dataType, CARRIED)
    types = OF_TYPES.get(measure.function)
    return types is None or isinstance(inputs[column].dataType, types)


def value_input(measure: Measure, inputs: GoldInputs, where: str) -> str:
    """Return the column that has the measure's expression; empty when it has none."""
    return inputs.of(measure.expression, where) if measure.expression not in ("", "*") else ""


def order_input(measure: Measure, inputs: GoldInputs, where: str) -> str:
    """Return the column that has the measure's `by`; empty when it has none."""
    return inputs.of(measure.by, where) if measure.by else ""


def new_state_sql(measure: Measure, column: str, by: str) -> list[str]:
    """Return the aggregates of a measure's state over rows with its columns."""
    name, function, kept = sql_identifier(measure.name), measure.function, _kept(measure)
    value = sql_identifier(column) if column else "*"
    if function == "avg":
        return [f"sum({value}) as {kept[0]}", f"count({value}) as {kept[1]}"]
    if function == "approx_distinct":
        return [f"{_distinct(value)} as {new_values(measure)}", f"null::blob as {kept[0]}"]
    if function == "count_distinct":
        return [f"list_sort({_distinct(value)}) as {kept[0]}"]
    if function == "top_k":
        pair = "struct_pack(value := _each.key, count := _each.value::bigint)"
        counted = f"list_transform(list_sort(map_entries(histogram({value}))), lambda _each: {pair})"
        return [f"coalesce({counted}, []) as {kept[0]}"]
    if function in PLACED:
        order_key = f"struct_pack(by := {sql_identifier(by)}, _partition := _partition, _offset := _offset)"
        known = f"filter (where {sql_identifier(by)} is not null)"
        # Of a struct, since a value that is null would be passed over.
        chosen = f"({_choice(measure)}(struct_pack(v := {value}), {order_key}) {known}).v"
        return [f"{chosen} as {name}", f"{_outermost(measure)}({order_key}) {known} as {kept[0]}"]
    if function == "count_if":
        return [f"count(*) filter (where {value}) as {name}"]
    return [] if function == "ratio" else [f"{function}({value}) as {name}"]


def merged_state_sql(measure: Measure) -> list[str]:
    """Return the aggregates that make one state of several."""
    name, function, kept = sql_identifier(measure.name), measure.function, _kept(measure)
    if function == "avg":
        return [f"sum({each}) as {each}" for each in kept]
    if function == "approx_distinct":
        # At most one row of a grain is old, and at most one is new.
        new = new_values(measure)
        return [f"max({kept[0]}) as {kept[0]}", f"any_value({new}) as {new}", f"any_value({name}) as {name}"]
    if function == "count_distinct":
        return [f"list_sort(list_distinct(flatten(list({kept[0]})))) as {kept[0]}"]
    if function == "top_k":
        return [f"{_summed(kept[0])} as {kept[0]}"]
    if function in PLACED:
        # A row without an order key has no value either.
        chosen = f"({_choice(measure)}(struct_pack(v := {name}), {kept[0]}) filter (where {kept[0]} is not null)).v"
        return [f"{chosen} as {name}", f"{_outermost(measure)}({kept[0]}) as {kept[0]}"]
    return [] if function == "ratio" else [f"{MERGED_BY[function]}({name}) as {name}"]


def value_sql(measure: Measure) -> str:
    """Return the value of a measure from the columns of its state; of a ratio from its measures' values."""
    function, kept = measure.function, _kept(measure)
    if function == "avg":
        return _quotient(*kept)
    if function == "ratio":
        return _quotient(sql_identifier(measure.of), sql_identifier(measure.to))
    if function == "count_distinct":
        return f"len({kept[0]})"
    if function == "top_k":
        pair = "struct_pack(n := -_each.count, v := _each.value)"
        named = "struct_pack(value := _each.v, count := -_each.n)"
        ranked = f"list_sort(list_transform({kept[0]}, lambda _each: {pair}))"
        return f"list_transform({ranked}, lambda _each: {named})[1:{measure.k}]"
    return sql_identifier(measure.name)


def new_values(measure: Measure) -> str:
    """Return the quoted name of the column with the new values of an `approx_distinct`."""
    return sql_identifier(f"_{measure.name}_new")


def state_columns(measures: Sequence[Measure]) -> list[str]:
    """Return the quoted names of the columns that a merge reads of old rows."""
    named = [sql_identifier(each.name) for each in measures if each.function not in ("ratio", *VALUED_BY_STATE)]
    return [*named, *(name for each in measures for name in _kept(each))]


def _kept(measure: Measure) -> list[str]:
    return [sql_identifier(name) for name in kept_columns(measure)]


def _distinct(value: str) -> str:
    return f"coalesce(list(distinct {value}) filter (where {value} is not null), [])"


def _choice(measure: Measure) -> str:
    return "arg_min" if measure.function in EARLIEST else "arg_max"


def _outermost(measure: Measure) -> str:
    return "min" if measure.function in EARLIEST else "max"


def _quotient(of: str, to: str) -> str:
    return f"cast({of} as double) / nullif(cast({to} as double), 0)"


def _summed(counts: str) -> str:
    """Lists of (value, count), each with a value once: one list of the sums, by value."""
    each = f"select unnest(flatten(list({counts}))) as _each"
    summed = f"select _each.value as _value, sum(_each.count)::bigint as _count from ({each}) group by _value"
    return f"(select coalesce(list(struct_pack(value := _value, count := _count) order by _value), []) from ({summed}))"
