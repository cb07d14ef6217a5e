"""What a demo of a workload checks in addition to its oracle: freshness, bounded rebuilds, and the bytes of gold.

Reads: published tables, the ledger, the feed. Writes: plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from include.change.plan_parameters import BackfillParameters, ReplayParameters
from include.change.recompute import BackfillPlan, ReplayPlan
from include.change.stages import PlanReporter, cancel, run_plan
from include.ground.delta_log import commits
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.plans.plan import PlanRecord, SliceBuilt, Stage
from include.read.publication import read_publication, tables_of
from include.read.published_tables import pinned
from workloads.registry import DERIVED

BY = "demo-workloads"
YEAR = timedelta(days=366)
"""No event of a workload has a time so long before its first or after its last."""


ALL = 1_000_000_000


def freshness(settings: Settings, dataset: str) -> float:
    """Return how many seconds 95 % of the records waited at most, from their Kafka timestamp to their publication."""
    publication = read_publication(settings, dataset)
    runs = open_reader(settings).published_runs_after(dataset, publication.release, -1, ALL)
    times = [(run.last_batch, run.published_at_ms) for run in runs if run.published_at_ms is not None]
    return _ninety_fifth(_waited(settings, dataset, times))


def derived_freshness(settings: Settings, name: str) -> float:
    """Return how many seconds 95 % of the source records waited at most, from their Kafka timestamp to the first
    publication of a derived dataset that was computed from them.
    """
    runs = derived_runs(settings, name).values()
    feeds = [feed.name for feed in DERIVED[name].feeds]
    return _ninety_fifth(pl.concat(_waited(settings, feed, [(used[feed], at) for at, used in runs]) for feed in feeds))


def derived_runs(settings: Settings, name: str) -> dict[int, tuple[int, dict[str, int]]]:
    """Return by the number of each run of a derived dataset when it was published, in milliseconds, and the last batch
    in it of each dataset that it is computed from, ascending.

    That is when its last table was committed: the publication follows at once.
    """
    ended, sources = dict[int, int](), dict[int, Mapping[str, Sequence[Any]]]()
    for table in tables_of(settings, read_publication(settings, name)).values():
        for commit in commits(table.path):
            if commit.metadata is not None and {"batches", "sources"} <= set(commit.metadata):
                number = commit.metadata["batches"][1]
                ended[number] = max(ended.get(number, 0), commit.timestamp_ms)
                sources[number] = commit.metadata["sources"]
    owners = {table: found.dataset for table, found in pinned(settings).tables.items()}
    below = {source: derived_runs(settings, source) for source in DERIVED[name].sources if source in DERIVED}
    runs = dict[int, tuple[int, dict[str, int]]]()
    for number in sorted(ended):
        used = {owners[table]: batch for table, (_, batch, _) in sources[number].items()}
        for source, found in below.items():
            used |= found[used[source]][1]
        runs[number] = ended[number], used
    return runs


def _waited(settings: Settings, dataset: str, times: Sequence[tuple[int, int]]) -> pl.Series:
    """Return how many milliseconds each record waited; `times`: the last batch of each publication, and when it was."""
    published = pl.DataFrame(times, schema={"batch": pl.Int64, "published": pl.Int64}, orient="row")
    records = pinned(settings).read(f"bronze.{dataset}", columns=["timestamp", "_batch_id"]).sort("_batch_id")
    joined = records.join_asof(published.lazy(), left_on="_batch_id", right_on="batch", strategy="forward")
    return joined.select(pl.col("published") - pl.col("timestamp").dt.epoch("ms")).collect().to_series()


def _ninety_fifth(milliseconds: pl.Series) -> float:
    return float(milliseconds.quantile(0.95, "higher") or 0) / 1000


def rebuilt(settings: Settings, dataset: str, frame: pl.DataFrame) -> int:
    """Recompute all events from bronze by a backfill plan, without applying it; return how many rows differ."""
    first, last = frame["occurred_at"][0] - YEAR, frame["occurred_at"][-1] + YEAR
    return _differing(
        settings,
        BackfillPlan().plan(settings, dataset, BackfillParameters(start=first, end=last), BY, datetime.now(UTC)),
    )


def replayed(settings: Settings, dataset: str) -> int:
    """Recompute all records from Kafka by a replay plan, without applying it; return how many rows differ."""
    last = read_publication(settings, dataset).batch
    parameters = ReplayParameters(by="batches", first_batch=0, last_batch=last)
    return _differing(settings, ReplayPlan().plan(settings, dataset, parameters, BY, datetime.now(UTC)))


def _differing(settings: Settings, record: PlanRecord) -> int:
    """Build and compare a plan, then cancel it, so that it blocks no other."""
    done = run_plan(settings, record, PlanReporter(), _nobody, BY, upto=Stage.COMPARED)
    cancel(settings, done, BY)
    return sum(done.last(SliceBuilt).differing.values())


def _nobody(_: PlanRecord) -> None:
    """Approve nothing: a plan that is only compared needs no approval."""


def bytes_of_gold(settings: Settings, dataset: str) -> dict[str, bytes]:
    """Return the rows of a dataset's gold tables, without the platform's columns, sorted, as Arrow's bytes."""
    reading, found = pinned(settings), dict[str, bytes]()
    published = sorted(name for name, table in reading.tables.items() if table.dataset == dataset)
    for name in [name for name in published if name.startswith("gold.")]:
        rows = reading.read(name).collect()
        found[name] = bytes_of_rows(rows.select(column for column in rows.columns if not column.startswith("_")))
    return found


def bytes_of_rows(rows: pl.DataFrame) -> bytes:
    """Return the rows, sorted, as Arrow's bytes, which are equal for equal rows.

    In the oldest layout, since views of texts depend on how the rows were read.
    """
    order = [name for name, kind in rows.schema.items() if not kind.is_nested()]
    return rows.sort(order).write_ipc(None, compat_level=pl.CompatLevel.oldest()).getvalue()
