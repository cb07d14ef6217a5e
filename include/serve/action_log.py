"""The actions of users in the console: one line for each attempt and each outcome, in the state folder.

Guarantee: an action is on disk before it begins. An incomplete last line counts as not written.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from include.ground.errors import HeadraceError
from include.ground.paths import console_path
from include.ground.settings import Settings

TAIL_BYTES = 64_000
UNEXPECTED = "it failed unexpectedly"
_lock = threading.Lock()


@dataclass(frozen=True)
class LoggedAction:
    """One line: `what` was done; `about` its plan, dataset or audit; `outcome`: requested, done, or an error.

    `at` is ISO 8601, in UTC.
    """

    at: str
    user: str
    address: str
    what: str
    about: str
    outcome: str


def log_path(settings: Settings) -> Path:
    """Return the file of actions."""
    return console_path(settings) / "actions.jsonl"


def log_action(settings: Settings, user: str, address: str, what: str, about: str, outcome: str) -> None:
    """Append a line and force it to disk. Raises OSError."""
    entry = LoggedAction(datetime.now(UTC).isoformat(timespec="seconds"), user, address, what, about, outcome)
    path = log_path(settings)
    with _lock:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(json.dumps(asdict(entry), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def logged_action(settings: Settings, user: str, address: str, what: str, about: str) -> Iterator[None]:
    """Log that an action is requested, and after the block that it is done, or its error."""
    log_action(settings, user, address, what, about, "requested")
    outcome = UNEXPECTED
    try:
        yield
        outcome = "done"
    except HeadraceError as error:
        outcome = error_line(error)
        raise
    finally:
        log_action(settings, user, address, what, about, outcome)


def error_line(error: HeadraceError) -> str:
    """Return an error and its remedy in one line."""
    return error.what + (f" → {error.remedy}" if error.remedy else "")


def last_actions(settings: Settings, count: int, about: str | None = None) -> Sequence[LoggedAction]:
    """Return the last actions, newest first; of one plan if `about` names it."""
    path = log_path(settings)
    if not path.is_file():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    found = [entry for line in reversed(lines) if (entry := _entry(line)) and about in (None, entry.about)]
    return found[:count]


def _entry(line: bytes) -> LoggedAction | None:
    try:
        return LoggedAction(**json.loads(line))
    except (ValueError, TypeError):
        return None
