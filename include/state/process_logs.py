"""The end of a process's log."""

from __future__ import annotations

from include.ground.paths import log_path
from include.ground.settings import Settings


def log_size(settings: Settings, name: str) -> int:
    """Return the size of the process's log in bytes; 0 without one."""
    path = log_path(settings, name)
    return path.stat().st_size if path.exists() else 0


def log_tail(settings: Settings, name: str, since: int = 0, lines: int = 12) -> str:
    """Return the last lines of the process's log after byte `since`."""
    path = log_path(settings, name)
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - 64_000))
        text = file.read().decode(errors="replace")
    return "\n".join(f"  | {line[:300]}" for line in text.splitlines()[-lines:])


def last_line(settings: Settings, name: str, since: int) -> str:
    """Return the last line of the process's log that began after byte `since`; "" if there is none."""
    lines = [line.removeprefix("  | ") for line in log_tail(settings, name, since, lines=40).splitlines()]
    return next((line for line in reversed(lines) if line and not line[0].isspace()), "")
