"""Which spans of offsets a range overlaps, in logarithmic time: a slice may have thousands of spans."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

from include.declare.history_slice import Span


class SpanIndex:
    """The offsets of spans, joined where they overlap or touch, whatever their source."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)
        for span in sorted(spans, key=lambda each: (each.partition, each.start)):
            starts, ends = self._starts[span.partition], self._ends[span.partition]
            if ends and span.start <= ends[-1]:
                ends[-1] = max(ends[-1], span.end)
            elif span.end > span.start:
                starts.append(span.start)
                ends.append(span.end)

    def overlaps(self, partition: int, start: int, end: int) -> bool:
        """Whether an offset of [start, end) lies in a span."""
        return next(self._inside(partition, start, end), None) is not None

    def count(self, partition: int, start: int, end: int) -> int:
        """Return how many offsets of [start, end) lie in the spans."""
        return sum(last - first for first, last in self._inside(partition, start, end))

    def _inside(self, partition: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        starts, ends = self._starts.get(partition, []), self._ends.get(partition, [])
        for place in range(bisect_right(ends, start), bisect_left(starts, end)):
            first, last = max(start, starts[place]), min(end, ends[place])
            if first < last:
                yield first, last
