"""Planning a backfill or a replay: the requested range becomes offset spans with a source, or is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from ledgered_stream import Stream

from include.change.plan_parameters import BackfillParameters, ReplayParameters, format_range
from include.change.recompute import BackfillPlan
from include.change.slices import holes
from include.declare.dataset import DatasetUnknown
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span
from include.ground.paths import bronze_path
from include.ground.settings import Settings
from include.read.published_tables import BatchOffsets, batch_offsets

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("offsets", "found"),
    [([], [(3, 8)]), ([3, 4, 5, 6, 7], []), ([4, 6], [(3, 4), (5, 6), (7, 8)]), ([3, 7], [(4, 7)])],
)
def test_holes_are_the_offsets_between_records(offsets: list[int], found: list[tuple[int, int]]) -> None:
    assert list(holes(offsets, 3, 8)) == found


def test_slices_overlap_by_partition_and_offset_whatever_the_source() -> None:
    mine = Slice([Span(0, 10, 20, BRONZE), Span(1, 5, 6, KAFKA)])
    assert mine.overlaps(Slice([Span(0, 19, 30, KAFKA)]))
    assert not mine.overlaps(Slice([Span(0, 20, 30, BRONZE), Span(1, 0, 5, BRONZE), Span(2, 5, 6, KAFKA)]))
    assert (mine.of(KAFKA), mine.of(BRONZE)) == ([Span(1, 5, 6, KAFKA)], [Span(0, 10, 20, BRONZE)])


def test_batch_offsets_come_from_the_commits(settings: Settings) -> None:
    stream = Stream(settings)
    for batch in range(3):
        stream.bronze(batch)
    found = batch_offsets(bronze_path(settings, "flights"), 1)
    assert found == [
        BatchOffsets(batch, part, 11 * batch, 11 * batch + 11, 10, "topic-1", 1_700_000_000_999 + batch)
        for batch in (0, 1)
        for part in (0, 1)
    ]


@pytest.mark.parametrize("until", [NOON, NOON - timedelta(hours=1)])
def test_range_that_ends_before_it_begins_is_refused(until: datetime) -> None:
    with pytest.raises(ValueError, match="start is not before end"):
        BackfillParameters(start=NOON, end=until)


def test_unknown_dataset_lists_the_known_ones(settings: Settings) -> None:
    with pytest.raises(DatasetUnknown, match="flights, weather"):
        BackfillPlan().plan(settings, "nope", BackfillParameters(start=NOON, end=NOON + timedelta(days=1)), "ann", NOON)


def test_requested_range_is_described_in_words() -> None:
    tomorrow = NOON + timedelta(days=1)
    day = format_range(NOON, tomorrow)
    assert day == "from 2026-01-01 12:00 to before 2026-01-02 12:00 UTC"
    offsets = ReplayParameters(by="offsets", offsets={0: (5, 10), 3: (0, 1)})
    assert offsets.requested == "offsets 0: 5 to 9, 3: 0 to 0"
    assert ReplayParameters(by="batches", first_batch=3, last_batch=7).requested == "batches 3 to 7"
    assert ReplayParameters(by="time", start=NOON, end=tomorrow).requested == f"records of Kafka time {day}"
