"""What the demo of the workloads compares between orders of arrival."""

from __future__ import annotations

import polars as pl

from include.workloads.workload_checks import bytes_of_rows

ROWS = pl.DataFrame({"text": [f"a text of over twelve bytes, {n:04}" for n in range(2000)], "number": range(2000)})


def test_equal_rows_have_equal_bytes_however_they_were_read() -> None:
    in_other_chunks = pl.concat([ROWS[n::7] for n in range(7)], rechunk=False)
    assert in_other_chunks.n_chunks() == 7
    assert bytes_of_rows(in_other_chunks) == bytes_of_rows(ROWS)


def test_other_rows_have_other_bytes() -> None:
    assert bytes_of_rows(ROWS[:-1]) != bytes_of_rows(ROWS)
    changed = ROWS.with_columns(pl.when(number=77).then(pl.lit("a text")).otherwise("text").alias("text"))
    assert bytes_of_rows(changed) != bytes_of_rows(ROWS)
