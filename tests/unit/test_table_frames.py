"""A rule that is evaluated on parts of a table has the result that Great Expectations gives for the whole table."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pd
import pytest
from test_quality_checks import rule

from include.change import checkpoint as gx_checkpoint
from include.change import checkpoint as table_frames
from include.change.checkpoint import Frame, frames_of, to_pandas
from include.declare.contract_rules import Rule, referenced_columns
from include.read import published_tables

LOW = {"type": "comparison", "column": {"name": "rows"}, "operator": "<", "parameter": 3}
VALUES = {"column": "name", "value_set": ["a", "b"]}


def of(expectation: str, **kwargs: Any) -> Rule:
    return rule(expectation, gold=True, **kwargs)


RULES: Mapping[str, Rule] = {
    "null": of("expect_column_values_to_be_null", column="name", mostly=0.2),
    "not null": of("expect_column_values_to_not_be_null", column="name", mostly=0.8),
    "between": of("expect_column_values_to_be_between", column="rows", min_value=1, max_value=7),
    "times": of("expect_column_values_to_be_between", column="at", min_value="2024-01-01", max_value="2024-02-01"),
    "in set": of("expect_column_values_to_be_in_set", **VALUES, mostly=0.4),
    "not in set": of("expect_column_values_to_not_be_in_set", **VALUES),
    "regex": of("expect_column_values_to_match_regex", column="name", regex="^[a-c]$", mostly=0.6),
    "lengths": of("expect_column_value_lengths_to_be_between", column="name", max_value=1),
    "condition": of("expect_column_values_to_be_in_set", **VALUES, row_condition=LOW),
    "pair": of("expect_column_pair_values_to_be_equal", column_A="name", column_B="day"),
    "pair mostly": of("expect_column_pair_values_to_be_equal", column_A="name", column_B="day", mostly=0.3),
    "greater": of("expect_column_pair_values_a_to_be_greater_than_b", column_A="rows", column_B="more", mostly=0.5),
    "unique": of("expect_column_values_to_be_unique", column="name"),
    "unique mostly": of("expect_column_values_to_be_unique", column="key", mostly=0.7),
    "unique number": of("expect_column_values_to_be_unique", column="rows"),
    "unique where": of("expect_column_values_to_be_unique", column="name", row_condition=LOW),
    "together unique": of("expect_compound_columns_to_be_unique", column_list=["name", "day"]),
    "together mostly": of("expect_compound_columns_to_be_unique", column_list=["name", "key"], mostly=0.5),
    "distinct in set": of("expect_column_distinct_values_to_be_in_set", **VALUES),
    "distinct contain": of("expect_column_distinct_values_to_contain_set", **VALUES),
    "distinct equal": of("expect_column_distinct_values_to_equal_set", **VALUES),
    "count of distinct": of("expect_column_unique_value_count_to_be_between", column="name", min_value=2, max_value=3),
    "rows": of("expect_table_row_count_to_be_between", min_value=1, max_value=30),
    "mean": of("expect_column_mean_to_be_between", column="rows", min_value=2),
    "missing column": of("expect_column_values_to_be_unique", column="colour"),
    "missing in rows": of("expect_column_values_to_not_be_null", column="colour"),
}


def table(seed: int) -> pa.Table:
    """Return a table whose columns repeat values and have nulls; the first has no rows, the second nulls alone."""
    dice = random.Random(seed)
    count = 0 if seed == 0 else dice.randrange(1, 60)

    def some(values: list[Any]) -> list[Any]:
        return [None if seed == 1 or dice.random() < 0.2 else dice.choice(values) for _ in range(count)]

    start = datetime(2023, 12, 20, tzinfo=UTC)
    return pa.table(
        {
            "name": pa.array(some(["a", "b", "c", "dd"]), pa.string()),
            "day": pa.array(some(["a", "b"]), pa.string()),
            "key": pa.array(some([f"k{n}" for n in range(90)]), pa.string()),
            "rows": pa.array(some(list(range(9))), pa.int64()),
            "more": pa.array(some(list(range(9))), pa.int64()),
            "at": pa.array(some([start + timedelta(days=n) for n in range(60)]), pa.timestamp("us", tz="UTC")),
        }
    )


def whole(rows: Any, of_rule: Rule) -> Iterator[Frame]:
    found = rows.to_table(columns=[name for name in rows.schema.names if name in referenced_columns(of_rule)] or None)
    yield Frame(to_pandas(found, referenced_columns(of_rule)))


def result(rows: pa.Table, of_rule: Rule) -> tuple[Any, ...]:
    """Return verdict, observed value, and all counts of Great Expectations' result."""
    source = gx_checkpoint._context().data_sources.add_or_update_pandas(gx_checkpoint.SOURCE)
    data = source.add_dataframe_asset("gold.days").add_batch_definition_whole_dataframe("gold.days")
    found = gx_checkpoint._evaluated(data, pd.dataset(rows), of_rule)
    counts = {key: value for key, value in found.result.items() if not key.startswith("partial") and key != "details"}
    return found.success, gx_checkpoint._observed(found), counts


@pytest.fixture(autouse=True)
def _without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are tiny here: collecting garbage after each would take most of the time."""
    monkeypatch.setattr(table_frames.gc, "collect", lambda: 0)


@pytest.mark.parametrize("name", RULES)
def test_parts_give_the_result_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        rows = table(seed)
        with monkeypatch.context() as patch:
            patch.setattr(table_frames, "CHUNK", 17)
            patch.setattr(table_frames, "BATCH", 3)
            patch.setattr(published_tables, "BATCH", 3)
            patch.setattr(table_frames, "HASHES", 13)
            patch.setattr(table_frames, "REPEATED", 5)
            in_parts = result(rows, RULES[name])
            patch.setattr(gx_checkpoint, "frames_of", whole)
            assert in_parts == result(rows, RULES[name]), f"table {seed}"


def test_texts_are_never_whole_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"name": [f"n{n}" for n in range(100)], "rows": list(range(100))})
    monkeypatch.setattr(table_frames, "CHUNK", 7)
    monkeypatch.setattr(table_frames, "BATCH", 3)
    monkeypatch.setattr(published_tables, "BATCH", 3)
    for each in ("regex", "unique", "rows"):
        longest = max(len(frame.rows) * ("name" in frame.rows) for frame in frames_of(pd.dataset(rows), RULES[each]))
        assert longest <= 9 or each == "rows", each


def test_texts_that_are_repeated_are_never_whole_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"name": [f"n{n // 3}" for n in range(99)] + [None, "once"]})
    monkeypatch.setattr(table_frames, "REPEATED", 7)
    monkeypatch.setattr(table_frames, "BATCH", 3)
    monkeypatch.setattr(published_tables, "BATCH", 3)
    frames = list(frames_of(pd.dataset(rows), RULES["unique"]))
    assert max(len(frame.rows) for frame in frames) <= 9
    assert sum(len(frame.rows) for frame in frames) == 99
    assert all((frame.rows["name"].value_counts() == 3).all() for frame in frames), "a value is in two frames"
    assert (frames[-1].others, frames[-1].nulls) == (2, 1)


@pytest.mark.parametrize("same", [8, 9, 10, 500])
def test_one_value_of_most_rows_is_never_whole_in_a_frame(monkeypatch: pytest.MonkeyPatch, same: int) -> None:
    rows = pa.table({"name": ["same"] * same + ["a", "once", "a"]})
    monkeypatch.setattr(table_frames, "REPEATED", 7)
    monkeypatch.setattr(table_frames, "BATCH", 3)
    monkeypatch.setattr(published_tables, "BATCH", 3)
    frames = list(frames_of(pd.dataset(rows), RULES["unique"]))
    assert max(len(frame.rows) for frame in frames) <= 9
    assert sum(len(frame.rows) for frame in frames) == same + 2
    assert all((frame.rows["name"].value_counts() > 1).all() for frame in frames), "a value is alone in a frame"
    assert frames[-1].others == 1


def test_one_value_with_nan_of_most_rows_is_never_whole_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    together = of("expect_compound_columns_to_be_unique", column_list=["name", "size"])
    rows = pa.table({"name": ["same"] * 500 + ["once"], "size": [float("nan")] * 500 + [1.0]})
    monkeypatch.setattr(table_frames, "REPEATED", 7)
    monkeypatch.setattr(table_frames, "BATCH", 3)
    monkeypatch.setattr(published_tables, "BATCH", 3)
    frames = list(frames_of(pd.dataset(rows), together))
    assert max(len(frame.rows) for frame in frames) <= 9
    assert sum(len(frame.rows) for frame in frames) == 500
    assert frames[-1].others == 1
