"""Row rules and Great Expectations agree: for each expectation, on the same random rows, nulls included.

Great Expectations runs on pandas; the compiled rules run on Spark in one pass. Both must find the same records, and
with `mostly` have the same overall result.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from deliveries import parity_seed
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from include.change.checkpoint import to_pandas
from include.declare.column_type import Ability, rounded_to_float, shortest_float
from include.declare.contract import Column
from include.declare.contract_rules import Rule, RuleModel, typed_rule
from include.declare.contract_types import COLUMN_TYPES
from include.declare.row_expectations import PAIR, ROW_EXPECTATIONS
from include.declare.yaml_declarations import InvalidValue
from include.ground.optional_packages import import_optional
from spark_jobs.contract.compiled_rules import compiled_rule
from spark_jobs.contract.record_reader import column_type

gx = import_optional("great_expectations")
get_expectation_impl = import_optional("great_expectations.expectations.registry").get_expectation_impl
ROWS = 400
RULES_OF_EACH = 14
COLUMNS = {
    f"{name}_{number}": Column(f"{name}_{number}", name, precision=7, scale=2)
    for name, kind in COLUMN_TYPES.items()
    if not kind.inside
    for number in (1, 2)
}
TYPES = {name: column.kind for name, column in COLUMNS.items()}
WORDS = [
    *["", "a", "b", "ab", "abc", "UA", "ua", "EWR", "x" * 40, "é", "e\u0301", "\U0001f6eb", "ß", "ſ", "١٢", "12", "1"],
    *["a\nb", "a\n", "\na", "a\rb", "a\u2028b", "a\u0085", " a ", "a b", "it's", "100%", "N1\u0001", "null", "{}"],
    *["[1]", '{"a":1}', '{"a":[1,{"b":null}]}', '{"a":1}x', "{'a':1}", "tru e", "true", "NaN", "-Infinity", "01"],
    *['"x"', '"\\u00e9"', '"\\x"', "1.5e3", "1.", "[1 2]", "[,]", "{}{}", "\ufeff{}", "[[[[]]]]", '"a', " 1 "],
]
PATTERNS = [
    *[
        "a",
        "^a",
        "a$",
        "^a$",
        "^.$",
        "^...$",
        "a.b",
        "^[A-Z]{2}$",
        "[^a-z]",
        "^(?:a|b){1,9}?b?$",
        "^(ab|a)?b",
        "x{3,}",
        "é",
    ],
    *[r"^\{.*\}$", r"\.", "^[0-9]*$", "^$", "(?=a)ab", "(?!a)b", "[a-]", "^ ", "1|2", r"[\[{]", "^.*$"],
]
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
UUIDS = [f"123e4567-e89b-12d3-a456-42661417400{digit}" for digit in range(4)]
VALUES: Mapping[str, Callable[[random.Random], Any]] = {
    "uuid": lambda rng: rng.choice(UUIDS),
    "binary": lambda rng: rng.choice([b"", b"\x00", b"a", b"\xff\xfe"]),
    "bigint": lambda rng: rng.choice([*range(-3, 13), 2**31, 2**53 - 1, -(2**40)]),
    "smallint": lambda rng: rng.choice([*range(-3, 13), 2**15 - 1, -(2**15)]),
    "tinyint": lambda rng: rng.choice([*range(-3, 13), 127, -128]),
    "float": lambda rng: rng.choice([0.0, rounded_to_float(0.1), -1.5, 16777216.0, rounded_to_float(3.3e38)]),
    "double": lambda rng: rng.choice([0.0, 0.1, 0.30000000000000004, -1.5, 1e300, 5e-324]),
    "date": lambda rng: (BEGIN + timedelta(days=rng.choice([0, 1, 365, -700_000, 100_000]))).date(),
    "time": lambda rng: rng.choice(["00:00:00", "08:30:00", "08:30:00.5", "08:30:00.51", "23:59:59.999999"]),
    "string": lambda rng: rng.choice(WORDS),
    "integer": lambda rng: rng.choice([*range(-3, 13), 2**31 - 1, -(2**31)]),
    "number": lambda rng: Decimal(rng.choice(["0.00", "0.10", "-0.10", "1.00", "2.50", "99999.99", "-1.25"])),
    "timestamp": lambda rng: BEGIN + timedelta(microseconds=rng.choice([0, 1, 86_400_000_000, 10**12])),
    "boolean": lambda rng: rng.random() < 0.5,
}


def value_as_written(rng: random.Random, kind: str) -> Any:
    """Return a random value as it is written in YAML."""
    value = VALUES[kind](rng)
    if kind == "float":
        return float(shortest_float(value))
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, date) else value


def bounds(rng: random.Random, kind: str) -> dict[str, Any]:
    low, high = sorted([value_as_written(rng, kind), value_as_written(rng, kind)])
    chosen = rng.choice([{"min_value": low}, {"max_value": high}, {"min_value": low, "max_value": high}])
    return chosen | {key: True for key in ("strict_min", "strict_max") if rng.random() < 0.3}


def lengths(rng: random.Random, _: str) -> dict[str, Any]:
    low = rng.randrange(4)
    return rng.choice([{"min_value": low}, {"max_value": low}, {"min_value": low, "max_value": low + 2}])


def value_set(rng: random.Random, kind: str) -> dict[str, Any]:
    return {"value_set": [value_as_written(rng, kind) for _ in range(rng.randrange(1, 8))]}


def patterns(rng: random.Random, _: str) -> dict[str, Any]:
    return {"regex_list": rng.sample(PATTERNS, rng.randrange(1, 4))}


def pair(rng: random.Random, _: str) -> dict[str, Any]:
    chosen = rng.choice([None, "both_values_are_missing", "either_value_is_missing", "neither"])
    return {} if chosen is None else {"ignore_row_if": chosen}


ARGUMENTS: Mapping[str, Callable[[random.Random, str], dict[str, Any]]] = {
    "expect_column_values_to_be_null": lambda rng, kind: {},
    "expect_column_values_to_not_be_null": lambda rng, kind: {},
    "expect_column_values_to_be_between": bounds,
    "expect_column_values_to_be_in_set": value_set,
    "expect_column_values_to_not_be_in_set": value_set,
    "expect_column_values_to_match_regex": lambda rng, kind: {"regex": rng.choice(PATTERNS)},
    "expect_column_values_to_not_match_regex": lambda rng, kind: {"regex": rng.choice(PATTERNS)},
    "expect_column_values_to_match_regex_list": (
        lambda rng, kind: patterns(rng, kind) | rng.choice([{}, {"match_on": "all"}, {"match_on": "any"}])
    ),
    "expect_column_values_to_not_match_regex_list": patterns,
    "expect_column_value_lengths_to_be_between": lengths,
    "expect_column_value_lengths_to_equal": lambda rng, kind: {"value": rng.randrange(4)},
    "expect_column_values_to_be_json_parseable": lambda rng, kind: {},
    "expect_column_pair_values_to_be_equal": pair,
    "expect_column_pair_values_a_to_be_greater_than_b": (
        lambda rng, kind: pair(rng, kind) | rng.choice([{}, {"or_equal": True}])
    ),
}


def comparison(rng: random.Random) -> dict[str, Any]:
    column = rng.choice(sorted(TYPES))
    kind = TYPES[column]
    abilities = kind.abilities
    if rng.random() < 0.2 or not abilities:
        return {"type": "nullity", "column": {"name": column}, "is_null": rng.random() < 0.5}
    written = {"type": "comparison", "column": {"name": column}}
    if Ability.counted in abilities and rng.random() < 0.4:
        values = [value_as_written(rng, kind.name) for _ in range(rng.randrange(1, 6))]
        return written | {"operator": rng.choice(["IN", "NOT_IN"]), "parameter": values}
    operators = ["==", "!="] if Ability.equal in abilities else []
    operators += ["<", "<=", ">", ">="] if Ability.ordered in abilities else []
    return written | {"operator": rng.choice(operators), "parameter": value_as_written(rng, kind.name)}


def condition(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(["one", "one", "and", "or"])
    return comparison(rng) if kind == "one" else {"type": kind, "conditions": [comparison(rng), comparison(rng)]}


def random_kwargs(rng: random.Random, expectation: str) -> dict[str, Any]:
    spec = ROW_EXPECTATIONS[expectation]
    kind = rng.choice([each for each in spec.types if not each.inside])
    names = [name for name, found in TYPES.items() if found.name == kind.name]
    kwargs = dict(zip(spec.columns, rng.sample(names, len(spec.columns)), strict=True))
    kwargs |= ARGUMENTS[expectation](rng, kind.name)
    if rng.random() < 0.6:
        kwargs["row_condition"] = condition(rng)
    return kwargs | {"mostly": rng.choice([1, 1.0, 0.5, 0.9, 0.05])}


def declared(expectation: str, kwargs: Mapping[str, Any]) -> Rule:
    written = {
        "type": "custom",
        "engine": "greatExpectations",
        "name": "random",
        "customProperties": [{"property": "action", "value": "warn"}],
        "implementation": {"type": expectation, "kwargs": dict(kwargs)},
    }
    return typed_rule(RuleModel.model_validate(written), TYPES)


@dataclass(frozen=True)
class Verdict:
    broken: tuple[int, ...]
    success: bool


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    rng = random.Random(parity_seed())
    return [
        {name: None if rng.random() < 0.25 else VALUES[kind.name](rng) for name, kind in TYPES.items()}
        for _ in range(ROWS)
    ]


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    rng = random.Random(parity_seed() + 1)
    return [declared(name, random_kwargs(rng, name)) for name in sorted(ROW_EXPECTATIONS) for _ in range(RULES_OF_EACH)]


@pytest.fixture(scope="module")
def compiled_verdicts(spark: SparkSession, rows: list[dict[str, Any]], rules: list[Rule]) -> list[Verdict]:
    """Evaluate all rules over all rows in one pass."""
    schema = StructType().add("id", LongType())
    for name, column in COLUMNS.items():
        schema.add(name, column_type(column))
    records = spark.createDataFrame([{"id": n, **row} for n, row in enumerate(rows)], schema)
    compiled = [compiled_rule(rule, COLUMNS) for rule in rules]
    columns = [
        F.array(*[c.applies for c in compiled]).alias("applies"),
        F.array(*[c.violated for c in compiled]).alias("b"),
    ]
    found = records.select("id", *columns).orderBy("id").collect()
    return [
        verdict(rule, [row["applies"][n] for row in found], [row["b"][n] for row in found])
        for n, rule in enumerate(rules)
    ]


def verdict(rule: Rule, applies: list[bool], violated: list[bool]) -> Verdict:
    total, bad = sum(applies), [n for n, is_bad in enumerate(violated) if is_bad]
    return Verdict(tuple(bad), total == 0 or (total - len(bad)) / total >= rule.mostly)


@pytest.fixture(scope="module")
def gx_verdicts(rows: list[dict[str, Any]], rules: list[Rule]) -> list[Verdict]:
    batch = pandas_batch(rows)
    return [gx_verdict(batch, rule) for rule in rules]


def pandas_batch(rows: list[dict[str, Any]]) -> Any:
    """Return the rows as checkpoints see them."""
    schema = StructType([StructField(name, column_type(column)) for name, column in COLUMNS.items()])
    frame = to_pandas(pa.Table.from_pylist(rows, to_arrow_schema(schema, timezone="UTC")), list(COLUMNS))
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})


def gx_verdict(batch: Any, rule: Rule) -> Verdict:
    expectation = get_expectation_impl(rule.expectation)(**rule.written)
    result = batch.validate(expectation, result_format={"result_format": "COMPLETE"})
    assert "unexpected_count" in result.result or not result.result, (rule, result.exception_info)
    assert not any(isinstance(info, dict) for info in result.exception_info.values()), (rule, result.exception_info)
    return Verdict(tuple(sorted(result.result.get("unexpected_index_list") or [])), bool(result.success))


def cases() -> Iterator[tuple[str, int]]:
    for n, name in enumerate(sorted(ROW_EXPECTATIONS)):
        yield name, n * RULES_OF_EACH


@pytest.mark.parametrize(("expectation", "first"), cases(), ids=sorted(ROW_EXPECTATIONS))
def test_compiled_rules_agree_with_great_expectations(
    expectation: str, first: int, rules: list[Rule], compiled_verdicts: list[Verdict], gx_verdicts: list[Verdict]
) -> None:
    numbers = range(first, first + RULES_OF_EACH)
    assert {rules[n].expectation for n in numbers} == {expectation}
    for n in numbers:
        assert compiled_verdicts[n] == gx_verdicts[n], rules[n]


def test_random_rules_find_violations(compiled_verdicts: list[Verdict]) -> None:
    """Most rules find violations and some succeed: otherwise the equality above would prove little."""
    assert sum(1 for v in compiled_verdicts if v.broken) > len(compiled_verdicts) / 2
    assert any(v.success for v in compiled_verdicts)
    assert any(v.success and v.broken for v in compiled_verdicts), "no rule succeeded thanks to mostly"


def test_every_row_expectation_is_covered() -> None:
    assert set(ARGUMENTS) == set(ROW_EXPECTATIONS)
    assert {key for spec in ROW_EXPECTATIONS.values() for key in spec.columns} == {"column", *PAIR}


@pytest.mark.parametrize(
    "pattern", [r"\d", r"\w+", r"\bx", r"[\d]", "(?i)a", "[a&&b]", "[[a]b]", r"\p{L}", "(a|b)*", "("]
)
def test_pattern_with_other_meaning_in_java_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        declared("expect_column_values_to_match_regex", {"column": "string_1", "regex": pattern})
    assert refused.value.key == ("implementation", "kwargs", "regex")


def test_pattern_of_any_punctuation_is_accepted() -> None:
    for sign in string.punctuation:
        declared(
            "expect_column_values_to_match_regex",
            {"column": "string_1", "regex": "\\" + sign if sign in r"\^$.|?*+(){}[]/-" else sign},
        )
