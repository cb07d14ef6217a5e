"""Deaths of a process, simulated in this one: an exception at a step, and no commit after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from spark_jobs.backends.spark.spark_table import SparkTable
from spark_jobs.tables import failpoints
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step

# Steps 1 and 2 exist in a driver only: tests/recovery kills a real one there.
CRASH_STEPS = [step for step in Step if step.value[0] in "3456"]


class Died(BaseException):
    """The process is dead. A BaseException, so that no error handling catches it."""


@contextmanager
def dying_at(step: Step | None, passes: int = 1) -> Iterator[None]:
    """Raise Died when `step` is passed for the `passes`-th time, and at every step and commit after that."""
    left = passes
    dead = False
    commit, writing = Table.commit, SparkTable._writing
    # Read before the patch, which also covers the module that defines it.
    alive = failpoints.pass_step

    def pass_step(passed: Step, batch: int = 0) -> None:
        nonlocal left, dead
        left -= passed == step
        dead = dead or (passed == step and left <= 0)
        if dead:
            raise Died(f"{passed} of batch {batch}")

    def commit_alive(table: Table, *args: Any, **facts: Any) -> int:
        if dead:
            raise Died(f"before a commit to {table.spec.name}")
        return commit(table, *args, **facts)

    def writing_alive(table: SparkTable, *args: Any) -> Any:
        if dead:
            raise Died(f"before a commit to {table.spec.name}")
        return writing(table, *args)

    with pytest.MonkeyPatch.context() as patch:
        for module in [m for name, m in sys.modules.items() if name.startswith("spark_jobs.")]:
            if getattr(module, "pass_step", None) is alive:
                patch.setattr(module, "pass_step", pass_step)
        patch.setattr(Table, "commit", commit_alive)
        patch.setattr(SparkTable, "_writing", writing_alive)
        yield


def crash_order(rng: np.random.Generator, rounds: int) -> list[Step]:
    """Return every step of CRASH_STEPS once, in an order that `rounds` + 1 runs of refine can pass."""
    of_round = rng.integers(0, rounds, size=len(CRASH_STEPS))
    return [step for number in range(rounds) for step in _picked(of_round, number)]


def _picked(of_round: Sequence[int] | Any, number: int) -> list[Step]:
    return [step for step, chosen in zip(CRASH_STEPS, of_round, strict=True) if chosen == number]
