"""Merges in a thread: segments stay as they are until one is complete, and a merge of others is given up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from spark_jobs.backends.local import identity_index
from spark_jobs.backends.local.identity_index import (
    FACTOR,
    Identities,
    Segment,
    SegmentMerges,
    merged,
    remove_other_segments,
    with_segment,
)


class HeldMerge:
    """Merges as the product does, once `may_write` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write, self.failure = threading.Event(), ""
        monkeypatch.setattr(identity_index, "merged", self)

    def __call__(self, folder: Path, segments: Sequence[Segment], name: str) -> Segment:
        assert self.may_write.wait(10)
        if self.failure:
            raise OSError(self.failure)
        return merged(folder, segments, name)

    def finish(self, merges: SegmentMerges) -> None:
        """Permit the merge and wait for its end."""
        self.may_write.set()
        assert merges._running is not None
        merges._running.whole.exception(10)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldMerge:
    return HeldMerge(monkeypatch)


def segments_in(folder: Path, count: int) -> list[Segment]:
    segments: list[Segment] = []
    for number in range(count):
        column = np.array([number], np.uint64)
        segments = with_segment(folder, segments, Identities(column, np.zeros(1, np.int64), column))
    return segments


def test_segments_are_exchanged_once_their_merge_is_complete(tmp_path: Path, held: HeldMerge) -> None:
    merges, segments = SegmentMerges(tmp_path), segments_in(tmp_path, FACTOR)
    merges.begin(segments)
    assert merges.applied(segments) == segments
    later = [*segments, *segments_in(tmp_path, 1)]
    held.finish(merges)
    last, whole = merges.applied(later)
    assert last is later[-1]
    assert whole.places.tolist() == list(range(FACTOR))
    assert not merges.unfinished


def test_one_merge_runs_at_a_time(tmp_path: Path, held: HeldMerge) -> None:
    merges, segments = SegmentMerges(tmp_path), segments_in(tmp_path, FACTOR)
    merges.begin(segments[1:])
    assert not merges.unfinished
    merges.begin(segments)
    (name,) = merges.unfinished
    merges.begin(segments)
    assert merges.unfinished == {name}
    held.finish(merges)


def test_files_of_an_unfinished_merge_are_not_removed(tmp_path: Path, held: HeldMerge) -> None:
    merges, segments = SegmentMerges(tmp_path), segments_in(tmp_path, FACTOR)
    merges.begin(segments)
    held.finish(merges)
    remove_other_segments(tmp_path, merges.unfinished)
    (whole,) = merges.applied(segments)
    assert whole.places.tolist() == list(range(FACTOR))
    assert {path.stem for path in tmp_path.iterdir()} == {whole.record.name}


@pytest.mark.parametrize("failure", ["", "no space left"])
def test_merge_of_segments_that_are_gone_is_given_up(tmp_path: Path, held: HeldMerge, failure: str) -> None:
    merges, segments = SegmentMerges(tmp_path), segments_in(tmp_path, FACTOR)
    held.failure = failure
    merges.begin(segments)
    held.finish(merges)
    assert merges.applied(segments[1:]) == segments[1:]
    assert not merges.unfinished


def test_failure_of_a_merge_is_raised_to_the_run_after_it(tmp_path: Path, held: HeldMerge) -> None:
    merges, segments = SegmentMerges(tmp_path), segments_in(tmp_path, FACTOR)
    held.failure = "no space left"
    merges.begin(segments)
    held.finish(merges)
    with pytest.raises(OSError, match="no space left"):
        merges.applied(segments)
    assert merges.applied(segments) == segments
