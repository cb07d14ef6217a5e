"""Work that a client elsewhere started and polls: a plan's stages, an audit. A thread each, in this process.

Guarantee: one piece of work at a time under a key; beginning it again while it runs changes nothing.
After a crash: nothing is known of it. The next request starts it again; plans continue from their journal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from include.ground.errors import HeadraceError, Terminal

AT_ONCE = 4
REMEMBERED = 1000
Report = Callable[[Mapping[str, Any]], None]
Work = Callable[[Report], Mapping[str, Any]]


@dataclass(frozen=True)
class WorkState:
    """Where a piece of work is: its last `progress`, and when it is `done` its `result`, or the `error`."""

    done: bool = False
    progress: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    is_terminal: bool = False


@dataclass
class RemoteWork:
    """The work of one server, by key; the oldest ended ones are forgotten."""

    states: dict[str, WorkState] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "remote"))

    def begin(self, key: str, work: Work) -> None:
        """Begin a piece of work, unless it runs."""
        with self._lock:
            if (known := self.states.pop(key, None)) is not None and not known.done:
                self.states[key] = known
                return
            self._forget_old()
            self.states[key] = WorkState()
        self._pool.submit(self._execute, key, work)

    def state(self, key: str) -> WorkState | None:
        """Return where a piece of work is, None for one that is not known."""
        return self.states.get(key)

    def _execute(self, key: str, work: Work) -> None:
        try:
            ended = WorkState(True, result=work(lambda facts: self._report(key, facts)))
        except HeadraceError as error:
            ended = WorkState(True, error=str(error), is_terminal=isinstance(error, Terminal))
        except Exception as error:  # noqa: BLE001  (who waits elsewhere must learn of it)
            ended = WorkState(True, error=f"it failed unexpectedly: {type(error).__name__}: {error}")
        self.states[key] = ended

    def _report(self, key: str, facts: Mapping[str, Any]) -> None:
        self.states[key] = replace(self.states[key], progress=dict(facts))

    def _forget_old(self) -> None:
        ended = [key for key, state in self.states.items() if state.done]
        for key in ended[: max(0, len(self.states) - REMEMBERED)]:
            del self.states[key]
