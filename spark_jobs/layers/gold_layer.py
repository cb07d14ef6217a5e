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
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.catalog.dataset import Dataset
from include.catalog.pipeline import (
    AdditiveGold,
    Gold,
    LatestGold,
    QueryGold,
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
from spark_jobs.layers.latest_gold import merged_latest
from spark_jobs.layers.query_gold import merged_query
from spark_jobs.layers.refine_run import RefineRun
from spark_jobs.layers.silver_tables import MONTH, SilverTables
from spark_jobs.layers.transform_errors import record_error
from spark_jobs.storage.data_files import DataFile, TableSpec
from spark_jobs.storage.delta_table import Table, partitioned_schema
from spark_jobs.storage.failpoints import Step, pass_step

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


def commit_gold(targets: Sequence[GoldTable], writer: SilverTables, silver: Sequence[DataFile], run: RefineRun) -> None:
    """Commit a run to every gold table; `silver` are silver's files of the run as committed.

    Raises OwnershipLost, GoldBroken.
    """
    facts = run.facts(writer.dataset)
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        for _ in pool.map(lambda target: _commit_table(target, writer.silver, silver, run.last, facts), targets):
            pass
    pass_step(Step.ALL_GOLD_COMMITTED, run.last)


def _commit_table(
    target: GoldTable, silver: Table, fresh: Sequence[DataFile], batch: int, facts: Mapping[str, Any]
) -> None:
    """Merge the silver files `fresh`, which are those of the run that ends with `batch`, into one table."""
    table = target.table
    if table.committed(target.app_id) >= batch:
        return
    old, added, grains = list[DataFile](), list[DataFile](), 0
    if fresh:
        with failure_named(facts["dataset"], table):
            old = near_sessions(target.gold, fresh, touched_files(target, grains_of_silver(target.gold, silver, fresh)))
            new = silver.read(target.spark, fresh)
            rows = _merged(target, silver, new, table.read(target.spark, old), fresh, batch)
            added, grains = write_gold(target, rows, f"b{batch:08d}-{facts['epoch']}", old, batch)
    pass_step(Step.GOLD_WRITTEN, batch)
    table.commit(target.app_id, batch, gold_metadata(target, added, old, grains, facts), added, old)
    pass_step(Step.GOLD_COMMITTED, batch)


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


def _merged(
    target: GoldTable, silver: Table, rows: DataFrame, old: DataFrame, fresh: Sequence[DataFile], batch: int
) -> DataFrame:
    gold = target.gold
    if isinstance(gold, AdditiveGold):
        return merged_additive(gold, old, gold_rows(gold, rows, batch))
    if isinstance(gold, LatestGold):
        return merged_latest(gold, old, rows.where(gold.where), batch)
    sources = files_within(silver, pruning_column(gold), _spans(gold, fresh))
    whole = silver.read_batches(target.spark, sources, 0, batch)
    return merged_query(gold, old, whole, touched_grains(gold, rows), batch)


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
