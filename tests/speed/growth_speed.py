"""How the platform's own costs grow with a dataset's history: make bench-growth.

Makes histories of 100, 1,000, 10,000 … commits without Kafka and Spark, as fast as it goes (`grown_history.py`), each
in a process of its own with the environment of a driver. Then all add one batch in turn, so that what else the machine
does meets all alike; figures are medians of CPU time. Prints a table with the ratio of the last to the first figure
against the goal, and writes it as JSON. Only the last batches are published and projected one by one, of the others one
in a hundred. A batch stands for a second: superseded checkpoints go after as many batches as come in five minutes
of a real stream. With `--partitions 40` each batch has 42 files: 100,000 commits write 1,050,000.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from grown_history import GrownHistory

from include.ground.commit_history import HISTORY, RANGE
from include.ground.delta_log import LOG
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.observe.progress import observe_progress
from include.run.child_process import driver_environment
from spark_jobs.tables import commit_log

GOAL = 1.2
WINDOW = 50
"""Batches that are measured: from one checkpoint of a log to the next but one, between which a commit's cost rises."""
RECENT = 200
"""Batches over which steps are averaged that come in some of them only."""
PUBLISHED = 100
"""One batch in so many is published and projected while a history is made."""
BLOCK = 512
"""Bytes in which a file system counts what a file takes on the disk."""
BATCHES_A_SECOND = 20
"""Of the history that is made, on 2 cores; a real stream has one."""
STEPS = ("plan", "commit", "publish", "project", "lag")
Figures = dict[str, float]


@dataclass
class Grown:
    """A process that has made a history of so many commits, and answers each line with figures."""

    commits: int
    process: subprocess.Popen[str]

    def ask(self, question: str) -> Figures:
        """Return the answer to `batch` (a batch more) or `whole` (what the history and the process take)."""
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Figures:
        """Return the next answer."""
        assert self.process.stdout is not None
        found: Figures = json.loads(self.process.stdout.readline())
        return found


def main() -> None:
    """Print the table and write the JSON file; with `--worker`, make one history and answer questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=1, help="of the topic: bronze gets a file of each per batch")
    parser.add_argument("--json", type=Path, default=Path("bench-growth.json"))
    parser.add_argument("--worker", type=Path)
    chosen = parser.parse_args()
    if chosen.worker is not None:
        answer_questions(GrownHistory(Settings(state=chosen.worker), chosen.partitions), chosen.commits)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-growth-") as folder:
        histories = [started(Path(folder) / str(n), n, chosen.partitions) for n in sizes(chosen.commits)]
        found = measured(histories)
        chosen.json.write_text(json.dumps({"goal": GOAL, "at commits": found}, indent=1))
        print(table(found), flush=True)
        for history in histories:
            history.process.communicate()


def sizes(commits: int) -> list[int]:
    """Return the numbers of commits that are measured: powers of ten up to this number."""
    return [10**power for power in range(2, len(str(commits)))]


def started(folder: Path, commits: int, partitions: int) -> Grown:
    """Start a process and wait until its history is made."""
    before, settings = time.monotonic(), Settings(state=folder)
    command = [sys.executable, __file__, "--worker", str(folder), "--commits", str(commits)]
    command += ["--partitions", str(partitions)]
    process = subprocess.Popen(
        command, env=driver_environment(settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    grown = Grown(commits, process)
    files = grown.answer()["files"]
    print(f"{commits:,} commits, {files:,.0f} data files: {time.monotonic() - before:,.0f} s", flush=True)
    return grown


def measured(histories: list[Grown]) -> dict[int, Figures]:
    """Return the figures of the histories, which take turns."""
    rounds = [[history.ask("batch") for history in histories] for _ in range(WINDOW)]
    found = {}
    for number, history in enumerate(histories):
        batches = [answers[number] for answers in rounds]
        medians = {f"{step}, ms": median(batch[step] for batch in batches) for step in batches[0]}
        found[history.commits] = medians | history.ask("whole")
    return found


def answer_questions(history: GrownHistory, commits: int) -> None:
    """Make the history, then answer each line of standard input."""
    commit_log.OPENING /= BATCHES_A_SECOND
    batches = commits // 4
    while history.batches < batches:
        # The history of commits needs a publication; the last one brings the ledger up to date.
        history.add_batch(published=history.batches % PUBLISHED == 0 or history.batches == batches - 1)
    print(json.dumps({"files": history.written}), flush=True)
    for line in sys.stdin:
        print(json.dumps(one_more(history) if line.strip() == "batch" else whole(history)), flush=True)


def one_more(history: GrownHistory) -> Figures:
    """Add a batch; return the CPU milliseconds of its steps, and of a look at the status and at the totals."""
    history.add_batch()
    last, reader = history.batches - 1, open_reader(history.settings)
    found = {step: 1000 * history.seconds[step][last] for step in STEPS}
    return found | {"status": cpu(lambda: observe_progress(history.settings, reader)), "totals": cpu(reader.totals)}


def whole(history: GrownHistory) -> Figures:
    """Return what the history takes on the disk, what the process takes in memory, and means of rare steps."""
    recent = range(max(0, history.batches - RECENT), history.batches)
    found = {"compact, mean, ms": 1000 * mean(history.seconds["compact"][b] for b in recent)}
    logs = [path for name in (LOG, HISTORY) for path in history.settings.state.rglob(f"{name}/*")]
    return found | {
        f"move {RANGE} commits, ms": milliseconds_of_a_move(history),
        "memory, MB": megabytes(),
        "log bytes per commit": sum(path.stat().st_blocks * BLOCK for path in logs) / history.commits,
        "files in logs": len(logs),
        "files": history.files,
    }


def milliseconds_of_a_move(history: GrownHistory) -> float:
    """Return the mean CPU milliseconds of a move of RANGE commits into the history, 0.0 before the first one.

    By move and not by batch: a short history has few moves, or none, in the batches that are measured.
    """
    moves = sum(history.moved.values()) / RANGE
    spent = sum(history.seconds["move"][batch] for batch, commits in history.moved.items() if commits)
    return 1000 * spent / moves if moves else 0.0


def cpu(call: Callable[[], object]) -> float:
    """Return the CPU milliseconds of a call."""
    before = time.process_time()
    call()
    return 1000 * (time.process_time() - before)


def megabytes() -> float:
    """Return this process's resident memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def table(found: dict[int, Figures]) -> str:
    """Return the figures as text, with the ratio of the last to the first that is not 0."""
    last = found[max(found)]
    lines = [f"{'commits':24}" + "".join(f"{commits:>12,}" for commits in found) + f"{'ratio':>9}"]
    for name in last:
        first = next((each[name] for each in found.values() if each[name]), 0.0)
        ratio = last[name] / first if first else 1.0
        verdict = "" if ratio <= GOAL else f"  > {GOAL}"
        figures = "".join(f"{each[name]:12.2f}" for each in found.values())
        lines.append(f"{name:24}{figures}{ratio:9.2f}{verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
