"""Commits versions 0 to COUNT - 1 of a table; prints those that it, and no other process, committed.

python race_commits.py TABLE COUNT RACERS: it begins when as many processes have come to the table. All of them try a
version at the same time: otherwise the first one stays ahead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from spark_jobs.tables.commit_log import VersionTaken, put_commit

WITHIN, SEEN_WITHIN, BETWEEN = 240.0, 10.0, 0.05
"""Seconds."""


def is_committed(table: Path, version: int) -> bool:
    """Try to commit a version; return whether it was free."""
    try:
        put_commit(table, version, {"by": os.uname().nodename}, [{"txn": {"appId": "race"}}], durable=True)
    except VersionTaken:
        return False
    return True


def start_of(line: Path, racers: int) -> float:
    """Wait until as many processes stand at the start; return a time soon after, which is the same for all."""
    line.mkdir(parents=True, exist_ok=True)
    (line / f"{os.uname().nodename}-{os.getpid()}").touch()
    end = time.monotonic() + WITHIN
    while len(os.listdir(line)) < racers:
        if time.monotonic() > end:
            sys.exit(f"{racers} processes were to race, {len(os.listdir(line))} came within {WITHIN:.0f} s")
        time.sleep(0.01)
    # A machine sees the file of another one some seconds late.
    return max(each.stat().st_mtime for each in line.iterdir()) + SEEN_WITHIN


def won(table: Path, count: int, start: float) -> Iterator[int]:
    """Yield the versions that were free."""
    for version in range(count):
        time.sleep(max(0.0, start + version * BETWEEN - time.time()))
        if is_committed(table, version):
            yield version


if __name__ == "__main__":
    folder, count, racers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    print(json.dumps(list(won(folder, count, start_of(folder / "start", racers)))))
