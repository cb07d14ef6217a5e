"""Differences of rows: pairs by key, counts of all, the first of each kind with both values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.history.row_differences import SAMPLES, Differences, DifferentRow, row_differences
from spark_jobs.tables.delta_table import Table

SCHEMA = pa.schema([("device", pa.string()), ("litres", pa.int64()), ("total", pa.float64())])
TABLE = cast("Table", SimpleNamespace(spec=SimpleNamespace(name="gold.hours"), rows=7))
Row = tuple[str | None, int | None, float | None]


def differences(published: list[Row], recomputed: list[Row], doubles: tuple[str, ...] = ()) -> Differences:
    with duckdb_session() as duck:
        for view, rows in (("removed", published), ("added", recomputed)):
            values: list[dict[str, Any]] = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
            duck.view_arrow(view, pa.Table.from_pylist(values, schema=SCHEMA))
        return row_differences(duck, TABLE, ["device"], ["device"], doubles)


def test_rows_are_paired_by_key_also_when_it_is_null() -> None:
    found = differences(
        [(None, 1, None), ("a", 1, 0.5), ("b", 1, 1.0)], [(None, 2, None), ("a", None, 0.5), ("c", 1, 1.0)]
    )
    assert (found.table, found.rows) == ("gold.hours", 7)
    assert found.counts == {"different": 2, "missing": 1, "surplus": 1}
    assert list(found.samples) == [
        DifferentRow("different", "device=a", {"litres": ("1", None)}),
        DifferentRow("different", "device=None", {"litres": ("1", "2")}),
        DifferentRow("missing", "device=c", {}),
        DifferentRow("surplus", "device=b", {}),
    ]


def test_repeated_row_is_one_surplus() -> None:
    assert differences([("a", 1, None), ("a", 1, None)], [("a", 1, None)]).counts == {"surplus": 1}


def test_samples_are_bounded_and_all_rows_are_counted() -> None:
    found = differences([(f"d{n:02}", n, None) for n in range(20)], [])
    assert found.counts == {"surplus": 20}
    assert [row.label for row in found.samples] == [f"device=d{n:02}" for n in range(SAMPLES)]


def test_sums_of_doubles_differ_beyond_their_last_digits() -> None:
    published: list[Row] = [("a", 1, 0.3 + 1e-13), ("b", 1, 0.3 + 1e-6)]
    recomputed: list[Row] = [("a", 1, 0.3), ("b", 1, 0.3)]
    assert differences(published, recomputed).counts == {"different": 2}
    assert differences(published, recomputed, ("total",)).counts == {"different": 1}
