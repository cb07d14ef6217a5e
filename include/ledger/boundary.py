"""The boundary of a dataset: up to which event time its data is taken as complete, after each refine run.

Per partition the greatest event time seen, less the lateness; of all partitions the least. It never moves back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Boundary:
    """The boundary before and after the run that ended with `batch`; None while no event had come."""

    batch: int
    before: datetime | None
    after: datetime | None


def boundaries(runs: Iterable[tuple[int, str]], lateness: timedelta) -> Iterator[Boundary]:
    """Yield the boundary of each run, given ascending (last batch, event_time_max as JSON by partition)."""
    greatest: dict[str, datetime] = {}
    now: datetime | None = None
    for batch, text in runs:
        before = now
        for partition, said in json.loads(text or "{}").items():
            seen = datetime.fromisoformat(said)
            greatest[partition] = max(greatest.get(partition, seen), seen)
        if greatest:
            reached = min(greatest.values()) - lateness
            now = reached if now is None else max(now, reached)
        yield Boundary(batch, before, now)
