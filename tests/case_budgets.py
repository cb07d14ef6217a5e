"""What each group of tests takes, next to its budget: the table at the end of `make test`, and a record per file.

A second of a budget is a second of one of the two workers. A group over its budget is named, not failed: another
program on the machine would fail it too.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

WHOLE_RUN = 600.0
"""Seconds of `make test` on two cores."""
BUDGETS = {
    "unit": 300.0,
    "cases": 400.0,
    "parity": 120.0,
    "recovery": 120.0,
    "cluster": 60.0,
    "stack": 120.0,
    "architecture": 60.0,
}
RECORD = Path(__file__).resolve().parents[1] / ".cache" / "test-durations.json"


def group_of(path: str) -> str:
    """Return the group of a test file: its folder, and the cluster's tests on their own."""
    return "cluster" if path.endswith("/test_cluster.py") else path.split("/")[1]


class CaseBudgets:
    """Counts cases and seconds of a run, and prints them."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seconds: dict[str, float] = defaultdict(float)
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a case; a case counts once, and an error in its set-up or tear-down is a failure."""
        path = report.nodeid.partition("::")[0]
        self.seconds[path] += report.duration
        if report.when == "call" or not report.passed:
            self.outcomes[group_of(path)]["failed" if report.failed else report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter, config: pytest.Config) -> None:
        """Print the table and record the seconds of each file, after a run of everything."""
        if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword:
            return
        RECORD.parent.mkdir(exist_ok=True)
        slowest_first = dict(sorted(self.seconds.items(), key=lambda item: -item[1]))
        RECORD.write_text(json.dumps({path: round(spent, 1) for path, spent in slowest_first.items()}, indent=0))
        terminalreporter.section("groups")
        terminalreporter.line(f"{'group':<14}{'cases':>7}{'passed':>8}{'failed':>8}{'seconds':>9}{'budget':>8}")
        for group, budget in BUDGETS.items():
            found = self.outcomes[group]
            spent = sum(seconds for path, seconds in self.seconds.items() if group_of(path) == group)
            self._line(terminalreporter, group, found, spent, budget)
        whole = sum(self.outcomes.values(), Counter[str]())
        self._line(terminalreporter, "all, by clock", whole, time.monotonic() - self.began, WHOLE_RUN)

    @staticmethod
    def _line(reporter: TerminalReporter, group: str, found: Counter[str], spent: float, budget: float) -> None:
        """Print a line; one over its budget is marked."""
        counts = f"{found.total():>7}{found['passed']:>8}{found['failed']:>8}"
        over = "  over" if spent > budget else ""
        reporter.line(
            f"{group:<14}{counts}{spent:>9.0f}{budget:>8.0f}{over}", yellow=bool(over), red=found["failed"] > 0
        )
