"""Validates bronze batches: every record typed, each with the reasons why it is not accepted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from include.declare.contract import Column, Contract
from include.declare.contract_rules import REJECT, Rule
from include.ground.record_coordinates import AFTER, BEFORE
from spark_jobs.contract.compiled_rules import compared, compiled_rule
from spark_jobs.contract.json_record import DETAIL, FAULT, JsonValue, json_value, json_values
from spark_jobs.contract.literals import literal
from spark_jobs.contract.payload_texts import UNREAD
from spark_jobs.contract.plain_form import is_proven_by_plain_form, plain_value, plain_values

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
    named = {"name": column.name, "type": column.kind.spark_type(column), "nullable": True, "metadata": {}}
    return StructField.fromJson(named).dataType


def typed_value(column: Column, value: JsonValue) -> Expression:
    """Return the column's value of a JSON value; null where it has none of its type."""
    found: Expression = column.kind.of_json(F, column, value)
    return found


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
    return F.substring(column.kind.shown(F, value), 1, 64)


def type_fault(column: Column, value: JsonValue) -> Expression:
    """Return why a JSON value is none of the column's type; null where it is one, is null, or is absent."""
    return F.when(value.is_given, column.kind.fault(F, column, value))


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


REASON = StructType([StructField(name, StringType()) for name in ("rule", "column", "detail")])
REASONS = ArrayType(REASON)
FOLLOWING = StructType(
    [
        StructField("_topic", StringType()),
        StructField("_partition", IntegerType()),
        StructField("_offset", LongType()),
        StructField("_timestamp", TimestampType()),
        StructField("_batch_id", LongType()),
        StructField("_reasons", REASONS),
    ]
)
"""The columns of validated records after those of the contract."""
SHOWN = 64
"""Characters of a value in a reason."""
COORDINATES = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp"}
NO_HEADERS = "cast(null as array<struct<key: string, value: binary>>)"
# `lru_cache` computes a value twice when two threads need it at once, and to compile a contract takes a second.
_compiling = threading.Lock()


@dataclass(frozen=True)
class Validator:
    """A compiled contract: the columns of each selection, made once, since making them costs more than a small batch.

    Selections follow one another because an expression that is used twice in one of them is computed twice.
    Records are those of `PayloadTexts.of`: JSON texts, in other formats with `_unread`.
    """

    selections: tuple[tuple[Expression, ...], ...]
    plain_selections: tuple[tuple[Expression, ...], ...]
    """The selections for records in their plain form; they end with `_good` and `_task`."""

    def validated(self, bronze: DataFrame) -> DataFrame:
        """Return one row per bronze row, with the columns of `validated_schema`.

        `_reasons` (array of rule, column, detail) is empty if the record keeps the contract. A record with a fault in
        its structure or in a value's type has just these reasons; any other has one per rule that it breaks. `headers`
        are needed only of records without a time of the calendar.
        """
        rows = bronze if "headers" in bronze.columns else bronze.withColumn("headers", F.expr(NO_HEADERS))
        return reduce(lambda rows, columns: rows.select(*columns), self.selections, rows)

    def accepted_plain(self, bronze: DataFrame) -> DataFrame:
        """Return the accepted records among those in plain form, with the columns of `validated`.

        Nearly all records of a healthy topic, at a fraction of the cost; the rest needs `validated`.
        """
        rows = reduce(lambda rows, columns: rows.select(*columns), self.plain_selections, bronze)
        # The task's number prevents filter push-down, which would evaluate the contract twice.
        return rows.where(F.col("_good") & (F.col("_task") >= 0)).drop("_good", "_task")


def compiled_validator(contract: Contract) -> Validator:
    """Return the validator of a contract; needs a running Spark session."""
    with _compiling:
        return _compiled(contract, SparkSession.active().sparkContext.applicationId)


# One release is opened several times in a process (to validate its code, to write, to rebuild a slice).
@lru_cache(maxsize=4)
def _compiled(contract: Contract, application: str) -> Validator:
    value = F.col("value")
    coordinates = [F.col(alias) for alias in COORDINATES.values()] + [F.col("_batch_id")]
    unread = [F.col(UNREAD)] if contract.payload.is_framed else []
    read = [F.col(name).alias(alias) for name, alias in COORDINATES.items()]
    # A record without a time of the calendar is not in plain form: its headers are read here only.
    plain = plain_values(F.when(_has_time(F.col("timestamp")), value), contract).alias("_values")
    parsing = (*read, F.col("_batch_id"), *unread, value, plain)
    time = F.when(~_has_time(F.col("timestamp")), F.try_element_at("headers", F.lit(-1))["value"].cast("string"))
    return Validator(
        (
            (*parsing, time.alias("_time")),
            (
                *coordinates,
                *unread,
                F.col("_time"),
                F.col("_values"),
                _unless_plain(json_values(value, contract)).alias("_read"),
            ),
            (*_typed_values(contract), *coordinates, F.col("_values").isNotNull().alias("_plain"), _faults(contract)),
            (*[F.col(column.name) for column in contract.columns], *coordinates, _reasons(contract)),
        ),
        (
            parsing,
            (*_typed_plain_values(contract), *coordinates, F.col("_values").isNotNull().alias("_plain")),
            (F.col("*"), _is_accepted_plain(_rules(contract)).alias("_good"), F.spark_partition_id().alias("_task")),
        ),
    )


def validated_schema(contract: Contract) -> StructType:
    """Return the columns of validated records: the contract's, then FOLLOWING. Spark takes two seconds to find them."""
    return StructType([*(StructField(column.name, column_type(column)) for column in contract.columns), *FOLLOWING])


def _has_time(timestamp: Expression) -> Expression:
    """Return whether a time is Kafka's own, as `is_replaced`."""
    return ~F.unix_micros(timestamp).isin(BEFORE, AFTER)


def _unless_plain(value: Expression) -> Expression:
    """Only for records that are not in plain form."""
    return F.when(F.col("_values").isNull(), value)


def _typed_values(contract: Contract) -> list[Expression]:
    plain = F.col("_values").isNotNull()
    return [
        F.when(plain, value).otherwise(typed_value(column, json_value("_read", number))).alias(column.name)
        for number, (column, value) in enumerate(zip(contract.columns, _typed_plain_values(contract), strict=True))
    ]


def _typed_plain_values(contract: Contract) -> list[Expression]:
    return [
        plain_value("_values", contract, number).alias(column.name) for number, column in enumerate(contract.columns)
    ]


def _faults(contract: Contract) -> Expression:
    """The reasons that a plain record cannot have: of its structure, else of the types of its values."""
    structure, detail = F.col(f"_read.{FAULT}"), F.substring(f"_read.{DETAIL}", 1, SHOWN)
    types = [_type_reason(column, json_value("_read", number)) for number, column in enumerate(contract.columns)]
    found = F.when(structure.isNotNull(), F.array(_reason(structure, F.lit(""), detail))).otherwise(
        _without_nulls(types)
    )
    found = F.when(F.col("_time").isNotNull(), F.array(_reason("kafka_timestamp", "", F.col("_time")))).otherwise(found)
    if contract.payload.is_framed:
        why = F.array(_reason(F.col(f"{UNREAD}.rule"), F.lit(""), F.col(f"{UNREAD}.detail")))
        found = F.when(F.col(UNREAD).isNotNull(), why).otherwise(found)
    return _unless_plain(found).alias("_faults")


def _reasons(contract: Contract) -> Expression:
    rules = _rules(contract)
    return (
        F.when(_is_accepted_plain(rules), F.array().cast(REASONS))
        .when(F.size("_faults") > 0, F.col("_faults"))
        .otherwise(_violations(rules))
        .alias("_reasons")
    )


def _rules(contract: Contract) -> list[FieldRule]:
    rules = [rule for c in contract.columns for rule in value_rules(c, contract, F.col("_timestamp"))]
    return rules + rejecting_rules(contract)


def _is_accepted_plain(rules: list[FieldRule]) -> Expression:
    return F.col("_plain") & _keeps_all([rule for rule in rules if not rule.proven])


def _type_reason(column: Column, value: JsonValue) -> Expression:
    fault = type_fault(column, value)
    return F.when(fault.isNotNull(), _reason(fault, F.lit(column.name), F.substring(value.text, 1, SHOWN)))


def _keeps_all(rules: list[FieldRule]) -> Expression:
    return reduce(Expression.__and__, [F.coalesce(rule.holds, F.lit(True)) for rule in rules], F.lit(True))


def _violations(rules: list[FieldRule]) -> Expression:
    return _without_nulls(
        [F.when(~F.coalesce(r.holds, F.lit(True)), _reason(r.name, r.column, r.detail)) for r in rules]
    )


def _without_nulls(reasons: list[Expression]) -> Expression:
    return F.filter(F.array(*reasons), lambda reason: reason.isNotNull()).cast(REASONS)


def _reason(rule: Expression | str, column: Expression | str, detail: Expression) -> Expression:
    name = rule if isinstance(rule, Expression) else F.lit(rule)
    where = column if isinstance(column, Expression) else F.lit(column)
    return F.struct(name.alias("rule"), where.alias("column"), detail.cast("string").alias("detail"))
