"""A bronze batch, judged: every record typed, each with the reasons why it is not accepted."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.catalog.contract import Contract
from spark_jobs.contract.fields import Rule, plainly_typed, row_rules, type_fault, typed, value_rules
from spark_jobs.contract.gate import plain_form
from spark_jobs.contract.structure import structure_fault

REASONS = "array<struct<rule:string,column:string,detail:string>>"
COORDINATES = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp"}


def judged_records(bronze: DataFrame, contract: Contract) -> DataFrame:
    """Return one row per bronze row: the contract's columns, the record's coordinates, and `_reasons`.

    Columns: those of the contract, typed; `_topic, _partition, _offset, _timestamp, _batch_id`; `_reasons`
    (array of rule, column, detail; empty = the record keeps the contract). A record with a fault in its
    structure or in a value's type has just these reasons; any other has one per rule that it breaks.
    """
    parsed = _typed_records(_read_fields(bronze, contract), contract)
    rules = [rule for c in contract.columns for rule in value_rules(c, contract, F.col("_timestamp"))]
    rules += row_rules(contract)
    broken = F.when(_all_hold(rules), F.array().cast(REASONS)).otherwise(_broken(rules))
    reasons = F.when(F.col("_plain"), broken).when(F.size("_faults") > 0, F.col("_faults")).otherwise(broken)
    columns = [column.name for column in contract.columns]
    return parsed.select(*columns, *COORDINATES.values(), "_batch_id", reasons.alias("_reasons"))


def _read_fields(bronze: DataFrame, contract: Contract) -> DataFrame:
    """Every field as the text of its JSON value, in `_text`; `_plain` when the gate knows the record."""
    text = F.col("value").cast("string")
    schema = ", ".join(f"`{column.name}` string" for column in contract.columns)
    return bronze.select(
        *[F.col(name).alias(alias) for name, alias in COORDINATES.items()],
        "_batch_id",
        "value",
        F.coalesce(F.is_valid_utf8(text) & text.rlike(plain_form(contract)), F.lit(False)).alias("_plain"),
        F.from_json(text, schema).alias("_text"),
    )


def _typed_records(fields: DataFrame, contract: Contract) -> DataFrame:
    columns = [
        F.when(F.col("_plain"), plainly_typed(c, _text(c.name))).otherwise(typed(c, _text(c.name))).alias(c.name)
        for c in contract.columns
    ]
    return fields.select(*columns, *COORDINATES.values(), "_batch_id", "_plain", _faults(contract).alias("_faults"))


def _faults(contract: Contract) -> Column:
    """The reasons that the gate already rules out: structure first, then the types of the values."""
    structure = structure_fault(F.col("value"))
    document = F.try_parse_json(F.col("value").cast("string"))
    types = [_type_reason(contract, index, document) for index in range(len(contract.columns))]
    return (
        F.when(F.col("_plain"), F.array().cast(REASONS))
        .when(structure.isNotNull(), F.array(_reason(structure, F.lit(""), F.lit(None))))
        .otherwise(_present(types))
    )


def _type_reason(contract: Contract, index: int, document: Column) -> Column:
    column = contract.columns[index]
    kind = F.schema_of_variant(F.variant_get(document, f"$.{column.name}", "variant"))
    fault = type_fault(column, _text(column.name), kind)
    shown = F.substring(_text(column.name), 1, 64)
    return F.when(fault.isNotNull(), _reason(fault, F.lit(column.name), shown))


def _all_hold(rules: list[Rule]) -> Column:
    return reduce(Column.__and__, [F.coalesce(rule.holds, F.lit(True)) for rule in rules], F.lit(True))


def _broken(rules: list[Rule]) -> Column:
    return _present([F.when(~F.coalesce(r.holds, F.lit(True)), _reason(r.name, r.column, r.detail)) for r in rules])


def _present(reasons: list[Column]) -> Column:
    return F.filter(F.array(*reasons), lambda reason: reason.isNotNull()).cast(REASONS)


def _reason(rule: Column | str, column: Column | str, detail: Column) -> Column:
    name = rule if isinstance(rule, Column) else F.lit(rule)
    where = column if isinstance(column, Column) else F.lit(column)
    return F.struct(name.alias("rule"), where.alias("column"), detail.cast("string").alias("detail"))


def _text(name: str) -> Column:
    return F.col(f"_text.{name}")
