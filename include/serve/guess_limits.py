"""How often log-ins may fail: by source network, by user, and in all. Every attempt counts before it is checked.

An attempt that succeeds is taken off again, and takes off no other. After the allowed failures each further attempt
waits, twice as long after each failure. The limits by user and in all do not hold for a network from which the user has
logged in before: others who guess cannot lock a user out there.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from include.ground.errors import Terminal

MOST_KEYS = 10_000


class TooManyAttempts(Terminal):
    """Log-ins failed too often; the next attempt may be made after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many failed log-ins; try again in {seconds:.0f} s")
        self.seconds = seconds


@dataclass(frozen=True)
class FailureLimit:
    """How many failures are free, how long the next attempt waits, how long at most, and when they are forgotten."""

    free: int
    wait: float
    longest: float
    forgotten: float = 3600.0


BY_SOURCE = FailureLimit(5, 60.0, 900.0)
BY_USER = FailureLimit(10, 60.0, 900.0)
IN_ALL = FailureLimit(100, 1.0, 10.0)
LIMITS = {"source": BY_SOURCE, "user": BY_USER, "": IN_ALL}


@dataclass
class Failures:
    """The failures of one network or user, the last one at `last`."""

    count: int = 0
    last: float = 0.0

    def wait(self, limit: FailureLimit, now: float) -> float:
        """Return how long the next attempt must wait."""
        beyond = self.count - limit.free
        if beyond < 0:
            return 0.0
        return self.last + min(limit.longest, limit.wait * 2.0 ** min(beyond, 20)) - now


@dataclass(frozen=True)
class Attempt:
    """An attempt that has begun, with the counters that have counted it."""

    user: str
    source: str
    keys: tuple[tuple[str, str], ...]


@dataclass
class GuessLimits:
    """The failures of one server."""

    failures: dict[tuple[str, str], Failures] = field(default_factory=dict)
    proven: dict[tuple[str, str], None] = field(default_factory=dict)
    """User and network of log-ins that succeeded, the last ones."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, user: str, source: str, now: float) -> Attempt:
        """Count an attempt as a failure, which it is unless it succeeds. Raises TooManyAttempts."""
        with self._lock:
            keys = [("source", source)]
            if (user, source) not in self.proven:
                keys += [("user", user), ("", "")]
            counters = {key: self._counter(key, now) for key in keys}
            if (wait := max(each.wait(LIMITS[key[0]], now) for key, each in counters.items())) > 0:
                raise TooManyAttempts(wait)
            for each in counters.values():
                each.count, each.last = each.count + 1, now
        return Attempt(user, source, tuple(keys))

    def withdraw(self, attempt: Attempt) -> None:
        """Take an attempt off that was no failure."""
        with self._lock:
            for key in attempt.keys:
                if (found := self.failures.get(key)) is not None and found.count:
                    found.count -= 1

    def succeed(self, attempt: Attempt) -> None:
        """Take a successful attempt off, and trust its network for its user."""
        self.withdraw(attempt)
        with self._lock:
            self.proven[attempt.user, attempt.source] = None
            if len(self.proven) > MOST_KEYS:
                del self.proven[next(iter(self.proven))]

    def _counter(self, key: tuple[str, str], now: float) -> Failures:
        found = self.failures.get(key)
        if found is None or now - found.last > LIMITS[key[0]].forgotten:
            if len(self.failures) >= MOST_KEYS:
                self._forget_oldest()
            found = self.failures[key] = Failures()
        return found

    def _forget_oldest(self) -> None:
        kept = sorted(self.failures.items(), key=lambda item: item[1].last)[MOST_KEYS // 2 :]
        self.failures = dict(kept)
