"""The spans that a range of offsets meets are those that a comparison with each finds, without comparing each."""

from __future__ import annotations

import random
import time

from include.change.slices import parts_within
from include.declare.history_slice import BRONZE, KAFKA, Span, SpanIndex
from include.read.published_tables import BatchOffsets


def test_index_agrees_with_a_comparison_of_each_offset() -> None:
    dice = random.Random(7)
    for _ in range(300):
        starts = [(dice.randrange(2), dice.randrange(60)) for _ in range(dice.randrange(8))]
        spans = [Span(p, start, start + dice.randrange(9), dice.choice([BRONZE, KAFKA])) for p, start in starts]
        index, covered = SpanIndex(spans), {(s.partition, o) for s in spans for o in range(s.start, s.end)}
        partition, low = dice.randrange(3), dice.randrange(60)
        high = low + dice.randrange(12)
        expected = sum((partition, offset) in covered for offset in range(low, high))
        assert index.count(partition, low, high) == expected
        assert index.overlaps(partition, low, high) == bool(expected)


def test_planning_over_scattered_records_does_not_compare_each_with_each_batch() -> None:
    """20,000 records in 100,000 batches: comparing each with each took minutes, with the planners' lock held."""
    parts = [BatchOffsets(n, 0, 100 * n, 100 * (n + 1), 100, "t") for n in range(100_000)]
    spans = [Span(0, 500 * n, 500 * n + 1, BRONZE) for n in range(20_000)]
    began = time.process_time()
    assert [part.batch for part in parts_within(parts, spans)] == list(range(0, 100_000, 5))
    assert time.process_time() - began < 5
