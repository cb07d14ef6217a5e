"""Work that a client started and polls: a plan's stages, an audit. A thread each, in this process.

Guarantee: one piece of work at a time under a key; beginning it again while it runs changes nothing.
After a crash: nothing is known of it. The next request starts it again; plans continue from their journal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from include.ground.errors import HeadraceError, Terminal

AT_ONCE = 4
REMEMBERED = 1000
LINES = 100
Report = Callable[[str], None]
Work = Callable[[Report], Mapping[str, Any]]


@dataclass(frozen=True)
class WorkState:
    """Where a piece of work is: when it is `done` its `result`, or the `error`.

    `lines`: the last of the `reported` lines of its progress.
    """

    done: bool = False
    reported: int = 0
    lines: Sequence[str] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    code: str = ""
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
        ended: dict[str, Any]
        try:
            ended = {"result": work(lambda line: self._report(key, line))}
        except HeadraceError as error:
            ended = {"error": str(error), "code": error.code, "is_terminal": isinstance(error, Terminal)}
        except Exception as error:  # noqa: BLE001  (who waits elsewhere must learn of it)
            ended = {"error": f"it failed unexpectedly: {type(error).__name__}: {error}"}
        self.states[key] = replace(self.states[key], done=True, **ended)

    def _report(self, key: str, line: str) -> None:
        state = self.states[key]
        self.states[key] = replace(state, reported=state.reported + 1, lines=[*state.lines, line][-LINES:])

    def _forget_old(self) -> None:
        ended = [key for key, state in self.states.items() if state.done]
        for key in ended[: max(0, len(self.states) - REMEMBERED)]:
            del self.states[key]
