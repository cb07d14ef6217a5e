"""Validates bronze batches: every record typed, each with the reasons why it is not accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, reduce
from itertools import groupby

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

from include.declare.children import BAD_CHILDREN, Children
from include.declare.children import Elements as ChildElements
from include.declare.contract import Column, Contract
from include.declare.contract_rules import REJECT, Rule
from include.declare.envelopes import OPERATIONS, TOMBSTONE, text_of_row
from include.ground.record_coordinates import AFTER, BEFORE
from spark_jobs.contract.child_reasons import BROKEN, is_distinct, rejected_alone, with_reasons_split
from spark_jobs.contract.compiled_rules import compared, compiled_rule
from spark_jobs.contract.json_record import DETAIL, FAULT, KEY, NO_VALUE, JsonValue, json_value, json_values
from spark_jobs.contract.literals import literal
from spark_jobs.contract.payload_texts import without_envelope
from spark_jobs.contract.plain_form import is_proven_by_plain_form, plain_value, plain_values
from spark_jobs.contract.unread import UNREAD

# The calendar that Python, Arrow and Delta's readers share; a time outside could be written but not read.
FIRST_TIME = datetime(1, 1, 2, tzinfo=UTC)
LAST_TIME = datetime(9999, 12, 30, tzinfo=UTC)


@dataclass(frozen=True)
class FieldRule:
    """The record is rejected with `name` for `column` where `holds` is false; null holds, as in an SQL CHECK."""

    name: str
    column: str | Expression
    holds: Expression
    detail: Expression
    proven: bool = False
    """The plain form implies it."""
    reasons: Expression | None = None
    """An array of all reasons, where several elements may each break a rule."""


@dataclass(frozen=True)
class Place:
    """Where a value is: what it is, how a reason names it, and the object around it, if that may be absent."""

    value: Expression
    path: str | Expression
    around: Expression | None = None

    def below(self, value: Expression, *parts: str | Expression) -> Place:
        """Return a place inside of this one; `parts` follow its path."""
        if isinstance(self.path, str) and all(isinstance(part, str) for part in parts):
            return Place(value, "".join([self.path, *map(str, parts)]), self.value)
        return Place(value, F.concat(*map(_text, (self.path, *parts))), self.value)


def _text(part: str | Expression) -> Expression:
    return F.lit(part) if isinstance(part, str) else part


def column_type(column: Column) -> DataType:
    """Return the Spark type of a contract column."""
    named = {"name": column.name, "type": column.kind.spark_type(column), "nullable": True, "metadata": {}}
    return StructField.fromJson(named).dataType


def typed_value(column: Column, value: JsonValue) -> Expression:
    """Return the column's value of a JSON value; null where it has none of its type."""
    found: Expression = column.kind.of_json(F, column, value)
    return found


@dataclass(frozen=True)
class _Rules:
    """Makes the rules of typed values; `arrived` is the record's Kafka timestamp."""

    identity: tuple[str, ...]
    arrived: Expression

    def of(self, column: Column, place: Place) -> Iterator[FieldRule]:
        """Yield the rules of a value, and of what is inside."""
        value, rules = place.value, list[tuple[str, Expression]]()
        if column.required or column.absent_in:
            is_there = value.isNotNull() if place.around is None else value.isNotNull() | place.around.isNull()
            if column.absent_in:
                is_there = is_there | F.coalesce(F.col(OPERATION).isin(*column.absent_in), F.lit(False))
            rules.append(
                ("missing_id" if column.name in self.identity and place.around is None else "required", is_there)
            )
        rules += _bounds(column, value, self.arrived)
        detail = _shown(column, value)
        for name, holds in rules:
            is_proven = is_proven_by_plain_form(column, name) and not column.absent_in
            yield FieldRule(name, place.path, holds, detail, is_proven)
        yield from VALUES_INSIDE.get(column.kind.shape, _nothing_inside)(self, column, place)

    def of_elements(self, column: Column, place: Place, elements: Expression, at: Elements) -> Iterator[FieldRule]:
        """Yield one rule for all elements; each breaks it with reasons of its own."""
        (item,) = column.fields

        def rules(each: Expression, index: Expression) -> list[FieldRule]:
            return list(self.of(item, at(place, each, index)))

        if not rules(F.lit(None), F.lit(0)):
            return
        zero = F.lit(0)
        holds = F.forall(elements, lambda each: _keeps_all(rules(each, zero)))
        reasons = F.flatten(F.transform(elements, lambda each, index: _violations(rules(each, index))))
        yield FieldRule("", place.path, holds, F.lit(None), reasons=reasons)


Elements = Callable[[Place, Expression, Expression], Place]
"""The place of an array or map, one of its elements or entries and its number → the place of its value."""


def _element(place: Place, each: Expression, index: Expression) -> Place:
    return replace(place.below(each, "[", index.cast("string"), "]"), around=None)


def _entry(place: Place, each: Expression, index: Expression) -> Place:
    return replace(place.below(each["value"], "[", each["key"], "]"), around=None)


def _nothing_inside(rules: _Rules, column: Column, place: Place) -> Iterator[FieldRule]:
    return iter(())


def _fields_inside(rules: _Rules, column: Column, place: Place) -> Iterator[FieldRule]:
    for each in column.fields:
        yield from rules.of(each, place.below(place.value[each.name], f".{each.name}"))


VALUES_INSIDE: Mapping[str, Callable[[_Rules, Column, Place], Iterator[FieldRule]]] = {
    "object": _fields_inside,
    "array": lambda rules, column, place: rules.of_elements(column, place, place.value, _element),
    "map": lambda rules, column, place: rules.of_elements(column, place, F.map_entries(place.value), _entry),
}


def value_rules(column: Column, contract: Contract, arrived: Expression) -> list[FieldRule]:
    """Return the rules on the typed value in column `column.name`; `arrived` is the record's Kafka timestamp."""
    return list(_Rules(contract.identity, arrived).of(column, Place(F.col(column.name), column.name)))


def rejecting_rules(contract: Contract) -> list[FieldRule]:
    """Return the contract's own rules that reject a record."""
    columns = {column.name: column for column in contract.plain_columns}
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
    if column.kind.shape in ("array", "map"):
        size = F.size(value)
        rules.append(("elements", (size >= column.min_length) & (size <= column.max_length)))
    if column.minimum is not None:
        rules.append(("range", compared(column, ">=", column.minimum, value)))
    if column.maximum is not None:
        rules.append(("range", compared(column, "<=", column.maximum, value)))
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
OPERATION = OPERATIONS.column
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

    contract: Contract
    selections: tuple[tuple[Expression, ...], ...]
    plain_selections: tuple[tuple[Expression, ...], ...]
    """The selections for records in their plain form; they end with `_good` and `_task`."""
    lenient: Sequence[ChildElements] = ()
    """The children that are rejected alone."""

    def validated(self, bronze: DataFrame) -> DataFrame:
        """Return one row per bronze row, with the columns of `validated_schema`.

        `_reasons` (array of rule, column, detail) is empty if the record keeps the contract. A record with a fault in
        its structure or in a value's type has just these reasons; any other has one per rule that it breaks. `headers`
        are needed only of records without a time of the calendar.
        """
        rows = bronze if "headers" in bronze.columns else bronze.withColumn("headers", F.expr(NO_HEADERS))
        opened = without_envelope(rows, self.contract)
        found = reduce(lambda rows, columns: rows.select(*columns), self.selections, opened)
        return with_reasons_split(self.lenient, found) if self.lenient else found

    def accepted_plain(self, bronze: DataFrame) -> DataFrame:
        """Return the accepted records among those in plain form, with the columns of `validated`.

        Nearly all records of a healthy topic, at a fraction of the cost; the rest needs `validated`.
        """
        opened = without_envelope(bronze, self.contract)
        rows = reduce(lambda rows, columns: rows.select(*columns), self.plain_selections, opened)
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
    unread = [F.col(UNREAD)] if contract.payload.is_translated else []
    read = [F.col(name).alias(alias) for name, alias in COORDINATES.items()]
    # A record without a time of the calendar is not in plain form: its headers are read here only.
    plain = plain_values(F.when(_has_time(F.col("timestamp")), value), contract).alias("_values")
    parsing = (*read, F.col("_batch_id"), *unread, value, plain)
    time = F.when(~_has_time(F.col("timestamp")), F.try_element_at("headers", F.lit(-1))["value"].cast("string"))
    return Validator(
        contract,
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
            (
                *[F.col(column.name) for column in contract.columns],
                *coordinates,
                *_reasons(contract),
            ),
        ),
        (
            parsing,
            (*_typed_plain_values(contract), *coordinates, F.col("_values").isNotNull().alias("_plain")),
            (
                F.col("*"),
                *(_no_reasons().alias(BAD_CHILDREN) for _ in rejected_alone(contract)[:1]),
                _is_accepted_plain(_rules(contract)).alias("_good"),
                F.spark_partition_id().alias("_task"),
            ),
        ),
        rejected_alone(contract),
    )


def validated_schema(contract: Contract) -> StructType:
    """Return the columns of validated records: the contract's, then FOLLOWING. Spark takes two seconds to find them."""
    bad = [StructField(BAD_CHILDREN, REASONS) for _ in rejected_alone(contract)[:1]]
    return StructType([*(StructField(each.name, column_type(each)) for each in contract.columns), *FOLLOWING, *bad])


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
    values = [(column, json_value("_read", number)) for number, column in enumerate(contract.columns)]
    types = _all(each for column, value in values for each in _type_reasons(column, value, column.name))
    if text_of_row(contract) is not None:
        structure = F.when(structure == NO_VALUE, TOMBSTONE).otherwise(structure)
    found = F.when(structure.isNotNull(), F.array(_reason(structure, F.lit(""), detail))).otherwise(types)
    found = F.when(F.col("_time").isNotNull(), F.array(_reason("kafka_timestamp", "", F.col("_time")))).otherwise(found)
    if contract.payload.is_translated:
        why = F.array(_reason(F.col(f"{UNREAD}.rule"), F.lit(""), F.col(f"{UNREAD}.detail")))
        found = F.when(F.col(UNREAD).isNotNull(), why).otherwise(found)
    return _unless_plain(found).alias("_faults")


def _reasons(contract: Contract) -> list[Expression]:
    """Return the reasons; or, if children may be rejected alone, what `with_reasons_split` makes them of."""
    rules = _rules(contract)
    good, broken = _is_accepted_plain(rules), _violations(rules)
    if rejected_alone(contract):
        return [F.col("_faults"), F.when(good, _no_reasons()).otherwise(broken).alias(BROKEN)]
    faulty = F.size("_faults") > 0
    return [F.when(good, _no_reasons()).when(faulty, F.col("_faults")).otherwise(broken).alias("_reasons")]


def _rules(contract: Contract) -> list[FieldRule]:
    rules = [rule for c in contract.columns for rule in value_rules(c, contract, F.col("_timestamp"))]
    return [
        *rules,
        *(_distinct_children(each) for each in contract.children if each.identity),
        *rejecting_rules(contract),
    ]


def _distinct_children(children: Children) -> FieldRule:
    holds, reasons = is_distinct(children)
    return FieldRule("", children.column, holds, F.lit(None), reasons=reasons)


def _is_accepted_plain(rules: list[FieldRule]) -> Expression:
    return F.col("_plain") & _keeps_all([rule for rule in rules if not rule.proven])


@dataclass(frozen=True)
class Reasons:
    """A column of reasons, null where there is none: of one reason, or an array of those of elements."""

    column: Expression
    are_many: bool = False


def _type_reasons(column: Column, value: JsonValue, path: str | Expression) -> Iterator[Reasons]:
    """Yield why a value, and what is inside, is none of its type."""
    fault = type_fault(column, value)
    yield Reasons(F.when(fault.isNotNull(), _reason(fault, path, F.substring(value.text, 1, SHOWN))))
    yield from TYPES_INSIDE.get(column.kind.shape, _no_types_inside)(column, value, path)


def _no_types_inside(column: Column, value: JsonValue, path: str | Expression) -> Iterator[Reasons]:
    return iter(())


def _types_of_fields(column: Column, value: JsonValue, path: str | Expression) -> Iterator[Reasons]:
    for number, each in enumerate(column.fields):
        yield from _type_reasons(each, value.field(number), _joined(path, f".{each.name}"))


def _types_of_elements(column: Column, value: JsonValue, path: str | Expression) -> Iterator[Reasons]:
    (item,) = column.fields

    def reasons(each: Expression, index: Expression) -> Expression:
        name = index.cast("string") if column.kind.shape == "array" else each[KEY]
        return _all(_type_reasons(item, JsonValue.of(each), _joined(path, "[", name, "]")))

    yield Reasons(F.flatten(F.transform(value.inner, reasons)), are_many=True)


TYPES_INSIDE: Mapping[str, Callable[[Column, JsonValue, str | Expression], Iterator[Reasons]]] = {
    "object": _types_of_fields,
    "array": _types_of_elements,
    "map": _types_of_elements,
}


def _joined(path: str | Expression, *parts: str | Expression) -> str | Expression:
    return Place(F.lit(None), path).below(F.lit(None), *parts).path


def _keeps_all(rules: list[FieldRule]) -> Expression:
    return reduce(Expression.__and__, [F.coalesce(rule.holds, F.lit(True)) for rule in rules], F.lit(True))


def _violations(rules: list[FieldRule]) -> Expression:
    return _all(map(_broken, rules))


def _broken(rule: FieldRule) -> Reasons:
    if rule.reasons is not None:
        return Reasons(rule.reasons, are_many=True)
    return Reasons(F.when(~F.coalesce(rule.holds, F.lit(True)), _reason(rule.name, rule.column, rule.detail)))


def _all(reasons: Iterable[Reasons]) -> Expression:
    """Return the reasons that are not null as one array."""
    parts = list[Expression]()
    for are_many, group in groupby(reasons, lambda each: each.are_many):
        columns = [each.column for each in group]
        found = [F.coalesce(each, _no_reasons()) for each in columns] if are_many else [_without_nulls(columns)]
        parts += found
    return F.concat(*parts).cast(REASONS) if len(parts) > 1 else parts[0] if parts else _no_reasons()


def _without_nulls(reasons: list[Expression]) -> Expression:
    return F.filter(F.array(*reasons), lambda reason: reason.isNotNull()).cast(REASONS)


def _no_reasons() -> Expression:
    """No reasons."""
    return F.array().cast(REASONS)


def _reason(rule: Expression | str, column: Expression | str, detail: Expression) -> Expression:
    return F.struct(_text(rule).alias("rule"), _text(column).alias("column"), detail.cast("string").alias("detail"))
