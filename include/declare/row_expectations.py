"""Which expectations of Great Expectations can validate each record, and which need a whole table.

A row expectation is compiled to Spark columns (spark_jobs/contract/compiled_rules.py): no Python per record. A table
expectation is evaluated by a checkpoint, where Great Expectations itself runs. Arguments are Great Expectations' own.

`row_condition`: which rows a rule applies to, in the form in which Great Expectations serialises conditions.

A null equals nothing, so `!=` and `NOT_IN` hold for it and no other comparison does, as in pandas and in Great
Expectations on pandas (adr-0001).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from include.declare.column_type import Ability, ColumnType, Value
from include.declare.contract_types import COLUMN_TYPES
from include.declare.yaml_declarations import Declared, InvalidValue, inside, shown

Arguments = dict[str, Any]
STRING, INTEGER, NUMBER = COLUMN_TYPES["string"], COLUMN_TYPES["integer"], COLUMN_TYPES["number"]
PAIR = ("column_A", "column_B")


Reader = Callable[[Arguments, ColumnType, str], Any]
"""Reads one argument: all that are written, the column's type and the argument's name → its value. InvalidValue."""


@dataclass(frozen=True)
class RowExpectation:
    """An expectation that can validate one record: what it needs of the column's type, and its arguments."""

    needs: Ability | None
    arguments: Mapping[str, Reader]
    columns: tuple[str, ...] = ("column",)

    @property
    def types(self) -> list[ColumnType]:
        of_any = [each for each in COLUMN_TYPES.values() if len(self.columns) == 1 or not each.is_nested]
        return [each for each in of_any if self.needs is None or self.needs in each.abilities]

    def read(self, given: Arguments, kind: ColumnType) -> Arguments:
        for name in given:
            if name not in self.arguments:
                raise InvalidValue(f"is not a known key; known: {', '.join(self.arguments) or 'none'}", name)
        found = {key: read(given, kind, key) for key, read in self.arguments.items()}
        if "min_value" in found:
            _refuse_bounds(found["min_value"], found["max_value"])
        return found


def _refuse_bounds(low: Any, high: Any) -> None:
    if low is None and high is None:
        raise InvalidValue("must have min_value, max_value or both")
    if low is not None and high is not None and low > high:
        raise InvalidValue(f"min_value {low} is greater than max_value {high}", "min_value")


def _bound(given: Arguments, kind: ColumnType, key: str) -> Value | None:
    value = given.get(key)
    return None if value is None else (NUMBER if kind.comparable == INTEGER.comparable else kind).value(value, key)


def _length_bound(given: Arguments, kind: ColumnType, key: str) -> Value | None:
    return None if given.get(key) is None else NUMBER.value(_length(given, kind, key), key)


def _length(given: Arguments, kind: ColumnType, key: str) -> Value:
    return INTEGER.value(given.get(key), key)


def _pattern(given: Arguments, kind: ColumnType, key: str) -> Value:
    return STRING.value(given.get(key), key)


def _values(given: Arguments, kind: ColumnType, key: str) -> tuple[Value, ...]:
    values = given.get(key)
    if not isinstance(values, list) or not values or None in values:
        raise InvalidValue(f"must be a list of values without null, is {shown(values)}", key)
    return tuple(kind.value(value, key) for value in values)


def _patterns(given: Arguments, kind: ColumnType, key: str) -> tuple[Value, ...]:
    return _values(given, STRING, key)


def _flag(given: Arguments, kind: ColumnType, key: str) -> bool:
    return bool(given.get(key, False))


def _one_of(*allowed: str) -> Reader:
    """Return the reader of a name, by default the first."""

    def read(given: Arguments, kind: ColumnType, key: str) -> str:
        value = given.get(key, allowed[0])
        if value not in allowed:
            raise InvalidValue(f"must be one of {', '.join(allowed)}, is {shown(value)}", key)
        return str(value)

    return read


STRICT: Mapping[str, Reader] = {"strict_min": _flag, "strict_max": _flag}
BOUNDS: Mapping[str, Reader] = {"min_value": _bound, "max_value": _bound, **STRICT}
LENGTHS: Mapping[str, Reader] = {"min_value": _length_bound, "max_value": _length_bound, **STRICT}
SET: Mapping[str, Reader] = {"value_set": _values}
REGEX: Mapping[str, Reader] = {"regex": _pattern}
EQUAL_PAIR: Mapping[str, Reader] = {
    "ignore_row_if": _one_of("both_values_are_missing", "either_value_is_missing", "neither")
}

ROW_EXPECTATIONS: Mapping[str, RowExpectation] = {
    "expect_column_values_to_be_null": RowExpectation(None, {}),
    "expect_column_values_to_not_be_null": RowExpectation(None, {}),
    "expect_column_values_to_be_between": RowExpectation(Ability.measured, BOUNDS),
    "expect_column_values_to_be_in_set": RowExpectation(Ability.counted, SET),
    "expect_column_values_to_not_be_in_set": RowExpectation(Ability.counted, SET),
    "expect_column_values_to_match_regex": RowExpectation(Ability.text, REGEX),
    "expect_column_values_to_not_match_regex": RowExpectation(Ability.text, REGEX),
    "expect_column_values_to_match_regex_list": RowExpectation(
        Ability.text, {"regex_list": _patterns, "match_on": _one_of("any", "all")}
    ),
    "expect_column_values_to_not_match_regex_list": RowExpectation(Ability.text, {"regex_list": _patterns}),
    "expect_column_value_lengths_to_be_between": RowExpectation(Ability.text, LENGTHS),
    "expect_column_value_lengths_to_equal": RowExpectation(Ability.text, {"value": _length}),
    "expect_column_values_to_be_json_parseable": RowExpectation(Ability.text, {}),
    "expect_column_pair_values_to_be_equal": RowExpectation(None, EQUAL_PAIR, PAIR),
    "expect_column_pair_values_a_to_be_greater_than_b": RowExpectation(
        Ability.ordered, {"or_equal": _flag, **EQUAL_PAIR}, PAIR
    ),
}
"""The row expectations, and the column types of each."""

NOT_PER_RECORD: Mapping[str, str] = {
    "expect_column_values_to_be_unique": "needs all rows; identities are unique already (primaryKey)",
    "expect_column_values_to_be_increasing": "needs the order of all rows",
    "expect_column_values_to_be_decreasing": "needs the order of all rows",
    "expect_column_value_z_scores_to_be_less_than": "needs the mean of all rows",
    "expect_column_values_to_not_be_outliers": "needs the spread of all rows",
    "expect_column_values_to_match_strftime_format": "is Python for each record; declare logicalType timestamp",
    "expect_column_values_to_be_dateutil_parseable": "is Python for each record; declare logicalType timestamp",
    "expect_column_values_to_match_json_schema": "is Python for each record",
    "expect_column_values_to_match_like_pattern": "does not exist on pandas, where checkpoints run; use a regex",
    "expect_column_values_to_be_of_type": "is what logicalType declares",
    "expect_column_values_to_be_in_type_list": "is what logicalType declares",
}
"""Column-map expectations that validate no single record here, and why."""

_SET_OF_COLUMN = """
distinct_values_to_be_in_set distinct_values_to_contain_set distinct_values_to_equal_set kl_divergence_to_be_less_than
max_to_be_between mean_to_be_between median_to_be_between min_to_be_between most_common_value_to_be_in_set
proportion_of_non_null_values_to_be_between proportion_of_unique_values_to_be_between quantile_values_to_be_between
stdev_to_be_between sum_to_be_between to_exist unique_value_count_to_be_between value_z_scores_to_be_less_than
values_to_be_unique values_to_be_increasing values_to_be_decreasing
"""
TABLE_EXPECTATIONS = frozenset(
    [f"expect_column_{name}" for name in _SET_OF_COLUMN.split()]
    + ["expect_compound_columns_to_be_unique", "expect_select_column_values_to_be_unique_within_record"]
    + ["expect_multicolumn_sum_to_equal", "expect_table_row_count_to_be_between", "expect_table_row_count_to_equal"]
    + ["expect_table_columns_to_match_set", "expect_table_column_count_to_equal"]
)
"""Expectations of a whole table; a checkpoint can also evaluate row expectations."""


def why_not_per_record(expectation: str) -> str:
    """Return why an expectation cannot validate each record."""
    if expectation in NOT_PER_RECORD:
        return NOT_PER_RECORD[expectation]
    return "needs all rows" if expectation in TABLE_EXPECTATIONS else "is not a known expectation"


ORDERED = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class ConditionTerm:
    """`column operator value`; of IN and NOT_IN the value is a tuple."""

    column: str
    operator: str
    value: Value | tuple[Value, ...]


@dataclass(frozen=True)
class Nullity:
    """Whether `column` is null."""

    column: str
    is_null: bool


@dataclass(frozen=True)
class Compound:
    """All of the `parts` (`how` is and), or any of them (or)."""

    how: str
    parts: tuple[Condition, ...]


Condition = ConditionTerm | Nullity | Compound


class _Column(Declared):
    name: str


class _Comparison(Declared):
    type: Literal["comparison"]
    column: _Column
    operator: Literal["==", "!=", "<", "<=", ">", ">=", "IN", "NOT_IN"]
    parameter: Any


class _Nullity(Declared):
    type: Literal["nullity"]
    column: _Column
    is_null: bool


class _Compound(Declared):
    type: Literal["and", "or"]
    conditions: Annotated[list[ConditionModel], Field(min_length=2)]


ConditionModel = Annotated[_Comparison | _Nullity | _Compound, Field(discriminator="type")]
_Compound.model_rebuild()


def structured(value: Any) -> Any:
    """Refuse a condition as a text; ValueError."""
    if isinstance(value, str):
        form = "{type: comparison, column: {name: …}, operator: …, parameter: …}"
        raise ValueError(f"is a text of pandas or Spark; write {form}, is {shown(value)}")
    return value


RowCondition = Annotated[ConditionModel, BeforeValidator(structured)]
"""`row_condition` as a contract writes it."""


def typed_condition(written: ConditionModel, types: Mapping[str, ColumnType]) -> Condition:
    """Return a condition over columns of these types; raises InvalidValue for other columns or types."""
    if isinstance(written, _Compound):
        parts = []
        for n, part in enumerate(written.conditions):
            with inside("conditions", n):
                parts.append(typed_condition(part, types))
        return Compound(written.type, tuple(parts))
    name = known_column(written.column.name, types, "column", "name")
    if isinstance(written, _Nullity):
        return Nullity(name, written.is_null)
    with inside("parameter"):
        return ConditionTerm(name, written.operator, _operand(written, types[name]))


def known_column(name: object, types: Mapping[str, ColumnType], *key: str) -> str:
    """Return a column's name; raises InvalidValue when the contract has no such column."""
    if name not in types:
        raise InvalidValue(f"{shown(name)} is not a column of the contract; columns: {', '.join(types)}", *key)
    return str(name)


def condition_columns(condition: Condition | None) -> Iterator[str]:
    """Yield the columns that a condition names."""
    if isinstance(condition, Compound):
        for part in condition.parts:
            yield from condition_columns(part)
    elif condition is not None:
        yield condition.column


def _operand(written: _Comparison, kind: ColumnType) -> Value | tuple[Value, ...]:
    given, operator = written.parameter, written.operator
    if operator not in ("IN", "NOT_IN"):
        if operator in ORDERED and Ability.ordered not in kind.abilities:
            raise InvalidValue(f"a {kind.physical[0]} has no order")
        if operator not in ORDERED and Ability.equal not in kind.abilities:
            raise InvalidValue(f"a {kind.physical[0]} is not compared by {operator}: use <, <=, > or >=")
        return kind.value(given)
    if Ability.counted not in kind.abilities:
        raise InvalidValue(f"a {kind.physical[0]} cannot be compared with a set (Great Expectations refuses it)")
    if not isinstance(given, list) or not given:
        raise InvalidValue(f"must be a list of values, is {shown(given)}")
    return tuple(kind.value(item) for item in given)
