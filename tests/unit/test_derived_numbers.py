"""The number of a derived dataset's next run: no table may skip it, or readers lose the sources' changes silently."""

from __future__ import annotations

from itertools import product

import pytest

from spark_jobs.stream.derived import RunNumbers


@pytest.mark.parametrize(
    ("published", "committed", "begun", "number", "whole", "kept"),
    [
        (-1, -1, -1, 0, False, False),  # the first run
        (4, 4, -1, 5, False, False),  # a run over new sources
        (4, 4, 5, 6, True, False),  # run 5 was begun, its sources are gone; no table has it
        (4, 5, 5, 6, True, True),  # a table has run 5, which failed twice
        (4, 5, 6, 7, True, True),  # a table has run 5, and the run in its place has failed
        (4, 5, -1, 6, True, True),  # a table has run 5, and run.json was removed
        (4, 6, -1, 7, True, True),  # the publication was restored from a backup
        (-1, 0, 1, 2, True, True),  # the same before anything is published
        (-1, 0, -1, 1, True, True),
    ],
)
def test_next_run(published: int, committed: int, begun: int, number: int, whole: bool, kept: bool) -> None:
    numbers = RunNumbers(published, committed, begun)
    assert (numbers.next, numbers.is_begun, numbers.is_ahead) == (number, whole, kept)


def test_no_table_skips_the_next_run_and_a_table_that_is_ahead_is_computed_as_a_whole() -> None:
    for published, committed, begun in product(range(-1, 4), repeat=3):
        numbers = RunNumbers(published, committed, begun)
        assert numbers.next > max(published, committed, begun)
        assert numbers.is_begun or committed <= published
