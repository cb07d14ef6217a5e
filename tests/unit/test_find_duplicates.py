"""Duplicates of a run are those that a comparison of each record with all earlier ones finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.declare.dataset import Dataset, declared_dataset
from include.ground.settings import Settings
from spark_jobs.backends.local.duckdb_session import SMALL_RUN, DuckSession, session_for
from spark_jobs.backends.local.identities import find_duplicates, rank_copies

AT = datetime(2024, 1, 1, tzinfo=UTC)
DATASET = declared_dataset(Settings(), "flights")
Find = Callable[[DuckSession, Dataset, str, str], None]
Row = tuple[int, int, int, str]
"""Batch, partition, offset, identity."""
NUMBERS = st.sampled_from(["e0", "e1", "e2", "e3", "e4", "e5"])


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Return rows of a run and of silver before it: places are unique, identities of silver too."""
    places = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=14, unique=True))
    fresh = [(draw(st.integers(5, 7)), *place, draw(NUMBERS)) for place in places]
    known = draw(st.lists(NUMBERS, max_size=4, unique=True))
    return fresh, [(draw(st.integers(0, 4)), 0, 100 + n, identity) for n, identity in enumerate(known)]


def expected(fresh: Sequence[Row], known: Sequence[Row]) -> dict[tuple[int, int], str]:
    """Return the winner of each duplicate by its place."""
    first: dict[str, Row] = {}
    found = {}
    for row in sorted([*known, *fresh]):
        winner = first.setdefault(row[3], row)
        if row is not winner:
            found[row[1], row[2]] = "/".join(map(str, winner[:3]))
    return found


def table(rows: Sequence[Row], **more: object) -> pa.Table:
    batches, partitions, offsets, identities = ([row[n] for row in rows] for n in range(4))
    columns = {
        "_batch_id": pa.array(batches, pa.int64()),
        "_partition": pa.array(partitions, pa.int32()),
        "_offset": pa.array(offsets, pa.int64()),
        "event_id": pa.array(identities, pa.string()),
    }
    return pa.table(columns | {name: pa.array([value] * len(rows)) for name, value in more.items()})


@pytest.mark.parametrize("run", [SMALL_RUN, SMALL_RUN + 1])
@pytest.mark.parametrize("find", [find_duplicates, rank_copies])
@settings(max_examples=60, deadline=None)
@given(rows=records())
def test_each_identity_has_one_winner(find: Find, run: int, rows: tuple[list[Row], list[Row]]) -> None:
    fresh, known = rows
    with session_for(run) as duck:
        duck.view_arrow("accepted", table(fresh, _topic="flights", _timestamp=AT))
        duck.view_arrow("known", table(known))
        find(duck, DATASET, "accepted", "known")
        found = duck.rows("select _partition, _offset, _winner, _topic, event_id from duplicates")
    assert {(partition, offset): winner for partition, offset, winner, *_ in found} == expected(fresh, known)
    assert len(found) == len(expected(fresh, known))
