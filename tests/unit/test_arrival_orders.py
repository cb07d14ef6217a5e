"""Other orders of arrival: every event, some twice, in other batches; one order has a crash."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import polars as pl
from workloads.arrival_job import KILL
from workloads.arrival_orders import CRASH, MOST_BATCHES, batches_of, steps_of
from workloads.registry import FEEDS

from spark_jobs.tables.failpoints import Step

EVENTS = FEEDS["posts"].frame(timedelta(0)).head(400)


def test_an_order_has_every_event_and_some_twice_at_following_offsets() -> None:
    counts = set[int]()
    orders = set[tuple[bytes, ...]]()
    for seed in range(1, 11):
        batches = list(batches_of("posts", EVENTS, seed))
        counts.add(len(batches))
        rows = pl.concat(batches)
        sent = Counter(rows["value"].to_list())
        assert set(sent) == set(EVENTS["value"].to_list())
        assert Counter(sent.values()) == {1: 392, 2: 8}
        for _, part in rows.group_by("partition"):
            assert part.sort("offset")["offset"].to_list() == list(range(part.height))
        assert all(part["offset"].is_sorted() for batch in batches for part in batch.partition_by("partition"))
        assert rows.group_by("key").agg(pl.n_unique("partition"))["partition"].max() == 1
        orders.add(tuple(rows["value"]))
    assert counts == set(range(1, MOST_BATCHES + 1))
    assert len(orders) == 10


def test_steps_mix_feeds_and_derived_datasets_and_only_the_second_order_has_a_crash() -> None:
    files = {"orders": ["orders-0", "orders-1"], "lineitem": ["lineitem-0", "lineitem-1", "lineitem-2"]}
    mixed = set[tuple[tuple[str, str], ...]]()
    for seed in range(1, 11):
        steps = steps_of(files, ["order_revenue"], seed)
        assert (CRASH in steps) == (seed == 2)
        taken = [step for step in steps if step[1] and step != CRASH]
        for feed, names in files.items():
            assert [file for name, file in taken if name == feed] == names
        assert steps[-1] == ("order_revenue", "")
        mixed.add(tuple(taken))
    assert len(mixed) > 3
    assert CRASH == (KILL, Step.SILVER_COMMITTED)
