"""What a demo of a workload checks in addition to its oracle: freshness, a replay, and other orders of arrival.

Reads: published tables, the ledger, the feed. Writes: a plan; for each order a state folder of its own, removed again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import polars as pl

from include.clients.kafka import ensure_topic
from include.ledger.ledger_reader import open_reader
from include.planning.plan_stages import SilentReporter, run_plan
from include.planning.replay_plan import ReplayParameters, plan_replay
from include.plans.plan import PlanRecord
from include.plans.stage_results import SliceBuilt, Stage
from include.process_control.start_stop import down, up
from include.producers.event_feed import Feed
from include.producers.injected_faults import Shares, inject_faults
from include.producers.paced_sending import Run, send
from include.reading import pinned
from include.reading.publication import read_publication
from include.settings import Settings
from include.state.broker_address import bootstrap_servers

TWICE = 0.02
"""Share of the records that another order of arrival has twice."""
BY = "demo-workloads"
Waiter = Callable[[Settings, str], None]


def freshness(settings: Settings, dataset: str) -> float:
    """Return how many seconds 95 % of the records waited at most, from their Kafka timestamp to their publication."""
    publication = read_publication(settings, dataset)
    times = open_reader(settings).publication_times(dataset, publication.release)
    published = pl.DataFrame(times, schema={"batch": pl.Int64, "published": pl.Int64}, orient="row")
    records = pinned(settings).read(f"bronze.{dataset}", columns=["timestamp", "_batch_id"]).sort("_batch_id")
    held = records.join_asof(published.lazy(), left_on="_batch_id", right_on="batch", strategy="forward")
    waited = held.select(pl.col("published") - pl.col("timestamp").dt.epoch("ms")).collect().to_series()
    return float(waited.quantile(0.95, "higher") or 0) / 1000


def replayed(settings: Settings, dataset: str) -> int:
    """Recompute all records by a replay plan, without applying it; return how many rows differ."""
    last = read_publication(settings, dataset).batch
    parameters = ReplayParameters(by="batches", first_batch=0, last_batch=last)
    record = plan_replay(settings, dataset, parameters, BY, datetime.now(UTC))
    done = run_plan(settings, record, SilentReporter(), _nobody, BY, upto=Stage.COMPARED)
    return sum(done.last(SliceBuilt).differing.values())


def _nobody(_: PlanRecord) -> None:
    """Approve nothing: a plan that is only compared needs no approval."""


def permuted(
    settings: Settings, feed: Feed, frame: pl.DataFrame, seed: int, wait: Waiter, report: Callable[[str], None]
) -> dict[str, bytes]:
    """Send the events in another order, some twice, through a broker and a stream of their own; return gold's bytes."""
    own = settings.model_copy(update={"state": settings.state / "orders" / f"{feed.name}-{seed}"})
    shutil.rmtree(own.state, ignore_errors=True)
    names = list(bytes_of_gold(settings, feed.name))
    try:
        up(own, [feed.name], report)
        bootstrap, run = bootstrap_servers(own), Run(feed)
        ensure_topic(bootstrap, feed.topic, 2)
        send(run, bootstrap, now=datetime.now(UTC), rows=shuffled(inject_faults(frame, feed, Shares(), seed), seed))
        wait(own, feed.name)
        return bytes_of_gold(own, feed.name, names)
    finally:
        down(own, report)
        shutil.rmtree(own.state, ignore_errors=True)


def shuffled(frame: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Return deliveries in another order, some of them twice."""
    again = frame.sample(fraction=TWICE, seed=seed)
    return pl.concat([frame, again]).sample(fraction=1, shuffle=True, seed=seed)


def bytes_of_gold(settings: Settings, dataset: str, tables: Iterable[str] = ()) -> dict[str, bytes]:
    """Return the rows of a dataset's gold tables, without the platform's columns, sorted, as Arrow's bytes."""
    reading, found = pinned(settings), dict[str, bytes]()
    published = sorted(name for name, table in reading.tables.items() if table.dataset == dataset)
    for name in tables or [name for name in published if name.startswith("gold.")]:
        rows = reading.read(name).collect()
        shown = rows.select(column for column in rows.columns if not column.startswith("_"))
        order = [name for name, kind in shown.schema.items() if not kind.is_nested()]
        found[name] = shown.sort(order).write_ipc(None).getvalue()
    return found
