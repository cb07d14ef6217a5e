"""Events of a table dealt to batches: in any order of arrival, and to a process that dies at a step of the run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

import pytest
from simulated_deaths import Died, dying_at
from small_release import Record, SmallRelease

from spark_jobs.tables.failpoints import Step

ORDERS = (
    pytest.param((2,), id="one"),
    pytest.param((0, 1, *range(3, 10)), id="more", marks=pytest.mark.extended),
)
"""The seeds of ten orders of arrival, in two cases."""
DEATHS = (Step.SILVER_COMMITTED, Step.GOLD_WRITTEN, Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED)

E = TypeVar("E")


class Event(Protocol):
    """What a test sends, as an oracle knows it."""

    def sent(self, partition: int = 0) -> Record: ...


def deal(events: Sequence[E], seed: int, batches: int) -> list[list[E]]:
    """Return the events in another order, in batches of different sizes."""
    numbers = random.Random(seed)
    order = numbers.sample(list(events), len(events))
    cuts = sorted(numbers.randrange(len(order)) for _ in range(batches - 1))
    return [order[low:high] for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True)]


def take(release: SmallRelease, events: Sequence[Event], seed: int = 0) -> None:
    """Ingest and refine a batch; the seed says which event is in which of two partitions."""
    numbers = random.Random(seed)
    release.take([each.sent(numbers.randrange(2)) for each in events])


def refined_after_death(release: SmallRelease, events: Sequence[Event], step: Step) -> None:
    """Refine a batch in a process that dies at a step, and once more in the next one."""
    number = release.ingest([each.sent() for each in events])
    with pytest.raises(Died), dying_at(step):
        release.refine(number, number)
    release.restart()
    release.refine(number, number)
