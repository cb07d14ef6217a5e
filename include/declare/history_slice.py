"""A slice of history: which records a backfill or a replay recomputes, and where it reads them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

BRONZE, KAFKA = "bronze", "kafka"


@dataclass(frozen=True)
class Span:
    """Offsets [start, end) of a partition, read from `source`: BRONZE or KAFKA."""

    partition: int
    start: int
    end: int
    source: str

    def overlaps(self, other: Span) -> bool:
        """Return whether both have an offset in common, whatever their sources."""
        return self.partition == other.partition and self.start < other.end and other.start < self.end

    def common(self, other: Span) -> Span | None:
        """Return the offsets that both contain, with this one's source; None when there are none."""
        both = replace(self, start=max(self.start, other.start), end=min(self.end, other.end))
        return both if self.partition == other.partition and both.start < both.end else None


@dataclass(frozen=True)
class Slice:
    """Records to recompute: those of `spans`; with `since` and `until`, only events in [since, until).

    An event lies there by its event time, or by the column of any gold window. A record that breaks the contract has no
    trustworthy time, so all such records in the spans belong to the slice.
    """

    spans: Sequence[Span]
    since: datetime | None = None
    until: datetime | None = None
    reference: Mapping[str, int] | None = None
    """Versions of the reference tables to join instead of each batch's own."""

    def of(self, source: str) -> list[Span]:
        """Return the spans that are read from `source`."""
        return [span for span in self.spans if span.source == source]

    def overlaps(self, other: Slice) -> bool:
        """Whether both name a record."""
        return any(mine.overlaps(its) for mine in self.spans for its in other.spans)


def joined_spans(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order; those that overlap or are adjacent are joined, empty ones left out."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.partition, span.start)):
        last = joined[-1] if joined else None
        if last is not None and last.partition == span.partition and last.end >= span.start:
            joined[-1] = replace(last, end=max(last.end, span.end))
        elif span.end > span.start:
            joined.append(span)
    return joined


def parsed_slice(stored: Mapping[str, Any]) -> Slice:
    """Return the slice that was stored as the JSON of `dataclasses.asdict`."""
    spans = [Span(**span) for span in stored["spans"]]
    since, until = (
        None if stored[name] is None else datetime.fromisoformat(stored[name]) for name in ("since", "until")
    )
    return Slice(spans, since, until, stored.get("reference"))


class SpanIndex:
    """The offsets of spans, joined where they overlap or touch, whatever their source."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, list[int]] = defaultdict(list)
        for span in joined_spans(spans):
            self._starts[span.partition].append(span.start)
            self._ends[span.partition].append(span.end)

    def partitions(self, first: int, last: int) -> list[int]:
        """Return the partitions from `first` to `last` that have a span."""
        return [each for each in self._starts if first <= each <= last]

    def overlaps(self, partition: int, start: int, end: int) -> bool:
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
