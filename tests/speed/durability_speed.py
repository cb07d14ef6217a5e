"""What `HEADRACE_DURABILITY=power` costs: milliseconds and syncs for each run, without Spark.

Usage: PYTHONPATH=.:tests python tests/speed/durability_speed.py [FOLDER on the disk to measure]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from grown_history import GrownHistory

from include.ground.settings import Settings

RUNS = 40


def main(folder: str | None) -> None:
    """Print the median of runs with one file in each of four tables, for both values."""
    fsync, seconds = os.fsync, list[float]()

    def timed(handle: int) -> None:
        start = time.perf_counter()
        fsync(handle)
        seconds.append(time.perf_counter() - start)

    os.fsync = timed
    for durability in ("process", "power", "process", "power"):
        with tempfile.TemporaryDirectory(dir=folder) as state:
            history, runs = GrownHistory(Settings(state=Path(state), durability=durability)), list[float]()
            seconds.clear()
            for _ in range(RUNS):
                start = time.perf_counter()
                history.add_batch()
                runs.append(time.perf_counter() - start)
            run, sync = 1000 * median(runs), 1000 * median(seconds)
            print(f"{durability}: {run:.1f} ms a run, {len(seconds) / RUNS:.1f} syncs of {sync:.2f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:2] or [None])
