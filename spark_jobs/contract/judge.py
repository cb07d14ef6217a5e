"""A bronze batch, judged: every record typed, each with the reasons why it is not accepted."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.catalog.contract import Contract
from spark_jobs.contract.fields import Rule, plainly_typed, row_rules, type_fault, typed, value_rules
from spark_jobs.contract.gate import joined_values, plain_values
from spark_jobs.contract.structure import structure_fault

REASONS = "array<struct<rule:string,column:string,detail:string>>"
COORDINATES = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp"}


def judged_records(bronze: DataFrame, contract: Contract) -> DataFrame:
    """Return one row per bronze row: the contract's columns, the record's coordinates, and `_reasons`.

    Columns: those of the contract, typed; `_topic, _partition, _offset, _timestamp, _batch_id`; `_reasons`
    (array of rule, column, detail; empty = the record keeps the contract). A record with a fault in its
    structure or in a value's type has just these reasons; any other has one per rule that it breaks.
    """
    typed_rows = _typed_records(_read_fields(bronze, contract), contract)
    rules = [rule for c in contract.columns for rule in value_rules(c, contract, F.col("_timestamp"))]
    rules += row_rules(contract)
    plain_is_good = F.col("_plain") & _all_hold([rule for rule in rules if not rule.proven])
    reasons = (
        F.when(plain_is_good, F.array().cast(REASONS))
        .when(F.size("_faults") > 0, F.col("_faults"))
        .otherwise(_broken(rules))
    )
    columns = [column.name for column in contract.columns]
    return typed_rows.select(*columns, *COORDINATES.values(), "_batch_id", reasons.alias("_reasons"))


def _read_fields(bronze: DataFrame, contract: Contract) -> DataFrame:
    """A plain record's values in `_plain_values`; of any other each field's text in `_text`.

    Three selections, since an expression that is used twice in one of them is computed twice.
    """
    text = F.col("value").cast("string")
    schema = ", ".join(f"`{column.name}` string" for column in contract.columns)
    coordinates = [F.col(name).alias(alias) for name, alias in COORDINATES.items()]
    joined = bronze.select(*coordinates, "_batch_id", "value", joined_values(text, contract).alias("_joined"))
    taken = joined.withColumn("_plain_values", plain_values(text, F.col("_joined"))).drop("_joined")
    return taken.withColumn("_text", F.when(F.col("_plain_values").isNull(), F.from_json(text, schema)))


def _typed_records(fields: DataFrame, contract: Contract) -> DataFrame:
    plain = F.col("_plain_values").isNotNull()
    columns = [
        F.when(plain, plainly_typed(column, F.get("_plain_values", F.lit(index))))
        .otherwise(typed(column, _text(column.name)))
        .alias(column.name)
        for index, column in enumerate(contract.columns)
    ]
    faults = F.when(~plain, _faults(contract))
    return fields.select(*columns, *COORDINATES.values(), "_batch_id", plain.alias("_plain"), faults.alias("_faults"))


def _faults(contract: Contract) -> Column:
    """The reasons that a plain record cannot have: of its structure, else of the types of its values."""
    structure = structure_fault(F.col("value"))
    document = F.try_parse_json(F.col("value").cast("string"))
    types = [_type_reason(contract, index, document) for index in range(len(contract.columns))]
    return F.when(structure.isNotNull(), F.array(_reason(structure, F.lit(""), F.lit(None)))).otherwise(_present(types))


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
