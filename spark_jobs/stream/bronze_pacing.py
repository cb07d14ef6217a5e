"""Paces ingest: plans its next batch just in time for refine's next run (adr-0008).

A batch that is committed during a run waits until the run ends, and its records age meanwhile. So the next batch is
planned such that its commit coincides with the expected end of the run. A large one is validated during the run: it is
planned when Spark has validated the one before. While refine takes no batch, bronze continues at a slower pace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SLOW_PACE = 2.0
"""Seconds from one batch to the next while refine takes none, because it is halted or a run is long."""
FULL = 0.9
"""Above this share of the largest batch, more records probably wait in Kafka: the next batch follows at once."""


@dataclass(frozen=True)
class CommittedBatch:
    """A batch of bronze; writing it took `seconds`. A large one is validated while the run before is written."""

    number: int
    seconds: float
    is_large: bool = False


@dataclass
class BronzePacing:
    """The state that ingest and refine share: the last batch that refine takes, and how long a run lasts."""

    clock: Callable[[], float] = time.monotonic
    taken: int = -1
    seconds: float = 0.0
    """How long the last run took."""
    _begun: float | None = None
    _is_validating: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def begin_run(self, last: int, *, is_validated: bool = False) -> None:
        """Note that refine looks for a run up to batch `last`, and validates its records unless they are already."""
        with self._changed:
            self.taken, self._begun, self._is_validating = last, self.clock(), not is_validated
            self._changed.notify_all()

    def begin_validation(self, last: int) -> None:
        """Note that the records of the next run, up to batch `last`, are validated during the current one."""
        with self._changed:
            self.taken, self._is_validating = last, True
            self._changed.notify_all()

    def end_validation(self) -> None:
        """Note that these records are validated, so that Spark is idle."""
        with self._changed:
            self._is_validating = False
            self._changed.notify_all()

    def end_run(self, *, has_run: bool) -> None:
        """Note that the run ended, or that there was nothing to do."""
        with self._changed:
            if has_run and self._begun is not None:
                self.seconds = self.clock() - self._begun
            self._begun, self._is_validating = None, False
            self._changed.notify_all()

    def wait(self, batch: CommittedBatch, stop: threading.Event) -> None:
        """Return when the batch after `batch` is to be planned."""
        slow = self.clock() + SLOW_PACE
        with self._changed:
            while not stop.is_set() and (remaining := self.remaining(batch, slow)) > 0:
                self._changed.wait(min(remaining, 0.1))

    def remaining(self, batch: CommittedBatch, slow: float) -> float:
        """Return the seconds until the batch after `batch` is to be planned, at the latest at `slow`; 0 for now."""
        now = self.clock()
        if self.taken < batch.number:
            return slow - now
        if self._begun is None:
            return 0.0
        if batch.is_large:
            return slow - now if self._is_validating else 0.0
        return min(slow, self._begun + self.seconds - batch.seconds) - now
