"""Trims long logs of processes and removes old ones, as `retention.logs` of the pipelines declares.

Guarantee: the end of a trimmed log is saved as `….log.1`; a process continues writing into the same file.
After a crash: the next check does the rest.
The log of an open plan stays, and everything while the policy of its dataset cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from include.declare.derived_dataset import release_retention
from include.declare.pipeline import Retention
from include.ground.errors import HeadraceError
from include.ground.paths import airflow_path, local_warehouse, log_path
from include.ground.settings import Settings
from include.plans.journal import open_plans
from include.read.publication import read_publication

MEGABYTE = 1 << 20
TRIM_ABOVE, TRIM_TO = 64 * MEGABYTE, 8 * MEGABYTE
OF_DATASET = re.compile(r"(?:stream-(.+)|plan-(?:derived-)?[a-z]+-(.+)-[0-9]+)\.log(?:\.1)?")


@dataclass(frozen=True)
class TrimResult:
    """Number of logs that were trimmed, and of those that were removed or emptied."""

    trimmed: int
    removed: int


def trim_logs(settings: Settings, now: datetime) -> TrimResult:
    """Trim logs of more than TRIM_ABOVE bytes, remove those without a write for `retention.logs`; return the counts.

    The log of a process that may write again is emptied instead. A log of several datasets is kept for the longest of
    their retentions.
    """
    logs = log_path(settings, "any").parent
    unfinished = {log_path(settings, f"plan:{record.plan.id}") for record in open_plans(settings)}
    long = [path for path in logs.glob("*.log") if _size(path) > TRIM_ABOVE]
    for path in long:
        _trim(path)
    retentions = _retentions(settings)
    longest = max(retentions.values(), default=Retention().logs)
    old = 0
    for path in _all_logs(settings, logs):
        found = OF_DATASET.fullmatch(path.name)
        retention = retentions.get(found[1] or found[2], longest) if found else longest
        if path not in unfinished and _age(path, now) > retention:
            old += _remove(
                path, is_finished=path.suffix != ".log" or path.parent != logs or path.name.startswith("plan-")
            )
    return TrimResult(len(long), old)


def _retentions(settings: Settings) -> dict[str, timedelta]:
    """Return `retention.logs` of each published dataset; for ever when it cannot be read."""
    found = {}
    for dataset in [path.parent.name for path in local_warehouse(settings).glob("*/publication.json")]:
        try:
            release = read_publication(settings, dataset).release
            found[dataset] = release_retention(settings, dataset, release).logs
        except HeadraceError:
            found[dataset] = timedelta.max
    return found


def _all_logs(settings: Settings, logs: Path) -> Iterator[Path]:
    """Yield the logs of processes, and those of Airflow's tasks."""
    yield from logs.glob("*.log*")
    yield from (path for path in (airflow_path(settings) / "logs").rglob("*.log") if path.is_file())


def _remove(path: Path, *, is_finished: bool) -> bool:
    """Delete a log, or empty it when its process may write again; return whether there was anything to do."""
    if is_finished:
        path.unlink(missing_ok=True)
    elif _size(path):
        os.truncate(path, 0)
    else:
        return False
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _age(path: Path, now: datetime) -> timedelta:
    """Return the time since the last write; zero for a file that was deleted meanwhile."""
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
