"""The pause before failed work is tried again: it doubles with each failure in a row.

Which failures end a driver; the base of automatic steps, whose errors do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar, TypeVarTuple

from include.read.publication import PublicationAhead
from include.read.stored_publication import StoreConflict
from include.state.lease import LeaseLost
from spark_jobs.tables.delta_table import OwnershipLost
from spark_jobs.tables.log_lines import jvm_end, log_line

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
Result = TypeVar("Result")
NOT_RETRIED = (LeaseLost, OwnershipLost, PublicationAhead, StoreConflict)
"""Errors that end a driver: another process owns the tables now, here or in the object store."""


def attempt(
    work: Callable[[], Result], after_failure: Callable[[Exception], Result], *ending: type[Exception]
) -> Result:
    """Return what the work returns, or what `after_failure` returns for its error.

    Raises what NOT_RETRIED names, errors of `ending`, and JvmEnded: no later attempt has a JVM.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001  (whatever it is, the driver's other work continues)
        if isinstance(error, (*NOT_RETRIED, *ending)):
            raise
        if (ended := jvm_end(error)) is not None:
            raise ended from error
        return after_failure(error)


@dataclass
class BackOff:
    """The pause of one kind of work (seconds of `clock`): 0 while it succeeds; it ends at `ends_at`."""

    clock: Callable[[], float] = time.monotonic
    pause: float = 0.0
    ends_at: float = 0.0

    @property
    def is_pausing(self) -> bool:
        return self.clock() < self.ends_at

    def lengthen(self) -> float:
        """Begin the pause after a failure; return its seconds."""
        self.pause = min(max(self.pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self.ends_at = self.clock() + self.pause
        return self.pause

    def end(self) -> bool:
        """Forget the failures; return whether there were any."""
        failed, self.pause, self.ends_at = self.pause > 0, 0.0, 0.0
        return failed


FIRST_CHECK = 60.0
"""Seconds after the driver's start."""
SECONDS_AT_ONCE = 1.0
"""The time that a run waits for a step, in seconds."""
PAUSE_AFTER_FAILURE = 60.0
"""Seconds, unless the step has a pause of its own."""


Given = TypeVarTuple("Given")


@dataclass(kw_only=True)
class AutomaticStep(Generic[*Given]):
    """Work that the owner does by itself between two runs. The next check is not before `next_check`, by `clock`.

    An error never ends the runs: the log says `failure`, and what `after_failure` returns counts.
    """

    failure: ClassVar[str] = ""
    ending: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors that end the driver, besides NOT_RETRIED."""
    rest: ClassVar[float] = PAUSE_AFTER_FAILURE
    """Seconds to pause after a failure."""
    clock: Callable[[], float] = time.monotonic
    next_check: float = field(default_factory=lambda: time.monotonic() + FIRST_CHECK)

    def is_pausing(self) -> bool:
        return self.clock() < self.next_check

    def pause(self, seconds: float) -> None:
        self.next_check = self.clock() + seconds

    def step(self, *given: *Given) -> bool:
        """Do some of the work; return whether there is more to do at once. Raises NOT_RETRIED and `ending`."""
        return attempt(lambda: self.work(*given), self._log_failure, *self.ending)

    def work(self, *given: *Given) -> bool:
        """Do what `step` does, unguarded."""
        raise NotImplementedError

    def after_failure(self) -> bool:
        """Pause; return whether there is more to do at once."""
        self.pause(self.rest)
        return False

    def _log_failure(self, error: Exception) -> bool:
        log_line(f"{self.failure}; runs continue", error)
        return self.after_failure()
