"""Per column of a contract: its typed value, and the rules that the value must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from include.declare.contract import Column, Contract
from include.declare.contract_rules import REJECT, Rule
from spark_jobs.contract.comparisons import compared
from spark_jobs.contract.compiled_rules import compiled_rule
from spark_jobs.contract.json_record import JsonValue
from spark_jobs.contract.literals import literal
from spark_jobs.contract.plain_form import is_proven_by_plain_form
from spark_jobs.contract.spark_types import spark_type

# The calendar that Python, Arrow and Delta's readers share; a time outside could be written but not read.
FIRST_TIME = datetime(1, 1, 2, tzinfo=UTC)
LAST_TIME = datetime(9999, 12, 30, tzinfo=UTC)


@dataclass(frozen=True)
class FieldRule:
    """The record is rejected with `name` for `column` where `holds` is false; null holds, as in an SQL CHECK."""

    name: str
    column: str
    holds: Expression
    detail: Expression
    proven: bool = False
    """The plain form implies it."""


def column_type(column: Column) -> DataType:
    """Return the Spark type of a contract column."""
    return spark_type(column).data_type(column)


def typed_value(column: Column, value: JsonValue) -> Expression:
    """Return the column's value of a JSON value; null where it has none of its type."""
    return spark_type(column).value(column, value)


def value_rules(column: Column, contract: Contract, arrived: Expression) -> list[FieldRule]:
    """Return the rules on the typed value in column `column.name`; `arrived` is the record's Kafka timestamp."""
    value = F.col(column.name)
    rules: list[tuple[str, Expression]] = []
    if column.required:
        rules.append(("missing_id" if column.name in contract.identity else "required", value.isNotNull()))
    rules += _bounds(column, value, arrived)
    return [
        FieldRule(name, column.name, holds, _shown(column, value), is_proven_by_plain_form(column, name))
        for name, holds in rules
    ]


def rejecting_rules(contract: Contract) -> list[FieldRule]:
    """Return the contract's own rules that reject a record."""
    columns = {column.name: column for column in contract.columns}
    return [
        FieldRule(rule.name, name, _holds(rule, columns), _shown(columns[name], F.col(name)))
        for rule in contract.record_rules
        if rule.action == REJECT
        for name in rule.columns[:1]
    ]


def _holds(rule: Rule, columns: Mapping[str, Column]) -> Expression:
    """Return whether a record keeps the rule; a pattern is not matched with a text that is too long."""
    holds, column = compiled_rule(rule, columns).holds, columns[rule.columns[0]]
    if not rule.arguments.keys() & {"regex", "regex_list"}:
        return holds
    return F.when(F.coalesce(F.octet_length(F.col(column.name)) <= column.max_length, F.lit(True)), holds)


def _shown(column: Column, value: Expression) -> Expression:
    return F.substring(spark_type(column).shown(value), 1, 64)


def type_fault(column: Column, value: JsonValue) -> Expression:
    """Return why a JSON value is none of the column's type; null where it is one, is null, or is absent."""
    return F.when(value.is_given, spark_type(column).fault(column, value))


def _bounds(column: Column, value: Expression, arrived: Expression) -> list[tuple[str, Expression]]:
    rules: list[tuple[str, Expression]] = []
    if "future" in column.kind.options:
        rules += _time_bounds(column, value, arrived)
    if "maxLength" in column.kind.options:
        rules += _string_bounds(column, value)
    if column.minimum is not None:
        rules.append(("range", compared(column, ">=", column.minimum)))
    if column.maximum is not None:
        rules.append(("range", compared(column, "<=", column.maximum)))
    return rules


def _time_bounds(column: Column, value: Expression, arrived: Expression) -> list[tuple[str, Expression]]:
    # In microseconds: adding an interval to a timestamp makes a calendar object for every row.
    ahead = F.unix_micros(value) - F.unix_micros(arrived)
    rules = [
        ("out_of_range", (value >= literal(FIRST_TIME)) & (value <= literal(LAST_TIME))),
        ("future_ts", (ahead <= _microseconds(column.future)) | (value > literal(LAST_TIME))),
    ]
    if column.past is not None:
        rules.append(("past_ts", (ahead >= -_microseconds(column.past)) | (value < literal(FIRST_TIME))))
    return rules


def _microseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def _string_bounds(column: Column, value: Expression) -> list[tuple[str, Expression]]:
    size = F.octet_length(value)
    rules = [("length", (size >= column.min_length) & (size <= column.max_length))]
    if column.pattern:
        # The steps of a pattern are bounded for texts that are not too long (portable_regex.py).
        rules.append(("pattern", F.when(size <= column.max_length, value.rlike(_anchored_at_end(column.pattern)))))
    if column.values:
        rules.append(("enum", value.isin(*column.values)))
    return rules


def _anchored_at_end(pattern: str) -> str:
    """Java's `$` also matches before a last line break; a contract's does not."""
    return f"{pattern[:-1]}\\z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern
