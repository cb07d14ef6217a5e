"""Other orders of arrival: the same events, some twice, in batches of other sizes, one order with a crash.

Reads: the events of feeds, published tables. Writes: for each order a state folder of its own, removed when its bytes
are compared.
After a crash: the same command continues with the next order (`orders_checked.py`).
One process with one Spark session takes all orders (`tests/workloads/arrival_job.py`). It gets the records as bronze
batches, not from Kafka: what a broker delivered is a batch too, and nothing after bronze can see the difference.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from include.change.jobs import JobDied, run_job
from include.ground.durable_files import write_atomically
from include.ground.settings import Settings
from workloads.checks import bytes_of_gold
from workloads.orders_checked import OrdersChecked, orders_file, orders_so_far

ARRIVAL_JOB = "workloads.arrival_job"
TWICE = 0.02
"""Share of the records that an order has twice."""
MOST_BATCHES = 4
PARTITIONS = 2
CRASH_IN = 2
"""The order whose process is killed, between silver and gold of a run."""
CRASH = ("kill", "4.silver-committed")
KILLED = "killed"
"""The job's file which says that it was killed."""
Reporter = Callable[[str], None]
ArrivalStep = tuple[str, str]


@dataclass
class OrderComparison:
    """A group of datasets (`names`, sources first) with the events of its feeds, and what is compared so far."""

    settings: Settings
    names: Sequence[str]
    frames: Mapping[str, pl.DataFrame]
    report: Reporter
    count: int

    def __post_init__(self) -> None:
        self.expected = {name: bytes_of_gold(self.settings, name) for name in self.names}
        self.file = orders_file(self.settings, self.names)
        self.checked: OrdersChecked = orders_so_far(self.settings, self.names, self.expected)

    def run(self) -> Counter[str]:
        """Return by dataset how many orders gave the published bytes. Raises JobDied, JobFailed."""
        left = [self._prepared(seed) for seed in range(1, self.count + 1) if seed not in self.checked.equal]
        try:
            self._take(left)
        except JobDied:
            left = [order for order in left if order.exists()]
            if not left or not (left[0] / KILLED).exists():
                raise
            self.report(f"order {left[0].name} of {self.count}: killed between silver and gold, continues …")
            self._take(left)
        self.file.remove()
        return Counter(name for seed in range(1, self.count + 1) for name in self.checked.equal[seed])

    def _take(self, orders: Sequence[Path]) -> None:
        name, again = f"orders-{self.names[0]}", f"make demo-workloads ARGS='{self.names[-1]}'"
        run_job(self.settings, name, self.names[0], [ARRIVAL_JOB, *map(str, orders)], self._compare, again)

    def _prepared(self, seed: int) -> Path:
        """Write the batches and steps of an order into its state folder."""
        folder = self.settings.state / "orders" / self.names[0] / str(seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        arriving = {feed: list(batches_of(feed, frame, seed)) for feed, frame in self.frames.items()}
        for feed, batches in arriving.items():
            for number, batch in enumerate(batches):
                batch.write_parquet(folder / f"{feed}-{number}.parquet")
        files = {feed: [f"{feed}-{number}.parquet" for number in range(len(arriving[feed]))] for feed in arriving}
        steps = steps_of(files, [name for name in self.names if name not in files], seed)
        write_atomically(folder / "steps.json", json.dumps(steps))
        return folder

    def _compare(self, facts: Mapping[str, Any]) -> None:
        """Compare and remove the order that the job has published."""
        if "order" not in facts:
            return
        seed = int(facts["order"])
        folder = self.settings.state / "orders" / self.names[0] / str(seed)
        own = self.settings.model_copy(update={"state": folder})
        equal = [name for name in self.names if bytes_of_gold(own, name) == self.expected[name]]
        self.checked = replace(self.checked, equal={**self.checked.equal, seed: equal})
        self.file.write(self.checked)
        other = ", ".join(name for name in self.names if name not in equal)
        self.report(f"order {seed} of {self.count}: {'other bytes of ' + other if other else 'equal'}")
        shutil.rmtree(folder)


def batches_of(topic: str, events: pl.DataFrame, seed: int) -> Iterator[pl.DataFrame]:
    """Yield the events in another order, some twice, as one to MOST_BATCHES batches of any size."""
    numbers = random.Random(seed)
    rows = pl.concat([events, events.sample(fraction=TWICE, seed=seed)]).sample(fraction=1, shuffle=True, seed=seed)
    deliveries = rows.select(
        pl.col("key"),
        pl.col("value"),
        topic=pl.lit(topic),
        partition=(pl.col("key").hash(seed) % PARTITIONS).cast(pl.Int32),
        timestamp=pl.lit(datetime.now(UTC)).cast(pl.Datetime("us", "UTC")),
        timestampType=pl.lit(1, pl.Int32),
        headers=pl.lit(None, pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))),
    ).with_columns(offset=pl.int_range(pl.len()).over("partition"))
    cuts = sorted(numbers.sample(range(1, rows.height), seed % MOST_BATCHES))
    for first, end in zip([0, *cuts], [*cuts, rows.height], strict=True):
        yield deliveries.slice(first, end - first)


def steps_of(files: Mapping[str, Sequence[str]], derived: Sequence[str], seed: int) -> list[ArrivalStep]:
    """Return the steps of an order: batches of all feeds mixed, derived datasets in between and at the end."""
    numbers = random.Random(seed)
    left, steps = {feed: list(each) for feed, each in files.items()}, list[ArrivalStep]()
    turns = [feed for feed, each in files.items() for _ in each]
    numbers.shuffle(turns)
    for place, feed in enumerate(turns):
        if seed == CRASH_IN and place == len(turns) // 2:
            steps.append(CRASH)
        steps.append((feed, left[feed].pop(0)))
        if place % 2 or place == len(turns) - 1:
            steps += [(name, "") for name in derived]
    return steps
