"""Gold: the affected grains of a table, merged copy-on-write (docs/architecture.md §4, step 5).

Reads: the silver files that a run committed; the gold files that may hold the same grains; for a query also the
silver files of the affected grains. Writes: `gold.<table>`, one commit, idempotent by (app id, b).
Guarantee: after batch b the table is what the declaration gives over silver up to b, whatever the batches were.
After a crash: committed already → nothing; else the same rows are merged into the same old rows.
Does not: read silver of untouched grains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from include.catalog.dataset import Dataset
from include.catalog.event_times import FIRST, LAST
from include.catalog.pipeline import (
    AdditiveGold,
    Gold,
    LatestGold,
    QueryGold,
    gold_session,
    partition_expression,
    pruning_column,
    row_columns,
)
from include.catalog.windows import window_begin, window_end
from include.errors import Terminal
from include.paths import gold_path
from include.settings import Settings
from spark_jobs.layers.additive_gold import merged_additive
from spark_jobs.layers.gold_files import (
    GoldTable,
    Spans,
    cut_files,
    files_within,
    grains_of_silver,
    near_sessions,
    silver_spans,
    touched_files,
    window_bounds,
)
from spark_jobs.layers.gold_rows import gold_rows, touched_grains
from spark_jobs.layers.gold_update import GoldUpdate, held_by, refresh_update, update_of_run
from spark_jobs.layers.latest_gold import merged_latest
from spark_jobs.layers.query_gold import merged_query
from spark_jobs.layers.refine_run import RefineRun, facts_of
from spark_jobs.layers.session_gold import OPEN_SINCE, closed_sessions, rows_outside
from spark_jobs.layers.silver_tables import MONTH, SilverTables
from spark_jobs.layers.transform_errors import record_error
from spark_jobs.storage.data_files import DataFile, TableSpec
from spark_jobs.storage.delta_table import Table, partitioned_schema
from spark_jobs.storage.failpoints import Step, pass_step
from spark_jobs.storage.table_commits import REFRESH

# Planning is one thread's work, so two tables at a time keep the second core busy.
GOLD_AT_A_TIME = 2


class GoldBroken(Terminal):
    """An expression or the query of a gold table fails on a row of silver, which no grain can leave out."""

    def __init__(self, dataset: str, table: str, error: str) -> None:
        super().__init__(
            f"{table} fails on rows of silver, {error}; nothing was published",
            f"correct its declaration, then: headrace release run --dataset {dataset}",
        )
        self.table = table


def gold_spec(settings: Settings, dataset: Dataset, gold: Gold, silver: DataFrame) -> TableSpec:
    """Return what `gold.<table>` is, from (any) silver rows' columns."""
    schema = partitioned_schema(gold_rows(gold, silver, 0).schema, MONTH)
    bounded = tuple(name for name in row_columns(gold) if schema[name].dataType.simpleString() != "binary")
    path = gold_path(settings, dataset.name, dataset.release, gold.name)
    return TableSpec(f"gold.{gold.name}", path, schema, MONTH, (*bounded, "_last_batch"), settings.is_power_safe)


def commit_gold(targets: Sequence[GoldTable], writer: SilverTables, run: RefineRun, now: float | None = None) -> None:
    """Commit a run, which silver has, to every gold table; tables with an interval that is over at `now` catch up.

    Raises OwnershipLost, GoldBroken.
    """
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        for _ in pool.map(lambda target: _commit_run(target, writer, run, now), targets):
            pass
    pass_step(Step.ALL_GOLD_COMMITTED, run.last)


def _commit_run(target: GoldTable, writer: SilverTables, run: RefineRun, now: float | None) -> None:
    if target.table.committed(target.app_id) >= run.last:
        return
    update = update_of_run(target, writer, run, now)
    _commit_update(target, writer, update, (target.app_id, run.last), run.facts(writer.dataset))


def refresh_gold(target: GoldTable, writer: SilverTables, upto: int, epoch: int, now: float) -> None:
    """Bring a table with an interval up to batch `upto` between two runs; the commit belongs to no run.

    Raises OwnershipLost, GoldBroken.
    """
    update = refresh_update(writer.silver, held_by(target), upto, now)
    _commit_update(target, writer, update, (f"{target.app_id}{REFRESH}", upto), facts_of(writer.dataset, epoch))


def _commit_update(
    target: GoldTable, writer: SilverTables, update: GoldUpdate, transaction: tuple[str, int], facts: Mapping[str, Any]
) -> None:
    """Merge the rows of an update into one table; the transaction's version is the last batch."""
    table, batch = target.table, transaction[1]
    old, added, grains = list[DataFile](), list[DataFile](), 0
    if update.parts:
        with failure_named(facts["dataset"], table):
            old = _replaced_files(target, writer.silver, update)
            rows = _merged(target, writer.silver, update, table.read(target.spark, old), batch)
            opened, session = Observation(), gold_session(target.gold)
            if session is not None and update.sessions is not None:
                rows = closed_sessions(session, update.sessions, rows, opened)
            # Never the folder of a run, whose files are committed.
            kind = "b" if transaction[0] == target.app_id else "refresh-"
            added, grains = write_gold(target, rows, f"{kind}{batch:08d}-{facts['epoch']}", old, batch)
            if update.sessions is not None:
                update = update.with_open_sessions(opened.get[OPEN_SINCE])
    pass_step(Step.GOLD_WRITTEN, batch)
    metadata = gold_metadata(target, added, old, grains, facts) | {"app_id": transaction[0]} | update.metadata
    table.commit(*transaction, metadata, added, old)
    pass_step(Step.GOLD_COMMITTED, batch)


def _replaced_files(target: GoldTable, silver: Table, update: GoldUpdate) -> list[DataFile]:
    """Return the table's files that may have the grains of the update's late rows; closed windows are new to it."""
    gold, late, session = target.gold, update.late.files if update.late else (), gold_session(target.gold)
    found = near_sessions(gold, late, touched_files(target, grains_of_silver(gold, silver, late))) if late else []
    if session is None or update.sessions is None:
        return found
    open_since = update.holds.since if update.holds else None
    recent = files_within(target.table, session.end, [(open_since or FIRST, LAST)])
    return list({file.path: file for file in (*found, *recent)}.values())


@contextmanager
def failure_named(dataset: str, table: Table) -> Iterator[None]:
    """Raise GoldBroken for an error that a row of silver causes."""
    try:
        yield
    except Exception as error:
        text = record_error(error)
        if text is None:
            raise
        raise GoldBroken(dataset, table.spec.name, text) from error


def write_gold(
    target: GoldTable, rows: DataFrame, folder: str, old: Sequence[DataFile], batch: int
) -> tuple[list[DataFile], int]:
    """Write the files that take the place of `old`; return them and how many of their rows `batch` changed."""
    added = target.table.write(rows.withColumn(MONTH, F.expr(partition_expression(target.gold))), folder)
    changed = sum(_changed_rows(target.table, file, batch) for file in added)
    return cut_files(target, added, old, changed, batch), changed


def _merged(target: GoldTable, silver: Table, update: GoldUpdate, old: DataFrame, batch: int) -> DataFrame:
    gold, parts = target.gold, update.parts
    sources = [(part.rows(target, silver), part.within) for part in parts]
    session = gold_session(gold)
    if session is not None and update.sessions is not None and update.closed in parts:
        earlier, within = sources[-1]
        sources[-1] = rows_outside(session, gold.keys, earlier, old), within
    if isinstance(gold, AdditiveGold):
        return merged_additive(gold, old, _union([gold_rows(gold, rows, batch, within) for rows, within in sources]))
    if isinstance(gold, LatestGold):
        return merged_latest(gold, old, _union([rows.where(gold.where) for rows, _ in sources]), batch)
    files = files_within(silver, pruning_column(gold), _spans(gold, [file for part in parts for file in part.files]))
    whole = silver.read_batches(target.spark, files, 0, batch)
    grains = _union([touched_grains(gold, rows, within) for rows, within in sources])
    return merged_query(gold, old, whole, grains, batch)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _spans(gold: QueryGold, fresh: Sequence[DataFile]) -> Spans:
    """Return spans of the pruning column that hold all rows of the grains which the fresh rows touch."""
    spans = silver_spans(gold, fresh)
    if gold.window is None or spans is None:
        return spans
    windows = [window_bounds(gold.window, low, high) for low, high in spans]
    return [(window_begin(gold.window, low), window_end(gold.window, high)) for low, high in windows]


def gold_metadata(
    target: GoldTable, added: Sequence[DataFile], removed: Sequence[DataFile], grains: int, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata of a commit to a gold table: `facts` of the run, rows written, grains changed, total rows."""
    table = target.table
    rows = sum(file.rows for file in added)
    total = table.rows - sum(file.rows for file in removed) + rows
    return {
        **facts,
        "table": table.spec.name,
        "app_id": target.app_id,
        "rows": rows,
        "grains": grains,
        "total": total,
    }


def _changed_rows(table: Table, file: DataFile, batch: int) -> int:
    column = pq.read_table(table.spec.path / file.path, columns=["_last_batch"], partitioning=None)["_last_batch"]
    return int(pc.sum(pc.equal(column, batch)).as_py() or 0)
