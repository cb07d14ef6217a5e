"""The identity index finds every entry of a hash, in bounded memory, however its segments were merged."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.backends.local import identity_index
from spark_jobs.backends.local.arrow_files import packed_places, unpacked_places
from spark_jobs.backends.local.identity_index import (
    FACTOR,
    Identities,
    IndexDamaged,
    Segment,
    find_places,
    open_segment,
    with_identities,
)

DAY = 86_400_000_000
ENTRY = st.tuples(st.integers(0, 12), st.integers(-3, 3), st.integers(0, 40))
Entry = tuple[int, int, int]


def identities(entries: list[Entry]) -> Identities:
    """Return identities of (hash, day, place); the upper half of the hashes lies above 2^63."""
    entries = sorted(entries)
    hashes = np.array([number * 2**60 for number, _, _ in entries], np.uint64)
    times = np.array([day * DAY for _, day, _ in entries], np.int64)
    return Identities(hashes, times, np.array([place for _, _, place in entries], np.uint64))


def index_of(folder: Path, additions: list[list[Entry]]) -> list[Segment]:
    segments: list[Segment] = []
    for added in additions:
        segments = with_identities(folder, segments, identities(added))
    return segments


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(ENTRY, max_size=6), max_size=30),
    st.lists(ENTRY, max_size=6),
    st.integers(0, 2),
    st.integers(1, 3),
)
def test_every_entry_of_a_hash_within_the_horizon_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    additions: list[list[Entry]],
    wanted: list[Entry],
    horizon: int,
    block: int,
) -> None:
    segments = index_of(tmp_path_factory.mktemp("index"), additions)
    with patch.object(identity_index, "BLOCK", block):
        places, shared = find_places(segments, identities(wanted), horizon * DAY)
    found = places.tolist()
    entries = [entry for added in additions for entry in added]
    near = {p for h, day, p in entries for other, on, _ in wanted if h == other and abs(day - on) <= horizon}
    same = {p for h, _, p in entries if h in {other for other, _, _ in wanted}}
    assert near <= set(found) <= same
    assert found == sorted(set(found))
    sharing = {h * 2**60 for h, day, _ in entries for other, on, _ in wanted if h == other and abs(day - on) <= horizon}
    assert sharing <= set(shared.tolist()) <= {h * 2**60 for h, _, _ in wanted}
    assert shared.tolist() == sorted(set(shared.tolist()))


def test_segments_of_one_tier_are_merged_by_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of segments grows with the logarithm of the entries; no entry is lost or doubled."""
    monkeypatch.setattr(identity_index, "SMALLEST", 10)
    monkeypatch.setattr(identity_index, "SLICE", 100)
    random = np.random.default_rng(1)
    hashes = random.integers(0, 2**64, 6400, dtype=np.uint64)
    segments: list[Segment] = []
    for start in range(0, 6400, 10):
        chosen = start + np.argsort(hashes[start : start + 10])
        added = Identities(hashes[chosen], np.zeros(10, np.int64), chosen.astype(np.uint64))
        segments = with_identities(tmp_path, segments, added)
    assert len(segments) <= 4 * FACTOR
    assert sum(segment.record.rows for segment in segments) == 6400
    for segment in segments:
        assert (segment.hashes[1:] >= segment.hashes[:-1]).all()
        assert (hashes[segment.places] == segment.hashes).all()


def test_merge_keeps_one_of_two_equal_entries(tmp_path: Path) -> None:
    (segment,) = index_of(tmp_path, [[(1, 0, 5), (2, 0, 6)]] * FACTOR)
    assert segment.places.tolist() == [5, 6]


def test_largest_segments_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_index, "LARGEST", 2 * FACTOR - 1)
    assert len(index_of(tmp_path, [[(1, 0, 5), (2, 0, 6)]] * FACTOR)) == FACTOR


def test_truncated_segment_is_refused(tmp_path: Path) -> None:
    (segment,) = index_of(tmp_path, [[(1, 0, 5), (2, 0, 6)]])
    path = tmp_path / f"{segment.record.name}.places"
    path.write_bytes(path.read_bytes()[:8])
    with pytest.raises(IndexDamaged, match="has 1 entries instead of 2"):
        open_segment(tmp_path, segment.record)


def test_place_holds_partition_and_offset() -> None:
    partitions, offsets = np.array([0, 3, 40_000]), np.array([2**48 - 1, 0, 7])
    unpacked = unpacked_places(packed_places(partitions, offsets))
    assert [column.tolist() for column in unpacked] == [partitions.tolist(), offsets.tolist()]


@pytest.mark.parametrize("dense", [0, 10**9], ids=["interpolated", "in blocks"])
@pytest.mark.parametrize("least", [0, 2**63], ids=["uniform", "upper half only"])
def test_positions_are_those_of_a_binary_search(dense: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_index, "DENSE", dense)
    monkeypatch.setattr(identity_index, "BLOCK", 7)
    random = np.random.default_rng(1)
    for rows in (1, 2, 300, 20_000):
        column = np.sort(random.integers(least, 2**64, rows, dtype=np.uint64))
        column[rows // 2 : rows // 2 + 5] = column[rows // 2]
        ends = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
        hashes = np.sort(np.concatenate([random.integers(0, 2**64, 50, dtype=np.uint64), column[::9], ends]))
        assert (identity_index._positions(column, hashes) == np.searchsorted(column, hashes)).all()
