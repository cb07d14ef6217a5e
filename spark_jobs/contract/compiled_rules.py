"""Great Expectations' row expectations as Spark columns: the verdict that it gives on pandas, without Python.

Every compiled rule is false where a record violates it and true everywhere else, never null. No violation: a record
that the rule's condition leaves out, and, but for the rules about nulls and pairs, one without a value (adr-0002).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from functools import reduce
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from include.declare.column_type import DecimalType, Value
from include.declare.contract import Column
from include.declare.contract_rules import Rule
from include.declare.row_expectations import Condition, ConditionTerm, Nullity
from spark_jobs.contract.literals import literal
from spark_jobs.contract.record_reader import is_json

COMPARED: Mapping[str, Callable[[Expression, Expression], Expression]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ROUNDED = {"<": ROUND_CEILING, ">=": ROUND_CEILING, "<=": ROUND_FLOOR, ">": ROUND_FLOOR}
"""A value of a scale compares with the next one in this direction as with the number between them."""


def compared(column: Column, sign: str, bound: Value, inside: Expression | None = None) -> Expression:
    """Return whether a column's value, or that of an element, is <, <=, > or >= a bound; null where it is null."""
    value = F.col(column.name) if inside is None else inside
    nearest = column.kind.nearest(bound, column, ROUNDED[sign])
    if nearest is None:
        return F.when(value.isNotNull(), F.lit(operator.gt(bound, 0) == (sign in ("<", "<="))))
    return COMPARED[sign](value, literal(nearest))


def is_one_of(column: Column, values: Iterable[Value]) -> Expression:
    """Return whether a column has one of the values; null where it is null, or false."""
    possible = [literal(value) for value in values if column.kind.nearest(value, column, ROUND_FLOOR) == value]
    return F.col(column.name).isin(*possible) if possible else F.lit(False)


def compared_columns(one: Column, sign: str, other: Column) -> Expression:
    """Return whether a column's value is <, <=, > or >= another's; null where one is null."""
    if _scale(one) > _scale(other):
        return compared_columns(other, MIRRORED[sign], one)
    bound = F.col(other.name)
    if _scale(one) < _scale(other):
        nearest = F.ceil if ROUNDED[sign] == ROUND_CEILING else F.floor
        bound = nearest(bound, F.lit(_scale(one)))
    return COMPARED[sign](F.col(one.name), bound)


def equal_columns(one: Column, other: Column) -> Expression:
    """Return whether two columns have equal values; null where one is null."""
    if _scale(one) == _scale(other):
        return F.col(one.name) == F.col(other.name)
    return compared_columns(one, "<=", other) & compared_columns(one, ">=", other)


MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _scale(column: Column) -> int:
    """Return the decimals of a column's type; of types other than decimal it has none."""
    return column.scale if isinstance(column.kind, DecimalType) else 0


Arguments = Mapping[str, Any]
# Only a line feed ends a line, as in Python; `$` then also matches before a last line feed in both.
UNIX_LINES = "(?d)"


@dataclass(frozen=True)
class CompiledRule:
    """A rule as columns: whether it applies to the record, and whether the record violates it. Never null."""

    rule: Rule
    applies: Expression
    violated: Expression

    @property
    def holds(self) -> Expression:
        return ~self.violated


def compiled_rule(rule: Rule, columns: Mapping[str, Column]) -> CompiledRule:
    """Return a row rule as columns; `columns` are the contract's by name."""
    about = F.lit(True) if rule.condition is None else condition_column(rule.condition, columns)
    if len(rule.columns) == 2:
        considered, kept = _pair(rule, columns)
        applies = about & considered
    else:
        column = columns[rule.columns[0]]
        kept = ON_VALUES[rule.expectation](column, rule.arguments)
        applies = about if rule.expectation in ABOUT_NULLS else about & F.col(column.name).isNotNull()
    return CompiledRule(rule, applies, applies & ~F.coalesce(kept, F.lit(False)))


def condition_column(condition: Condition, columns: Mapping[str, Column]) -> Expression:
    """Return a row condition as a column that is never null."""
    if isinstance(condition, Nullity):
        value = F.col(condition.column)
        return value.isNull() if condition.is_null else value.isNotNull()
    if isinstance(condition, ConditionTerm):
        return _compared(condition, columns[condition.column])
    join = Expression.__and__ if condition.how == "and" else Expression.__or__
    return reduce(join, [condition_column(part, columns) for part in condition.parts])


def _compared(condition: ConditionTerm, column: Column) -> Expression:
    sign, other = condition.operator, condition.value
    if sign in COMPARED and not isinstance(other, tuple):
        return F.coalesce(compared(column, sign, other), F.lit(False))
    is_inside = F.coalesce(is_one_of(column, other if isinstance(other, tuple) else (other,)), F.lit(False))
    return ~is_inside if sign in ("!=", "NOT_IN") else is_inside


def _pair(rule: Rule, columns: Mapping[str, Column]) -> tuple[Expression, Expression]:
    """Whether the rule applies to a record's two values, and whether they satisfy it."""
    one, other = (columns[name] for name in rule.columns)
    no_one, no_other = F.col(one.name).isNull(), F.col(other.name).isNull()
    both, either = no_one & no_other, no_one | no_other
    ignored = {"both_values_are_missing": both, "either_value_is_missing": either, "neither": F.lit(False)}
    return ~ignored[rule.arguments["ignore_row_if"]], ON_PAIRS[rule.expectation](one, other, rule.arguments)


def _between(column: Column, arguments: Arguments) -> Expression:
    signs = {
        "min_value": ">" if arguments["strict_min"] else ">=",
        "max_value": "<" if arguments["strict_max"] else "<=",
    }
    parts = [compared(column, sign, arguments[key]) for key, sign in signs.items() if arguments[key] is not None]
    return reduce(Expression.__and__, parts)


def _length_between(column: Column, arguments: Arguments) -> Expression:
    length, low, high = F.length(column.name), arguments["min_value"], arguments["max_value"]
    parts = []
    if low is not None:
        parts.append(length > low if arguments["strict_min"] else length >= low)
    if high is not None:
        parts.append(length < high if arguments["strict_max"] else length <= high)
    found: Expression = reduce(Expression.__and__, parts)
    return found


def _matches(column: Column, pattern: str) -> Expression:
    return F.col(column.name).rlike(UNIX_LINES + pattern)


def _matches_list(column: Column, arguments: Arguments) -> Expression:
    found = [_matches(column, pattern) for pattern in arguments["regex_list"]]
    return reduce(Expression.__or__ if arguments.get("match_on", "any") == "any" else Expression.__and__, found)


ABOUT_NULLS = ("expect_column_values_to_be_null", "expect_column_values_to_not_be_null")
ON_VALUES: Mapping[str, Callable[[Column, Arguments], Expression]] = {
    "expect_column_values_to_be_null": lambda column, _: F.col(column.name).isNull(),
    "expect_column_values_to_not_be_null": lambda column, _: F.col(column.name).isNotNull(),
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_in_set": lambda column, arguments: is_one_of(column, arguments["value_set"]),
    "expect_column_values_to_not_be_in_set": lambda column, arguments: ~is_one_of(column, arguments["value_set"]),
    "expect_column_values_to_match_regex": lambda column, arguments: _matches(column, arguments["regex"]),
    "expect_column_values_to_not_match_regex": lambda column, arguments: ~_matches(column, arguments["regex"]),
    "expect_column_values_to_match_regex_list": _matches_list,
    "expect_column_values_to_not_match_regex_list": lambda column, arguments: ~_matches_list(column, arguments),
    "expect_column_value_lengths_to_be_between": _length_between,
    "expect_column_value_lengths_to_equal": lambda column, arguments: F.length(column.name) == arguments["value"],
    "expect_column_values_to_be_json_parseable": lambda column, _: is_json(F.col(column.name)),
}
ON_PAIRS: Mapping[str, Callable[[Column, Column, Arguments], Expression]] = {
    "expect_column_pair_values_to_be_equal": lambda one, other, _: equal_columns(one, other),
    "expect_column_pair_values_a_to_be_greater_than_b": (
        lambda one, other, arguments: compared_columns(one, ">=" if arguments["or_equal"] else ">", other)
    ),
}
