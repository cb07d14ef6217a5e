"""Rules on decimals and whole numbers have the verdicts of Python's decimals, whatever the digits of both sides.

Great Expectations reads decimals as doubles, so it is no oracle for more than 15 digits.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Context, Decimal
from typing import Any

import pytest
from deliveries import parity_seed
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from include.declare.contract import Column, Contract
from include.declare.contract_rules import Rule, RuleModel, typed_rule
from spark_jobs.contract.compiled_rules import compiled_rule
from spark_jobs.contract.record_reader import column_type
from spark_jobs.contract.validator import value_rules

DIGITS = {"whole": (38, 0), "wide": (38, 6), "parts": (38, 38), "small": (7, 2), "half": (38, 19)}
COLUMNS = {name: Column(name, "number", precision=p, scale=s) for name, (p, s) in DIGITS.items()}
COLUMNS |= {name: Column(name, name) for name in ("integer", "bigint")}
LIMITS = {"integer": 2**31 - 1, "bigint": 2**63 - 1}
ROWS, RULES_OF_EACH = 60, 40
EXACT = Context(prec=100)
WRITTEN: list[int | float] = [
    0,
    -0.5,
    0.5,
    1,
    -1,
    0.1,
    1e-7,
    -1e-7,
    1e-30,
    1e-39,
    -1e-40,
    2.5,
    99999.99,
    99999.995,
    1e18,
]
WRITTEN += [10**38 - 1, 1 - 10**38, 10**38, 10**32 - 1, 10**19 - 1, 1e19, 1e40, -1e300, 2**63 - 1, 2**63, 10**2000]
WRITTEN[-1:-1] = [2**31, -(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1]
SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
SETS = {"IN": "==", "NOT_IN": "!="}
Row = Mapping[str, Decimal | int | None]


def value(rng: random.Random, column: Column) -> Decimal | int | None:
    if rng.random() < 0.1:
        return None
    if column.type != "number":
        limit = LIMITS[column.type]
        return rng.choice([0, 1, -1, 2, limit, -limit, -limit - 1])
    unit, end = Decimal(1).scaleb(-column.scale), Decimal(10) ** (column.precision - column.scale)
    near = [Decimal(str(written)) + rng.choice([-1, 0, 0, 1]) * unit for written in rng.sample(WRITTEN[:-1], 6)]
    fits = [EXACT.quantize(each, unit) for each in near if -end + unit < each < end - unit]
    return rng.choice([*fits, EXACT.subtract(end, unit), EXACT.subtract(unit, end), unit])


def written(rng: random.Random, *, is_whole: bool) -> int | float:
    return rng.choice([each for each in WRITTEN if isinstance(each, int) or not is_whole])


def expectation(rng: random.Random, kind: str) -> tuple[dict[str, Any], Callable[[Row], bool]]:
    """Return an expectation's arguments, and whether a row without nulls keeps it."""
    name = rng.choice(sorted(COLUMNS))
    is_whole = COLUMNS[name].type != "number"
    if kind == "between":
        bound, is_least, is_strict = written(rng, is_whole=False), rng.random() < 0.5, rng.random() < 0.5
        sign = (">" if is_least else "<") + ("" if is_strict else "=")
        key, strict = ("min_value", "strict_min") if is_least else ("max_value", "strict_max")
        right = Decimal(str(bound)) if isinstance(bound, float) else bound
        return {"column": name, key: bound, strict: is_strict}, lambda row: SIGNS[sign](row[name], right)
    if kind in ("in_set", "not_in_set"):
        values = [written(rng, is_whole=is_whole) for _ in range(rng.randrange(1, 4))]
        rights = {Decimal(str(each)) if isinstance(each, float) else each for each in values}
        return {"column": name, "value_set": values}, lambda row: (row[name] in rights) == (kind == "in_set")
    others = [each for each in COLUMNS if (COLUMNS[each].type == "number") != is_whole and each != name]
    other = rng.choice(others)
    pair = {"column_A": name, "column_B": other, "ignore_row_if": "either_value_is_missing"}
    if kind == "equal":
        return pair, lambda row: row[name] == row[other]
    or_equal = rng.random() < 0.5
    return pair | {"or_equal": or_equal}, lambda row: SIGNS[">=" if or_equal else ">"](row[name], row[other])


def condition(rng: random.Random) -> tuple[dict[str, Any], Callable[[Row], bool]]:
    name, sign = rng.choice(sorted(COLUMNS)), rng.choice([*SIGNS, *SETS])
    parameter = written(rng, is_whole=COLUMNS[name].type != "number")
    right = Decimal(str(parameter)) if isinstance(parameter, float) else parameter
    term: dict[str, Any] = {"type": "comparison", "column": {"name": name}, "operator": sign}
    term["parameter"] = [parameter] if sign in SETS else parameter
    compare = SIGNS[SETS.get(sign, sign)]
    return term, lambda row: compare is operator.ne if row[name] is None else compare(row[name], right)


EXPECTATIONS = {
    "between": "expect_column_values_to_be_between",
    "in_set": "expect_column_values_to_be_in_set",
    "not_in_set": "expect_column_values_to_not_be_in_set",
    "equal": "expect_column_pair_values_to_be_equal",
    "greater": "expect_column_pair_values_a_to_be_greater_than_b",
}


def rules(rng: random.Random) -> Iterator[tuple[Rule, Callable[[Row], bool]]]:
    """Yield rules, and whether a row violates each."""
    for kind, name in EXPECTATIONS.items():
        for _ in range(RULES_OF_EACH):
            (kwargs, keeps), (term, is_about) = expectation(rng, kind), condition(rng)
            named = [each for key, each in kwargs.items() if key.startswith("column")]
            if rng.random() < 0.5:
                kwargs["row_condition"] = term
            else:
                is_about = always
            model: dict[str, Any] = {"type": "custom", "engine": "greatExpectations", "name": "random"}
            model["customProperties"] = [{"property": "action", "value": "warn"}]
            model["implementation"] = {"type": name, "kwargs": kwargs}
            kinds = {each: column.kind for each, column in COLUMNS.items()}
            yield typed_rule(RuleModel.model_validate(model), kinds), violation(named, keeps, is_about)


def always(_: Row) -> bool:
    return True


def violation(named: list[str], keeps: Callable[[Row], bool], is_about: Callable[[Row], bool]) -> Callable[[Row], bool]:
    return lambda row: all(row[name] is not None for name in named) and is_about(row) and not keeps(row)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Decimal | int | None]]:
    rng = random.Random(parity_seed())
    return [{name: value(rng, column) for name, column in COLUMNS.items()} for _ in range(ROWS)]


def found_by_spark(spark: SparkSession, rows: list[Any], columns: list[Any]) -> list[list[Any]]:
    schema = StructType().add("id", IntegerType())
    for name, column in COLUMNS.items():
        schema.add(name, column_type(column))
    records = spark.createDataFrame([{"id": n, **row} for n, row in enumerate(rows)], schema)
    return [row["found"] for row in records.select("id", F.array(*columns).alias("found")).orderBy("id").collect()]


def test_rules_have_the_verdicts_of_exact_decimals(spark: SparkSession, rows: list[Row]) -> None:
    declared = list(rules(random.Random(parity_seed() + 1)))
    found = found_by_spark(spark, rows, [compiled_rule(rule, COLUMNS).violated for rule, _ in declared])
    expected = [[is_violated(row) for _, is_violated in declared] for row in rows]
    wrong = [
        (row, rule.written)
        for row, verdicts, right in zip(rows, found, expected, strict=True)
        for (rule, _), one, other in zip(declared, verdicts, right, strict=True)
        if one != other
    ]
    assert wrong == []
    violated = sum(map(sum, expected))
    assert len(declared) * ROWS / 5 < violated < len(declared) * ROWS / 2


def test_bounds_of_a_contract_have_the_verdicts_of_exact_decimals(spark: SparkSession, rows: list[Row]) -> None:
    bounded = [
        replace(column, minimum=column.kind.value(bound))
        for column in COLUMNS.values()
        for bound in WRITTEN
        if isinstance(bound, column.kind.yaml)
    ]
    held = [value_rules(column, Contract("c", "1", (), (), ()), F.lit(None))[0].holds for column in bounded]
    for row, verdicts in zip(rows, found_by_spark(spark, rows, held), strict=True):
        for column, verdict in zip(bounded, verdicts, strict=True):
            given = row[column.name]
            right = verdict is not False if given is None else verdict == (given >= column.minimum)  # type: ignore[operator]
            assert right, (given, column)
