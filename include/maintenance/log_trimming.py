"""Trims long logs of processes and removes old ones.

Reads / Writes: `logs/` and Airflow's own logs in the state folder.
Guarantee: the end of a trimmed log is saved as `….log.1`; a process continues writing into the same file.
After a crash: the next run does the rest.
Does not: remove the log of a plan that is open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from include.paths import airflow_path, log_path
from include.plans.plan_journal import open_plans
from include.settings import Settings

MEGABYTE = 1 << 20
TRIM_ABOVE, TRIM_TO = 64 * MEGABYTE, 8 * MEGABYTE
REMOVE_AFTER = timedelta(days=30)


@dataclass(frozen=True)
class TrimResult:
    """Number of logs that were trimmed, and of those that were removed."""

    trimmed: int
    removed: int


def trim_logs(settings: Settings, now: datetime) -> TrimResult:
    """Trim logs of more than TRIM_ABOVE bytes, remove those without a write for REMOVE_AFTER."""
    logs = log_path(settings, "any").parent
    unfinished = {log_path(settings, f"plan:{record.plan.id}") for record in open_plans(settings)}
    long = [path for path in logs.glob("*.log") if _size(path) > TRIM_ABOVE]
    for path in long:
        _trim(path)
    old = [path for path in _ended(settings, logs) if path not in unfinished and _age(path, now) > REMOVE_AFTER]
    for path in old:
        path.unlink(missing_ok=True)
    return TrimResult(len(long), len(old))


def _ended(settings: Settings, logs: Path) -> Iterator[Path]:
    """Yield logs whose writer ends: those of plans and of Airflow's tasks."""
    yield from logs.glob("plan-*.log*")
    yield from (path for path in (airflow_path(settings) / "logs").rglob("*.log") if path.is_file())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _age(path: Path, now: datetime) -> timedelta:
    """Return the time since the last write; zero for a file that is gone meanwhile."""
    try:
        return timedelta(seconds=now.timestamp() - path.stat().st_mtime)
    except FileNotFoundError:
        return timedelta()


def _trim(path: Path) -> None:
    """Save the end in a second file. The writer appends, so it continues at the new end."""
    with path.open("rb") as log:
        log.seek(-TRIM_TO, os.SEEK_END)
        path.with_name(f"{path.name}.1").write_bytes(log.read())
    os.truncate(path, 0)
