"""What processes have logged: cut where it is long, removed where it is old.

Reads / Writes: `logs/` and Airflow's own logs in the state folder.
Guarantee: the end of a trimmed log is saved as `….log.1`; a process continues writing into the same file.
After a crash: the next time does the rest.
Does not: remove the log of a plan that is open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from include.paths import airflow_path, log_path
from include.planning.plan_journal import all_plans
from include.settings import Settings

MEGABYTE = 1 << 20
TRIM_ABOVE, TRIM_TO = 64 * MEGABYTE, 8 * MEGABYTE
REMOVE_AFTER = timedelta(days=30)


@dataclass(frozen=True)
class TrimResult:
    """How many logs were cut, and how many removed."""

    cut: int
    removed: int


def trim_logs(settings: Settings, now: datetime) -> TrimResult:
    """Cut logs of more than LONG bytes, remove those that nobody wrote to for as long as OLD."""
    logs = log_path(settings, "any").parent
    open_plans = {log_path(settings, f"plan:{r.plan.id}") for r in all_plans(settings) if r.is_open}
    cut = [path for path in logs.glob("*.log") if _size(path) > TRIM_ABOVE]
    for path in cut:
        _cut(path)
    old = [path for path in _ended(settings, logs) if path not in open_plans and _age(path, now) > REMOVE_AFTER]
    for path in old:
        path.unlink(missing_ok=True)
    return TrimResult(len(cut), len(old))


def _ended(settings: Settings, logs: Path) -> Iterator[Path]:
    """Yield logs that end with what wrote them: those of plans and of Airflow's tasks."""
    yield from logs.glob("plan-*.log*")
    yield from (path for path in (airflow_path(settings) / "logs").rglob("*.log") if path.is_file())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _age(path: Path, now: datetime) -> timedelta:
    """How long nobody has written to it; nothing for one that is gone meanwhile."""
    try:
        return timedelta(seconds=now.timestamp() - path.stat().st_mtime)
    except FileNotFoundError:
        return timedelta()


def _cut(path: Path) -> None:
    """Save the end in a second file. The writer appends, so it continues at the new end."""
    with path.open("rb") as log:
        log.seek(-TRIM_TO, os.SEEK_END)
        path.with_name(f"{path.name}.1").write_bytes(log.read())
    os.truncate(path, 0)
