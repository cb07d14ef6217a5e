"""How the platform's own costs grow with a dataset's history: make bench-growth.

Makes a history without Kafka and Spark, as fast as it goes (`grown_history.py`); at 100, 1,000, 10,000 … commits it
measures CPU seconds of a run's steps and of `status`, memory and the size of the logs. Prints a table with the ratio of
the last to the first figure against the goal, and writes it as JSON. Only the last batches before a measurement are
published and projected one by one; the ledger gets the others at once. A batch stands for a second: superseded
checkpoints go after as many batches as come in five minutes of a real stream.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

from grown_history import GrownHistory

from include.clients.commit_history import HISTORY
from include.clients.delta_log import LOG
from include.ledger.ledger_reader import open_reader
from include.settings import Settings
from include.status.stream_progress import observe_progress
from spark_jobs.storage import log_checkpoints

GOAL = 1.2
WINDOW = 25
"""Batches that are measured: from one checkpoint of a log to the next, between which a commit's cost rises."""
BLOCK = 512
"""Bytes in which a file system counts what a file takes on the disk."""
REPEATS = 40
BATCHES_A_SECOND = 20
"""Of the history that is made, on 2 cores; a real stream has one."""
STEPS = ("plan", "commit", "publish", "project", "lag")
Figures = dict[str, float]


def main() -> None:
    """Print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--json", type=Path, default=Path("bench-growth.json"))
    chosen = parser.parse_args()
    log_checkpoints.OPENING /= BATCHES_A_SECOND
    with tempfile.TemporaryDirectory(prefix="headrace-growth-") as folder:
        history = GrownHistory(Settings(state=Path(folder)))
        found: dict[int, Figures] = {}
        commits = 100
        while commits <= chosen.commits:
            grow(history, commits // 4)
            found[commits] = measured(history)
            chosen.json.write_text(json.dumps({"goal": GOAL, "at commits": found}, indent=1))
            print(table(found), flush=True)
            commits *= 10


def grow(history: GrownHistory, batches: int) -> None:
    """Add batches up to this number; one batch more before those that are measured brings the ledger up to date."""
    while history.batches < batches:
        history.add_batch(published=history.batches >= batches - WINDOW - 1)


def measured(history: GrownHistory) -> Figures:
    """Return the figures of the history as it is now."""
    window = range(history.batches - WINDOW + 1, history.batches)
    found = {f"{step}, ms": 1000 * median(history.seconds[step][b] for b in window) for step in STEPS}
    for step in ("commit", "compact", "move"):
        # Log checkpoints, compaction and the history of commits come in some of the batches only.
        recent = range(max(0, history.batches - 200), history.batches)
        found[f"{step}, mean, ms"] = 1000 * mean(history.seconds[step][b] for b in recent)
    reader = open_reader(history.settings)
    found["status, ms"] = cpu(lambda: observe_progress(history.settings, reader))
    found["totals, ms"] = cpu(reader.totals)
    found["memory, MB"] = megabytes()
    logs = [path for name in (LOG, HISTORY) for path in history.settings.state.rglob(f"{name}/*")]
    found["log bytes per commit"] = sum(path.stat().st_blocks * BLOCK for path in logs) / history.commits
    found["files in logs"] = len(logs)
    found["files"] = history.files
    return found


def cpu(call: Callable[[], object]) -> float:
    """Return the CPU milliseconds of a call, the least of some: other processes add to it."""
    spent = []
    for _ in range(REPEATS):
        before = time.process_time()
        call()
        spent.append(time.process_time() - before)
    return 1000 * min(spent)


def megabytes() -> float:
    """Return this process's resident memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def table(found: dict[int, Figures]) -> str:
    """Return the figures as text, with the ratio of the last to the first."""
    first, last = found[min(found)], found[max(found)]
    lines = [f"{'commits':24}" + "".join(f"{commits:>12,}" for commits in found) + f"{'ratio':>9}"]
    for name in first:
        ratio = last[name] / first[name] if first[name] else 1.0
        verdict = "" if ratio <= GOAL else f"  > {GOAL}"
        figures = "".join(f"{each[name]:12.2f}" for each in found.values())
        lines.append(f"{name:24}{figures}{ratio:9.2f}{verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
