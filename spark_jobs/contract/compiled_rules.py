"""Great Expectations' row expectations as Spark columns: the verdict that it gives on pandas, without Python.

Every compiled rule is false where a record violates it and true everywhere else, never null. No violation: a record
that the rule's condition leaves out, and, but for the rules about nulls and pairs, one without a value (adr-0002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.catalog.contract_rules import Rule
from include.catalog.row_conditions import Condition, ConditionTerm, Nullity
from spark_jobs.contract.json_record import is_json
from spark_jobs.literals import literal

Arguments = Mapping[str, Any]
# Only a line feed ends a line, as in Python; `$` then also matches before a last line feed in both.
UNIX_LINES = "(?d)"


@dataclass(frozen=True)
class CompiledRule:
    """A rule as columns: whether it applies to the record, and whether the record violates it. Never null."""

    rule: Rule
    applies: Column
    violated: Column

    @property
    def holds(self) -> Column:
        """Whether a record keeps the rule."""
        return ~self.violated


def compiled_rule(rule: Rule) -> CompiledRule:
    """Return a row rule as columns over the contract's columns."""
    about = F.lit(True) if rule.condition is None else condition_column(rule.condition)
    if len(rule.columns) == 2:
        considered, kept = _pair(rule)
        applies = about & considered
    else:
        value = F.col(rule.columns[0])
        kept = ON_VALUES[rule.expectation](value, rule.arguments)
        applies = about if rule.expectation in ABOUT_NULLS else about & value.isNotNull()
    return CompiledRule(rule, applies, applies & ~F.coalesce(kept, F.lit(False)))


def condition_column(condition: Condition) -> Column:
    """Return a row condition as a column that is never null."""
    if isinstance(condition, Nullity):
        value = F.col(condition.column)
        return value.isNull() if condition.is_null else value.isNotNull()
    if isinstance(condition, ConditionTerm):
        return _compared(condition)
    join = Column.__and__ if condition.how == "and" else Column.__or__
    return reduce(join, [condition_column(part) for part in condition.parts])


def _compared(condition: ConditionTerm) -> Column:
    value, other = F.col(condition.column), condition.value
    if isinstance(other, tuple):
        inside = F.coalesce(value.isin(*map(literal, other)), F.lit(False))
        return ~inside if condition.operator == "NOT_IN" else inside
    if condition.operator in ("==", "!="):
        equal = value.eqNullSafe(literal(other))
        return equal if condition.operator == "==" else ~equal
    return F.coalesce(COMPARED[condition.operator](value, literal(other)), F.lit(False))


def _pair(rule: Rule) -> tuple[Column, Column]:
    """Whether the rule applies to a record's two values, and whether they satisfy it."""
    one, other = (F.col(name) for name in rule.columns)
    both, either = one.isNull() & other.isNull(), one.isNull() | other.isNull()
    ignored = {"both_values_are_missing": both, "either_value_is_missing": either, "neither": F.lit(False)}
    return ~ignored[rule.arguments["ignore_row_if"]], ON_PAIRS[rule.expectation](one, other, rule.arguments)


def _between(value: Column, arguments: Arguments) -> Column:
    low, high = arguments["min_value"], arguments["max_value"]
    parts = []
    if low is not None:
        parts.append(value > literal(low) if arguments["strict_min"] else value >= literal(low))
    if high is not None:
        parts.append(value < literal(high) if arguments["strict_max"] else value <= literal(high))
    return reduce(Column.__and__, parts)


def _is_in(value: Column, arguments: Arguments) -> Column:
    return value.isin(*map(literal, arguments["value_set"]))


def _matches(value: Column, pattern: str) -> Column:
    return value.rlike(UNIX_LINES + pattern)


def _matches_list(value: Column, arguments: Arguments) -> Column:
    found = [_matches(value, pattern) for pattern in arguments["regex_list"]]
    return reduce(Column.__or__ if arguments["match_on"] == "any" else Column.__and__, found)


COMPARED: Mapping[str, Callable[[Column, Column], Column]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}
ABOUT_NULLS = ("expect_column_values_to_be_null", "expect_column_values_to_not_be_null")
ON_VALUES: Mapping[str, Callable[[Column, Arguments], Column]] = {
    "expect_column_values_to_be_null": lambda value, _: value.isNull(),
    "expect_column_values_to_not_be_null": lambda value, _: value.isNotNull(),
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_be_in_set": _is_in,
    "expect_column_values_to_not_be_in_set": lambda value, arguments: ~_is_in(value, arguments),
    "expect_column_values_to_match_regex": lambda value, arguments: _matches(value, arguments["regex"]),
    "expect_column_values_to_not_match_regex": lambda value, arguments: ~_matches(value, arguments["regex"]),
    "expect_column_values_to_match_regex_list": _matches_list,
    "expect_column_values_to_not_match_regex_list": lambda value, arguments: ~_matches_list(value, arguments),
    "expect_column_value_lengths_to_be_between": lambda value, arguments: _between(F.length(value), arguments),
    "expect_column_value_lengths_to_equal": lambda value, arguments: F.length(value) == arguments["value"],
    "expect_column_values_to_be_json_parseable": lambda value, _: is_json(value),
}
ON_PAIRS: Mapping[str, Callable[[Column, Column, Arguments], Column]] = {
    "expect_column_pair_values_to_be_equal": lambda one, other, _: one == other,
    "expect_column_pair_values_a_to_be_greater_than_b": (
        lambda one, other, arguments: one >= other if arguments["or_equal"] else one > other
    ),
}
