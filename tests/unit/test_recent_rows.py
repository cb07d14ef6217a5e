"""Rows that were added last are found by place, and the oldest are forgotten beyond a limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.backends.local.arrow_files import Words
from spark_jobs.backends.local.identities import RecentRows


def places(*numbers: int) -> Words:
    return np.array(numbers, np.uint64)


def rows(*names: str) -> pa.Table:
    return pa.table({"name": pa.array(names)})


def names_at(recent: RecentRows, *numbers: int) -> tuple[list[str], list[int]]:
    found, missing = recent.find(places(*numbers))
    return [name for table in found for name in table["name"].to_pylist()], missing.tolist()


def test_each_row_is_found_at_its_place_however_places_were_ordered() -> None:
    recent = RecentRows()
    recent.add(places(9, 2, 5), rows("nine", "two", "five"))
    recent.add(places(1), rows("one"))
    assert names_at(recent, 1, 2, 3, 9, 10) == (["two", "nine", "one"], [3, 10])


def test_nothing_is_found_among_no_rows() -> None:
    recent = RecentRows()
    recent.add(places(), rows())
    assert names_at(recent, 1) == ([], [1])
    recent.add(places(1), rows("one"))
    recent.clear()
    assert names_at(recent, 1) == ([], [1])


@pytest.mark.parametrize(("limit", "kept"), [(3, [1, 2, 3]), (2, [2, 3]), (1, [3]), (0, [])])
def test_oldest_rows_are_forgotten_beyond_the_limit(limit: int, kept: list[int]) -> None:
    each = rows("0123456789").nbytes + 16
    recent = RecentRows(limit * each)
    for number in (1, 2, 3):
        recent.add(places(number), rows("0123456789"))
    assert sorted({1, 2, 3} - set(names_at(recent, 1, 2, 3)[1])) == kept


def test_small_additions_are_merged_and_large_ones_are_not() -> None:
    each, recent = rows("0123456789").nbytes + 16, RecentRows()
    limited = RecentRows(1_600 * each)
    for number in range(2_000):
        for one in (recent, limited):
            one.add(places(number), rows(f"{number:010}"))
    assert len(recent._chunks) <= 12
    assert names_at(recent, 0, 1_000, 1_999, 2_000) == (["0000000000", "0000001000", "0000001999"], [2_000])
    assert max(len(chunk.places) for chunk in limited._chunks) <= 2 * 1_600 // 8 + 1
    assert names_at(limited, *range(800, 2_000))[1] == []
    assert len(names_at(limited, *range(2_000))[1]) >= 400
