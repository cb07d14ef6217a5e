"""The boundary of a dataset: up to which event time its data is taken as complete, after each refine run.

Per partition the greatest event time seen, less the lateness; of all partitions the least. It never moves back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Boundary:
    """The boundary before and after the run that ended with `batch`; None while no event had come."""

    batch: int
    before: datetime | None
    after: datetime | None


@dataclass
class Reached:
    """How far the event times of a dataset have come, run by run; `batch` is the last run's, -1 before the first."""

    lateness: timedelta
    batch: int = -1
    boundary: datetime | None = None
    greatest: dict[str, datetime] = field(default_factory=dict)

    def bring_on(self, batch: int, text: str) -> Boundary:
        """Take in the next run: its last batch, its greatest event times as JSON by partition."""
        before = self.boundary
        for partition, said in json.loads(text or "{}").items():
            seen = datetime.fromisoformat(said)
            self.greatest[partition] = max(self.greatest.get(partition, seen), seen)
        if self.greatest:
            reached = min(self.greatest.values()) - self.lateness
            self.boundary = reached if before is None else max(before, reached)
        self.batch = batch
        return Boundary(batch, before, self.boundary)


def boundaries(runs: Iterable[tuple[int, str]], lateness: timedelta) -> Iterator[Boundary]:
    """Yield the boundary of each run, given ascending (last batch, event_time_max as JSON by partition)."""
    reached = Reached(lateness)
    for batch, text in runs:
        yield reached.bring_on(batch, text)
