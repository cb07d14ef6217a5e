"""Comparisons of releases of which one has a column in a wider type: its values are compared, and its type is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.compute as pc
import pytest
from test_comparison import ROUTES, compared, in_terminal, page, sides_of

from include.change.compare import compare
from include.plans.comparison import NEEDS_APPROVAL, WITHIN_POLICY


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (pl.Int32, pl.Int64, "type widened int → bigint"),
        (pl.Int16, pl.Int32, "type widened smallint → int"),
        (pl.Decimal(9, 2), pl.Decimal(18, 2), "type widened decimal(9,2) → decimal(18,2)"),
    ],
)
def test_wider_type_changes_no_row(tmp_path: Path, old: Any, new: Any, words: str) -> None:
    """Of a measure, and of a key: rows of both sides meet although their columns have other types."""
    before = ROUTES.with_columns(pl.col("departed").cast(old), origin=pl.Series([1, 2, 3]).cast(old))
    after = ROUTES.with_columns(pl.col("departed").cast(new), origin=pl.Series([1, 2, 3]).cast(new))
    found = compared(tmp_path, before, after)
    (table,) = found.tables
    assert (table.differing, table.retyped, sorted(table.widened)) == (0, {}, ["departed", "origin"])
    assert found.verdict == WITHIN_POLICY
    assert words in page(found)
    assert words in in_terminal(found)


def test_values_of_a_wider_column_are_compared(tmp_path: Path) -> None:
    before = ROUTES.with_columns(pl.col("departed").cast(pl.Int32))
    found = compared(tmp_path, before, ROUTES.with_columns(departed=pl.Series([1, 2**40, None])))
    assert (found.tables[0].changed, found.verdict) == (1, NEEDS_APPROVAL)
    assert found.tables[0].samples["changed"][0].new == [{"departed": 2**40}]


@pytest.mark.parametrize(("old", "new"), [(pl.Int64, pl.Int32), (pl.Decimal(9, 2), pl.Decimal(18, 3))])
def test_other_type_needs_approval(tmp_path: Path, old: Any, new: Any) -> None:
    found = compared(tmp_path, *(ROUTES.with_columns(pl.col("departed").cast(kind)) for kind in (old, new)))
    assert (list(found.tables[0].retyped), found.tables[0].widened) == (["departed"], {})
    assert found.verdict == NEEDS_APPROVAL


def test_rows_that_do_not_count_are_left_out_of_a_wider_column(tmp_path: Path) -> None:
    tables = [ROUTES.with_columns(pl.col("departed").cast(kind)) for kind in (pl.Int32, pl.Int64)]
    tables[1] = tables[1].with_columns(departed=pl.Series([1, 2, 7]))
    found = []
    for condition in ({}, {"gold.route_days": pc.field("day") == "a"}):
        sides = [replace(side, conditions=condition) for side in sides_of(tmp_path / str(len(found)), *tables)]
        found.append(compare(*sides, 3, 0.0, lambda _: None).tables[0])
    assert [(table.changed, table.new_rows, list(table.widened)) for table in found] == [
        (1, 3, ["departed"]),
        (0, 2, ["departed"]),
    ]


def test_column_of_floats_that_is_rebuilt_as_doubles_is_compared_as_floats(tmp_path: Path) -> None:
    """A double has digits of the record that its float had lost: no reader's value changed."""
    before = ROUTES.with_columns(departed=pl.Series([0.1, 16_777_216.0, None], dtype=pl.Float32))
    found = compared(tmp_path / "same", before, ROUTES.with_columns(departed=pl.Series([0.1, 16_777_217.0, None])))
    assert (found.tables[0].differing, found.verdict) == (0, WITHIN_POLICY)
    assert "type widened float → double, compared as float" in in_terminal(found)
    assert "type widened float → double, compared as float" in page(found)
    found = compared(tmp_path / "other", before, ROUTES.with_columns(departed=pl.Series([0.100001, 1e300, None])))
    assert (found.tables[0].changed, found.verdict) == (2, NEEDS_APPROVAL)
