"""Per column of a contract: its typed value, and the rules that the value must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, DecimalType, IntegerType, StringType, TimestampType

from include.catalog.contract import Column, Contract
from include.catalog.contract_rules import REJECT, Rule
from spark_jobs.contract.compiled_rules import compiled_rule
from spark_jobs.contract.json_record import BOOLEAN, NUMBER, TEXT, JsonValue
from spark_jobs.contract.plain_form import is_proven_by_plain_form
from spark_jobs.literals import literal

ISO_SECONDS = r"\d{4,6}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?"
ZONE = r"(?:Z|[+-]\d\d:\d\d)"
SPARK_TYPES = {
    "string": StringType(),
    "integer": IntegerType(),
    "timestamp": TimestampType(),
    "boolean": BooleanType(),
}
# The calendar that Python, Arrow and Delta's readers share; a time outside could be written but not read.
FIRST_TIME = datetime(1, 1, 2, tzinfo=UTC)
LAST_TIME = datetime(9999, 12, 30, tzinfo=UTC)
LARGER_THAN_ANY = Decimal(10) ** 38


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
    return SPARK_TYPES.get(column.type) or DecimalType(column.precision, column.scale)


def spark_type(column: Column) -> str:
    """Return the name of the Spark type of a contract column."""
    return column_type(column).simpleString()


def typed_value(column: Column, value: JsonValue) -> Expression:
    """Return the column's value of a JSON value; null where it has none of its type."""
    if column.type == "string":
        return F.when(value.kind == TEXT, value.text)
    if column.type == "timestamp":
        is_time = (value.kind == TEXT) & value.text.rlike(f"^{ISO_SECONDS}{ZONE}\\z")
        return F.when(is_time, value.text.try_cast("timestamp"))
    if column.type == "boolean":
        return F.when(value.kind == BOOLEAN, value.text.try_cast("boolean"))
    number = value.text if column.type == "integer" else value.exact
    return F.when(value.kind == NUMBER, number.try_cast(spark_type(column)))


def value_rules(column: Column, contract: Contract, arrived: Expression) -> list[FieldRule]:
    """Return the rules on the typed value in column `column.name`; `arrived` is the record's Kafka timestamp."""
    value = F.col(column.name)
    rules: list[tuple[str, Expression]] = []
    if column.required:
        rules.append(("missing_id" if column.name in contract.identity else "required", value.isNotNull()))
    rules += _bounds(column, value, arrived)
    return [
        FieldRule(name, column.name, holds, _shortened_text(value), is_proven_by_plain_form(column, name))
        for name, holds in rules
    ]


def rejecting_rules(contract: Contract) -> list[FieldRule]:
    """Return the contract's own rules that reject a record."""
    lengths = {column.name: column.max_length for column in contract.columns}
    return [
        FieldRule(rule.name, rule.columns[0], _holds(rule, lengths), _shortened_text(F.col(rule.columns[0])))
        for rule in contract.record_rules
        if rule.action == REJECT
    ]


def _holds(rule: Rule, lengths: Mapping[str, int]) -> Expression:
    """Return whether a record keeps the rule; a pattern is not matched with a text that is too long."""
    holds = compiled_rule(rule).holds
    if not rule.arguments.keys() & {"regex", "regex_list"}:
        return holds
    name = rule.columns[0]
    return F.when(F.coalesce(F.octet_length(F.col(name)) <= lengths[name], F.lit(True)), holds)


def _shortened_text(value: Expression) -> Expression:
    return F.substring(value.cast("string"), 1, 64)


def type_fault(column: Column, value: JsonValue) -> Expression:
    """Return why a JSON value is none of the column's type; null where it is one, is null, or is absent."""
    faults = {"string": _string_fault, "timestamp": _time_fault, "boolean": _boolean_fault, "integer": _integer_fault}
    return F.when(value.is_given, faults.get(column.type, _decimal_fault)(column, value))


def _bounds(column: Column, value: Expression, arrived: Expression) -> list[tuple[str, Expression]]:
    rules: list[tuple[str, Expression]] = []
    if column.type == "timestamp":
        rules += _time_bounds(column, value, arrived)
    if column.type == "string":
        rules += _string_bounds(column, value)
    if column.minimum is not None:
        rules.append(("range", _is_at_least(column, value, column.minimum, 1)))
    if column.maximum is not None:
        rules.append(("range", _is_at_least(column, value, column.maximum, -1)))
    return rules


def _is_at_least(column: Column, value: Expression, bound: int | Decimal | datetime, sign: int) -> Expression:
    """Return whether a value is at least a bound, or with the sign -1 at most.

    To compare two decimals Spark rounds both to one type of 38 digits: -1 is not less than -0.5 in decimal(38,0). So
    the bound has at most the column's decimals here, and one of more than 38 digits is no literal.
    """
    if isinstance(bound, Decimal):
        if abs(bound) >= LARGER_THAN_ANY:
            return value.isNull() if (bound > 0) == (sign > 0) else F.lit(True)
        inwards, unit = ROUND_CEILING if sign > 0 else ROUND_FLOOR, Decimal(1).scaleb(-column.scale)
        rounded = bound.quantize(unit, inwards, Context(prec=100))
        bound = bound if rounded == bound else rounded
    return value >= literal(bound) if sign > 0 else value <= literal(bound)


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


def _string_fault(column: Column, value: JsonValue) -> Expression:
    return F.when(value.kind != TEXT, "type")


def _boolean_fault(column: Column, value: JsonValue) -> Expression:
    return F.when(value.kind != BOOLEAN, "type")


def _integer_fault(column: Column, value: JsonValue) -> Expression:
    whole = (value.kind == NUMBER) & value.text.rlike(r"^-?\d+\z")
    return F.when(~whole, "type").when(value.text.try_cast("int").isNull(), "out_of_range")


def _decimal_fault(column: Column, value: JsonValue) -> Expression:
    decimals = F.length(F.regexp_extract(value.exact, r"\.(\d+)\z", 1))
    return (
        F.when(value.kind != NUMBER, "type")
        .when(value.exact.try_cast(spark_type(column)).isNull(), "out_of_range")
        .when(decimals > column.scale, "scale")
    )


def _time_fault(column: Column, value: JsonValue) -> Expression:
    text, seconds = value.text, value.text.try_cast("double")
    return (
        # A number of this size is a time in milliseconds: read as seconds it lies after the year 5000.
        F.when(value.kind == NUMBER, F.when(F.abs(seconds) >= 1e11, "out_of_range").otherwise("type"))
        .when(value.kind != TEXT, "type")
        .when(text.rlike(f"^{ISO_SECONDS}\\z"), "no_zone")
        .when(~text.rlike(f"^{ISO_SECONDS}{ZONE}\\z"), "bad_ts")
        .when(text.rlike(r"^\d{5,6}-"), "out_of_range")
        .when(text.try_cast("timestamp").isNull(), "bad_ts")
    )
