"""Compares the speed of this tree with another tree in the same hour: make budgets BASE=/path/to/clone.

Each round measures both trees, one after the other, by their own `headrace bench run` and `make bench-run`; every
second round begins with the other tree, so that a machine that becomes slower favours neither. The budget holds for
the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

THIS = Path(__file__).resolve().parents[2]
DATASETS = ("flights", "ad_events")
RATES = (2_000, 20_000)
Figures = dict[str, float]


class NotMeasured(Exception):
    """A tree could not be measured."""


@dataclass(frozen=True)
class Budget:
    """A figure of this tree divided by the base's must be at least, or at most, `bound`."""

    figure: str
    bound: float
    at_least: bool = False

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.at_least else ratio <= self.bound


BUDGETS = (
    *(Budget(f"{dataset}: drain, events/s", 0.95, at_least=True) for dataset in DATASETS),
    *(Budget(f"{dataset}: p95 at {rate:,} events/s, s", 1.1) for dataset in DATASETS for rate in RATES),
    Budget("run cost, CPU s", 1.05),
)


def main() -> int:
    """Measure, print a line for each budget; return 1 if one is missed, 2 if nothing was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path, help="the clone to compare with, with its .venv and .jars")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--events", type=int, default=1_000_000, help="of the warm-up, and again of the drain")
    parser.add_argument("--seconds", type=int, default=30, help="of each rate")
    chosen = parser.parse_args()
    trees = (chosen.base.resolve(), THIS)
    if missing := [tree for tree in trees if not (tree / ".venv/bin/headrace").exists()]:
        parser.error(f"{missing[0]} has no .venv/bin/headrace; nothing was measured; there: make setup-dev")
    pairs = list[tuple[Figures, Figures]]()
    try:
        for number in range(chosen.rounds):
            order = trees if number % 2 == 0 else trees[::-1]
            found = {tree: measured(tree, chosen.events, chosen.seconds) for tree in order}
            pairs.append((found[trees[0]], found[trees[1]]))
            print_table(pairs)
    except NotMeasured as error:
        print(f"budgets: {error}", file=sys.stderr)
        return 2
    return 0 if all(budget.is_met(ratio_of(budget, pairs)) for budget in BUDGETS) else 1


def measured(tree: Path, events: int, seconds: int) -> Figures:
    """Return the figures of a tree. Raises NotMeasured."""
    print(f"budgets: {tree}: drain, latency, run cost …", flush=True)
    return bench_figures(tree, events, seconds) | {"run cost, CPU s": run_cost(tree)}


def bench_figures(tree: Path, events: int, seconds: int) -> Figures:
    """Return the drain and p95 of each dataset, from the file that `headrace bench run` writes."""
    options = ["--runs", "1", "--warm-up", str(events), "--events", str(events), "--seconds", str(seconds)]
    options += [part for dataset in DATASETS for part in ("--dataset", dataset)]
    options += [part for rate in RATES for part in ("--rate", str(rate))]
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="headrace budgets ") as state:
        run(tree, [str(tree / ".venv/bin/headrace"), "bench", "run", "drain", "latency", *options], state)
        [result] = Path(state).rglob("benchmarks/*.json")
        for each in json.loads(result.read_text("utf-8"))["measurements"]:
            if each["mode"] == "drain":
                figures[f"{each['dataset']}: drain, events/s"] = each["figures"]["events/s"]
            else:
                figures[f"{each['dataset']}: p95 at {each['setting']}, s"] = each["figures"]["p95, s"]
    return figures


def run_cost(tree: Path) -> float:
    """Return the CPU seconds of a warm run of a few thousand rows, Spark's process and Python's."""
    with tempfile.TemporaryDirectory(prefix="headrace budgets ") as state:
        output = run(tree, ["make", "-s", "bench-run", "ARGS=--json"], state)
    # What set-up prints comes before.
    whole = json.loads(output[output.index("{") :])["whole run"]
    return float(whole["jvm_cpu"] + whole["python_cpu"])


def run(tree: Path, command: Sequence[str], state: str) -> str:
    """Run a command in a tree; return what it printed. Raises NotMeasured."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "MAKE"))}
    environment["HEADRACE_STATE"] = state
    done = subprocess.run(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        output = (done.stdout + done.stderr)[-3000:]
        raise NotMeasured(f"{tree}: {' '.join(command)} ended with {done.returncode}:\n{output}")
    return done.stdout


def ratio_of(budget: Budget, pairs: Sequence[tuple[Figures, Figures]]) -> float:
    return median(this[budget.figure] / base[budget.figure] for base, this in pairs)


def print_table(pairs: Sequence[tuple[Figures, Figures]]) -> None:
    """Print a line for each budget: the figures and ratio of each round, and the verdict on the median."""
    for budget in BUDGETS:
        ratio, sign = ratio_of(budget, pairs), "≥" if budget.at_least else "≤"
        each = ", ".join(
            f"{base[budget.figure]:,.3g} → {this[budget.figure]:,.3g} ({this[budget.figure] / base[budget.figure]:.2f})"
            for base, this in pairs
        )
        verdict = "met" if budget.is_met(ratio) else "MISSED"
        print(f"{budget.figure:36} {ratio:5.2f} times, {sign} {budget.bound:.2f}: {verdict:6}  base → this: {each}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
