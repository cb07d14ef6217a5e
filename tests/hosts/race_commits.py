"""Commits versions 0 to COUNT - 1 of a table as fast as it can; prints those that it, and no other process, committed.

python race_commits.py TABLE COUNT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from spark_jobs.tables.commit_log import VersionTaken, put_commit


def is_committed(table: Path, version: int) -> bool:
    """Try to commit a version; return whether it was free."""
    try:
        put_commit(table, version, {"by": os.uname().nodename}, [{"txn": {"appId": "race"}}], durable=True)
    except VersionTaken:
        return False
    return True


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    (folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    print(json.dumps([version for version in range(count) if is_committed(folder, version)]))
