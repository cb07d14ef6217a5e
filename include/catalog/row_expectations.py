"""Which Great Expectations rules can judge each record as it comes, and which are asked of whole tables.

A row expectation becomes Spark columns (spark_jobs/contract/compiled_rules.py): no Python sees a record. A set
expectation is asked by a checkpoint, where Great Expectations itself runs. Arguments are Great Expectations' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from include.catalog.portable_regex import validate_portable
from include.catalog.row_conditions import typed_value
from include.catalog.yaml_declarations import DeclarationRefused

Types = Mapping[str, str]
"""Column → logicalType of the contract."""
Arguments = dict[str, Any]
ALL = ("string", "integer", "number", "timestamp", "boolean")
ORDERED = ("string", "integer", "number", "timestamp")
MEASURED = ("integer", "number", "timestamp")
COUNTED = ("string", "integer", "number")
PAIR = ("column_A", "column_B")
IGNORED = ("both_values_are_missing", "either_value_is_missing", "neither")


@dataclass(frozen=True)
class RowExpectation:
    """One that can judge a record: the types of column it is for, its arguments, and how these are checked.

    `read` gets the arguments as written, the column's type and the place for complaints, and returns them typed.
    """

    types: tuple[str, ...]
    read: Callable[[Arguments, str, str], Arguments]
    columns: tuple[str, ...] = ("column",)


def _no_arguments(given: Arguments, kind: str, place: str) -> Arguments:
    return _known(given, (), place)


def _bounds(given: Arguments, kind: str, place: str) -> Arguments:
    found = _known(given, ("min_value", "max_value", "strict_min", "strict_max"), place)
    for key in ("min_value", "max_value"):
        found[key] = None if found.get(key) is None else _bound(found[key], kind, f"{place}.{key}")
    low, high = found["min_value"], found["max_value"]
    if low is None and high is None:
        raise DeclarationRefused(place, "must have min_value, max_value or both")
    if low is not None and high is not None and low > high:
        raise DeclarationRefused(place, f"min_value {low} is greater than max_value {high}")
    return found | {key: bool(found.get(key, False)) for key in ("strict_min", "strict_max")}


def _bound(value: object, kind: str, place: str) -> Any:
    return typed_value(value, "number" if kind == "integer" else kind, place)


def _lengths(given: Arguments, kind: str, place: str) -> Arguments:
    for key in ("min_value", "max_value"):
        if given.get(key) is not None:
            typed_value(given[key], "integer", f"{place}.{key}")
    return _bounds(given, "integer", place)


def _length(given: Arguments, kind: str, place: str) -> Arguments:
    return {"value": typed_value(_known(given, ("value",), place).get("value"), "integer", f"{place}.value")}


def _set(given: Arguments, kind: str, place: str) -> Arguments:
    values = _list(_known(given, ("value_set",), place), "value_set", place)
    return {"value_set": tuple(typed_value(value, kind, f"{place}.value_set") for value in values)}


def _pattern(given: Arguments, kind: str, place: str) -> Arguments:
    pattern = typed_value(_known(given, ("regex",), place).get("regex"), "string", f"{place}.regex")
    validate_portable(str(pattern), f"{place}.regex")
    return {"regex": pattern}


def _patterns(given: Arguments, kind: str, place: str) -> Arguments:
    found = _known(given, ("regex_list", "match_on"), place)
    patterns = tuple(str(p) for p in _list(found, "regex_list", place))
    for pattern in patterns:
        validate_portable(pattern, f"{place}.regex_list")
    return {"regex_list": patterns, "match_on": _one_of(found.get("match_on", "any"), ("any", "all"), place)}


def _no_patterns(given: Arguments, kind: str, place: str) -> Arguments:
    return _patterns(_known(given, ("regex_list",), place), kind, place)


def _pair(given: Arguments, kind: str, place: str) -> Arguments:
    found = _known(given, ("ignore_row_if",), place)
    return {"ignore_row_if": _one_of(found.get("ignore_row_if", IGNORED[0]), IGNORED, place)}


def _greater(given: Arguments, kind: str, place: str) -> Arguments:
    found = _known(given, ("ignore_row_if", "or_equal"), place)
    return {"or_equal": bool(found.pop("or_equal", False)), **_pair(found, kind, place)}


def _known(given: Arguments, names: tuple[str, ...], place: str) -> Arguments:
    strange = sorted(set(given) - set(names))
    if strange:
        raise DeclarationRefused(f"{place}.{strange[0]}", f"is no known key; known: {', '.join(names) or 'none'}")
    return dict(given)


def _list(given: Arguments, key: str, place: str) -> list[Any]:
    values = given.get(key)
    if not isinstance(values, list) or not values or None in values:
        raise DeclarationRefused(f"{place}.{key}", f"must be a list of values without null, is {values!r}")
    return values


def _one_of(value: object, allowed: tuple[str, ...], place: str) -> str:
    if value not in allowed:
        raise DeclarationRefused(place, f"{value!r} is none of {', '.join(allowed)}")
    return str(value)


ROW_EXPECTATIONS: Mapping[str, RowExpectation] = {
    "expect_column_values_to_be_null": RowExpectation(ALL, _no_arguments),
    "expect_column_values_to_not_be_null": RowExpectation(ALL, _no_arguments),
    "expect_column_values_to_be_between": RowExpectation(MEASURED, _bounds),
    "expect_column_values_to_be_in_set": RowExpectation(COUNTED, _set),
    "expect_column_values_to_not_be_in_set": RowExpectation(COUNTED, _set),
    "expect_column_values_to_match_regex": RowExpectation(("string",), _pattern),
    "expect_column_values_to_not_match_regex": RowExpectation(("string",), _pattern),
    "expect_column_values_to_match_regex_list": RowExpectation(("string",), _patterns),
    "expect_column_values_to_not_match_regex_list": RowExpectation(("string",), _no_patterns),
    "expect_column_value_lengths_to_be_between": RowExpectation(("string",), _lengths),
    "expect_column_value_lengths_to_equal": RowExpectation(("string",), _length),
    "expect_column_values_to_be_json_parseable": RowExpectation(("string",), _no_arguments),
    "expect_column_pair_values_to_be_equal": RowExpectation(ALL, _pair, PAIR),
    "expect_column_pair_values_a_to_be_greater_than_b": RowExpectation(ORDERED, _greater, PAIR),
}
"""The row expectations, and what each is for."""

NOT_PER_RECORD: Mapping[str, str] = {
    "expect_column_values_to_be_unique": "needs all rows; identities are unique anyhow (primaryKey)",
    "expect_column_values_to_be_increasing": "needs the order of all rows",
    "expect_column_values_to_be_decreasing": "needs the order of all rows",
    "expect_column_value_z_scores_to_be_less_than": "needs the mean of all rows",
    "expect_column_values_to_not_be_outliers": "needs the spread of all rows",
    "expect_column_values_to_match_strftime_format": "is Python for each record; declare logicalType timestamp",
    "expect_column_values_to_be_dateutil_parseable": "is Python for each record; declare logicalType timestamp",
    "expect_column_values_to_match_json_schema": "is Python for each record",
    "expect_column_values_to_match_like_pattern": "does not exist on pandas, where it would be checked; use a regex",
    "expect_column_values_to_be_of_type": "is what logicalType declares",
    "expect_column_values_to_be_in_type_list": "is what logicalType declares",
}
"""Column-map expectations that judge no record here, and why."""

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
"""Expectations that only a whole table can keep; a checkpoint also asks row expectations of a table."""


def why_not_per_record(expectation: str) -> str:
    """Say why an expectation cannot judge each record."""
    if expectation in NOT_PER_RECORD:
        return NOT_PER_RECORD[expectation]
    return "needs all rows" if expectation in TABLE_EXPECTATIONS else "is no expectation that is known here"
