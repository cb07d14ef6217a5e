"""Why children are bad, as Spark columns: two elements of one identity, and which reasons reject elements alone."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.declare.children import BAD_CHILDREN, Children, Elements
from include.declare.contract import Contract

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


def is_distinct(children: Children) -> tuple[Column, Column]:
    """Return whether no two elements have one identity, and the reasons: the first of them keeps it."""
    found = F.transform(children.column, lambda each: _identity(children, each))
    holds = F.size(F.array_distinct(found)) == F.size(found)

    def reason(each: Column, index: Column) -> Column:
        path = F.concat(F.lit(f"{children.column}["), index.cast("string"), F.lit("]"))
        named = F.lit("duplicate_child").alias("rule"), path.alias("column")
        detail = F.substring(each.cast("string"), 1, SHOWN).alias("detail")
        return F.when(F.array_position(found, each) <= index, F.struct(*named, detail))

    return holds, F.filter(F.transform(found, reason), lambda each: each.isNotNull())


def _identity(children: Children, element: Column) -> Column:
    values = [element[name] for name in children.identity]
    return values[0] if len(values) == 1 else F.to_json(F.struct(*values), JSON_OPTIONS)


def with_reasons_split(lenient: Sequence[Elements], rows: DataFrame) -> DataFrame:
    """Return rows with `_faults` and BROKEN as rows with `_reasons`, against the record, and BAD_CHILDREN.

    What is wrong with a type hides what its value breaks: in the record, and in each of these children.
    """
    pattern, nothing = "|".join(f"(?:{each.path})" for each in lenient), F.filter(BROKEN, lambda _: F.lit(False))
    faults, broken = F.coalesce("_faults", nothing), F.col(BROKEN)

    def element(reason: Column) -> Column:
        return F.regexp_extract(reason["column"], pattern, 0)

    def of_record(reasons: Column) -> Column:
        return F.filter(reasons, lambda each: element(each) == "")

    def of_children(reasons: Column) -> Column:
        return F.filter(reasons, lambda each: element(each) != "")

    faulty = F.transform(faults, element)
    unhidden = F.filter(of_children(broken), lambda each: ~F.array_contains(faulty, element(each)))
    against = F.when(F.size(of_record(faults)) > 0, of_record(faults)).otherwise(of_record(broken))
    kept = [F.col(name) for name in rows.columns if name not in ("_faults", BROKEN)]
    return rows.select(*kept, against.alias("_reasons"), F.concat(of_children(faults), unhidden).alias(BAD_CHILDREN))
