"""Validates bronze batches: every record typed, each with the reasons why it is not accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, reduce
from itertools import groupby

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from include.declare.children import BAD_CHILDREN, Children, Elements
from include.declare.contract import Column, Contract
from include.declare.contract_rules import REJECT, Rule
from include.declare.envelopes import OPERATIONS, TOMBSTONE, has_tombstones
from include.ground.record_coordinates import AFTER, BEFORE
from spark_jobs.contract.compiled_rules import compared, compiled_rule
from spark_jobs.contract.literals import literal
from spark_jobs.contract.payload_texts import UNREAD, without_envelope
from spark_jobs.contract.record_reader import (
    NO_VALUE,
    PROVEN,
    REASONS,
    REFUSED,
    column_type,
    is_proven,
    java_pattern,
    microseconds,
    record_values,
)

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
    """The reader of records says whether it holds."""
    reasons: Expression | None = None
    """An array of all reasons, where several elements may each break a rule."""


@dataclass(frozen=True)
class Place:
    """Where a value is: what it is, how a reason names it, and the object around it, if that may be absent."""

    value: Expression
    path: str | Expression
    around: Expression | None = None

    def field(self, name: str) -> Place:
        return Place(self.value[name], _joined(self.path, f".{name}"), self.value)

    def element(self, value: Expression, key: Expression) -> Place:
        return Place(value, _joined(self.path, "[", key.cast("string"), "]"))


def _joined(*parts: str | Expression) -> str | Expression:
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return F.concat(*map(_text, parts))


def _text(part: str | Expression) -> Expression:
    return F.lit(part) if isinstance(part, str) else part


@dataclass(frozen=True)
class Rules:
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
            is_key = column.name in self.identity and place.around is None
            rules.append(("missing_id" if is_key else "required", is_there))
        rules += _bounds(column, value, self.arrived)
        detail = _shown(column, value)
        for name, holds in rules:
            yield FieldRule(name, place.path, holds, detail, is_proven(column, name))
        yield from column.kind.rules_inside(F, self, column, place)

    def of_elements(
        self, column: Column, place: Place, elements: Expression, at: Callable[[Expression, Expression], Place]
    ) -> Iterator[FieldRule]:
        """Yield one rule for all elements; each breaks it with reasons of its own. `at`: an element, its number."""
        (item,) = column.fields

        def rules(each: Expression, index: Expression) -> list[FieldRule]:
            return list(self.of(item, at(each, index)))

        if not (for_any := rules(F.lit(None), F.lit(0))):
            return
        holds = F.forall(elements, lambda each: _keeps_all(_unproven(rules(each, F.lit(0)))))
        reasons = F.flatten(F.transform(elements, lambda each, index: _violations(rules(each, index))))
        yield FieldRule("", place.path, holds, F.lit(None), not _unproven(for_any), reasons)


def _unproven(rules: Iterable[FieldRule]) -> list[FieldRule]:
    return [rule for rule in rules if not rule.proven]


def value_rules(column: Column, contract: Contract, arrived: Expression) -> list[FieldRule]:
    """Return the rules on the typed value in column `column.name`; `arrived` is the record's Kafka timestamp."""
    return list(Rules(contract.identity, arrived).of(column, Place(F.col(column.name), column.name)))


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


def _bounds(column: Column, value: Expression, arrived: Expression) -> list[tuple[str, Expression]]:
    rules: list[tuple[str, Expression]] = []
    if "future" in column.kind.options:
        rules += _time_bounds(column, value, arrived)
    if column.kind.lengths[1] in column.kind.options:
        rules += _length_bounds(column, value)
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
        ("future_ts", (ahead <= microseconds(column.future)) | (value > literal(LAST_TIME))),
    ]
    if column.past is not None:
        rules.append(("past_ts", (ahead >= -microseconds(column.past)) | (value < literal(FIRST_TIME))))
    return rules


def _length_bounds(column: Column, value: Expression) -> list[tuple[str, Expression]]:
    size = column.kind.length(F, value)
    rules = [(column.kind.length_rule, (size >= column.min_length) & (size <= column.max_length))]
    if column.pattern:
        # The steps of a pattern are bounded for texts that are not too long (portable_regex.py).
        rules.append(("pattern", F.when(size <= column.max_length, value.rlike(java_pattern(column.pattern)))))
    if column.values:
        rules.append(("enum", value.isin(*column.values)))
    return rules


BROKEN = "_broken"
"""The reasons of values that break a rule; `_faults` has those of values that have no type."""
SHOWN = 64
JSON_OPTIONS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "dateFormat": "yyyy-MM-dd",
    "ignoreNullFields": "false",
}


def rejected_alone(contract: Contract) -> list[Elements]:
    """Return the children that are rejected alone."""
    return [each.elements(contract) for each in contract.children if each.rejects_alone]


def is_distinct(children: Children) -> tuple[Expression, Expression]:
    """Return whether no two elements have one identity, and the reasons: the first of them keeps it."""
    found = F.transform(children.column, lambda each: _identity(children, each))
    holds = F.size(F.array_distinct(found)) == F.size(found)

    def reason(each: Expression, index: Expression) -> Expression:
        path = F.concat(F.lit(f"{children.column}["), index.cast("string"), F.lit("]"))
        named = F.lit("duplicate_child").alias("rule"), path.alias("column")
        detail = F.substring(each.cast("string"), 1, SHOWN).alias("detail")
        return F.when(F.array_position(found, each) <= index, F.struct(*named, detail))

    return holds, F.filter(F.transform(found, reason), lambda each: each.isNotNull())


def _identity(children: Children, element: Expression) -> Expression:
    values = [element[name] for name in children.identity]
    return values[0] if len(values) == 1 else F.to_json(F.struct(*values), JSON_OPTIONS)


def with_reasons_split(lenient: Sequence[Elements], rows: DataFrame) -> DataFrame:
    """Return rows with `_faults` and BROKEN as rows with `_reasons`, against the record, and BAD_CHILDREN.

    What is wrong with a type hides what its value breaks: in the record, and in each of these children.
    """
    pattern, nothing = "|".join(f"(?:{each.path})" for each in lenient), F.filter(BROKEN, lambda _: F.lit(False))
    faults, broken = F.coalesce("_faults", nothing), F.col(BROKEN)

    def element(reason: Expression) -> Expression:
        return F.regexp_extract(reason["column"], pattern, 0)

    def of_record(reasons: Expression) -> Expression:
        return F.filter(reasons, lambda each: element(each) == "")

    def of_children(reasons: Expression) -> Expression:
        return F.filter(reasons, lambda each: element(each) != "")

    faulty = F.transform(faults, element)
    unhidden = F.filter(of_children(broken), lambda each: ~F.array_contains(faulty, element(each)))
    against = F.when(F.size(of_record(faults)) > 0, of_record(faults)).otherwise(of_record(broken))
    kept = [F.col(name) for name in rows.columns if name not in ("_faults", BROKEN)]
    return rows.select(*kept, against.alias("_reasons"), F.concat(of_children(faults), unhidden).alias(BAD_CHILDREN))


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
    gate: tuple[tuple[Expression, ...], ...]
    """The selections that find the accepted records alone; they end with `_good` and `_task`."""
    lenient: Sequence[Elements] = ()
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

    def accepted(self, bronze: DataFrame) -> DataFrame:
        """Return the accepted records, with the columns of `validated`, at a part of its cost."""
        opened = without_envelope(bronze, self.contract)
        rows = reduce(lambda rows, columns: rows.select(*columns), self.gate, opened)
        # The task's number prevents filter push-down, which would evaluate the contract twice.
        return rows.where(F.col("_good") & (F.col("_task") >= 0)).drop("_good", "_task")


def compiled_validator(contract: Contract) -> Validator:
    """Return the validator of a contract; needs a running Spark session."""
    with _compiling:
        return _compiled(contract, SparkSession.active().sparkContext.applicationId)


# One release is opened several times in a process (to validate its code, to write, to rebuild a slice).
@lru_cache(maxsize=64)
def _compiled(contract: Contract, application: str) -> Validator:
    coordinates = [F.col(alias) for alias in COORDINATES.values()] + [F.col("_batch_id")]
    unread = [F.col(UNREAD)] if contract.payload.is_translated else []
    found = [F.col(name).alias(alias) for name, alias in COORDINATES.items()]
    time = F.col("timestamp")
    # A record without a time of the calendar is rejected: its headers have the time that it was sent with.
    read = record_values(F.when(_has_time(time), F.col("value")), time, contract).alias("_read")
    header = F.when(~_has_time(time), F.try_element_at("headers", F.lit(-1))["value"].cast("string")).alias("_time")
    values = [F.col(f"_read.{column.name}").alias(column.name) for column in contract.columns]
    typed = (*values, *coordinates, F.col(f"_read.{PROVEN}").alias(PROVEN))
    names = [*(F.col(column.name) for column in contract.columns), *coordinates]
    return Validator(
        contract,
        (
            (*found, F.col("_batch_id"), *unread, header, read),
            (*typed, _faults(contract)),
            (*names, *_reasons(contract)),
        ),
        (
            (*found, F.col("_batch_id"), read),
            (*typed, _no_reasons().alias("_reasons")),
            (
                *names,
                F.col("_reasons"),
                *(_no_reasons().alias(BAD_CHILDREN) for _ in rejected_alone(contract)[:1]),
                _is_accepted(contract).alias("_good"),
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


def _faults(contract: Contract) -> Expression:
    """The reasons of a record's structure, or of the types of its values."""
    found = F.col(f"_read.{REFUSED}")
    if has_tombstones(contract):
        tombstone = F.array(_reason(TOMBSTONE, "", F.lit(None)))
        found = F.when(found[0]["rule"] == NO_VALUE, tombstone).otherwise(found)
    found = F.when(F.col("_time").isNotNull(), F.array(_reason("kafka_timestamp", "", F.col("_time")))).otherwise(found)
    if contract.payload.is_translated:
        why = F.array(_reason(F.col(f"{UNREAD}.rule"), F.lit(""), F.col(f"{UNREAD}.detail")))
        found = F.when(F.col(UNREAD).isNotNull(), why).otherwise(found)
    return found.alias("_faults")


def _reasons(contract: Contract) -> list[Expression]:
    """Return the reasons; or, if children may be rejected alone, what `with_reasons_split` makes them of."""
    good, broken = _is_accepted(contract), _violations(_rules(contract))
    if rejected_alone(contract):
        return [F.col("_faults"), F.when(good, _no_reasons()).otherwise(broken).alias(BROKEN)]
    faulty = F.size("_faults") > 0
    return [F.when(good, _no_reasons()).when(faulty, F.col("_faults")).otherwise(broken).alias("_reasons")]


def _rules(contract: Contract) -> list[FieldRule]:
    rules = [rule for c in contract.columns for rule in value_rules(c, contract, F.col("_timestamp"))]
    for children in contract.children:
        if children.identity:
            holds, reasons = is_distinct(children)
            rules.append(FieldRule("", children.column, holds, F.lit(None), reasons=reasons))
    return [*rules, *rejecting_rules(contract)]


def _is_accepted(contract: Contract) -> Expression:
    return F.col(PROVEN) & _keeps_all(_unproven(_rules(contract)))


@dataclass(frozen=True)
class Reasons:
    """A column of reasons, null where there is none: of one reason, or an array of those of elements."""

    column: Expression
    are_many: bool = False


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
    return F.array().cast(REASONS)


def _reason(rule: Expression | str, column: Expression | str, detail: Expression) -> Expression:
    return F.struct(_text(rule).alias("rule"), _text(column).alias("column"), detail.cast("string").alias("detail"))
