"""What the gold tables of `searches` must hold, from the records alone, and how many injected anomalies they flag."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from workloads.oracle_rows import Expected, Row

SLIDE, SLIDES = timedelta(minutes=10), 6
Flag = tuple[str, datetime, str]
"""Term, hour, spike or dip."""


def expected_search_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table."""
    seconds, hours = Counter[tuple[datetime, str]](), defaultdict[str, Counter[datetime]](Counter)
    completions = defaultdict[tuple[datetime, str], Counter[str]](Counter)
    for search in map(json.loads, records):
        at, term = datetime.fromisoformat(search["searched_at"]), search["term"]
        seconds[at.replace(microsecond=0), term] += 1
        hours[term][at.replace(minute=0, second=0, microsecond=0)] += 1
        newest = at.replace(minute=at.minute - at.minute % 10, second=0, microsecond=0)
        for n in range(SLIDES):
            for prefix in {term[:length] for length in (1, 2, 3)}:
                completions[newest - n * SLIDE, prefix][term] += 1
    return {
        "term_seconds": [{"second": at, "term": term, "searches": n} for (at, term), n in seconds.items()],
        "term_hours": [row for term, counts in hours.items() for row in _scored(term, counts)],
        "completions": [
            {"since": since, "prefix": prefix, "rank": rank, "term": term, "searches": count}
            for (since, prefix), counts in completions.items()
            for rank, (term, count) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:10], 1)
        ],
    }


def _scored(term: str, counts: Counter[datetime]) -> list[Row]:
    found, earlier = [], defaultdict[int, list[int]](list)
    for hour, observed in sorted(counts.items()):
        of_week = hour.weekday() * 24 + hour.hour
        before = earlier[of_week]
        expected = round(sum(before) / len(before), 4) if before else None
        score = None if expected is None else (observed - expected) / math.sqrt(expected + 1)
        found.append(
            {"term": term, "hour_of_week": of_week, "hour": hour, "observed": observed, "expected": expected}
            | {"score": score, "kind": _kind(expected, score)}
        )
        before.append(observed)
    return found


def _kind(expected: float | None, score: float | None) -> str | None:
    if expected is None or score is None or expected < 10:
        return None
    return "spike" if score >= 5 else "dip" if score <= -4 else None


@dataclass(frozen=True)
class FlagScore:
    """How many of the flags were injected, and how many of the injected ones were flagged."""

    flagged: int
    injected: int
    right: int

    @property
    def precision(self) -> float:
        """The share of flags that are right; 1 when there is none."""
        return self.right / self.flagged if self.flagged else 1.0

    @property
    def recall(self) -> float:
        """The share of injected anomalies that are flagged; 1 when there is none."""
        return self.right / self.injected if self.injected else 1.0


def flag_score(hours: Iterable[dict[str, Any]], injected: Collection[Flag]) -> FlagScore:
    """Return precision and recall of the flags in `term_hours` against the injected anomalies."""
    flags = {(row["term"], row["hour"], row["kind"]) for row in hours if row["kind"]}
    return FlagScore(len(flags), len(injected), len(flags & set(injected)))
