"""Gold: the affected grains of a table, merged copy-on-write (docs/architecture.md §4, step 5).

Reads: the silver files that a run committed; the gold files that may hold the same grains; for a query also the
silver files of the affected grains. Writes: `gold.<table>`, one commit, idempotent by (app id, b).
Guarantee: after batch b the table holds what its declaration gives over silver up to b, independently of the batches.
After a crash: a committed run is skipped; else the same rows are merged into the same old rows.
Does not: read silver of untouched grains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.declare.event_times import FIRST, LAST
from include.declare.gold import Gold
from include.ground.errors import Terminal
from include.ground.paths import gold_path
from include.ground.settings import Settings
from spark_jobs.layers.gold_files import (
    GoldTable,
    cut_files,
    files_within,
    grains_of_silver,
    near_sessions,
    silver_within,
    touched_files,
    touched_spans,
)
from spark_jobs.layers.gold_rows import Sources, gold_rows
from spark_jobs.layers.gold_update import GoldUpdate
from spark_jobs.layers.session_gold import OPEN_SINCE, closed_sessions, rows_outside
from spark_jobs.layers.silver_tables import MONTH, SilverTables
from spark_jobs.layers.transform_errors import record_error
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table, partitioned_schema
from spark_jobs.tables.failpoints import Step, pass_step

# Planning is one thread's work, so two tables at a time keep the second core busy.
GOLD_AT_A_TIME = 2


class GoldFailed(Terminal):
    """An expression or the query of a gold table fails on a row of silver, and no grain may omit a row."""

    def __init__(self, dataset: str, table: str, error: str) -> None:
        super().__init__(
            f"{table} fails on rows of silver, {error}; nothing was published",
            f"correct its declaration, then: headrace release run --dataset {dataset}",
        )
        self.table = table


def gold_spec(settings: Settings, dataset: Dataset, gold: Gold, columns: StructType) -> TableSpec:
    """Return what `gold.<table>` is, from the columns that Spark computes."""
    schema = partitioned_schema(columns, MONTH)
    bounded = tuple(name for name in gold.row_columns if schema[name].dataType.simpleString() != "binary")
    path = gold_path(settings, dataset.name, dataset.release, gold.name)
    return TableSpec(f"gold.{gold.name}", path, schema, MONTH, (*bounded, "_last_batch"), settings.is_power_safe)


@contextmanager
def failure_named(dataset: str, table: Table) -> Iterator[None]:
    """Raise GoldFailed for an error that a row of silver causes."""
    try:
        yield
    except Exception as error:
        text = record_error(error)
        if text is None:
            raise
        raise GoldFailed(dataset, table.spec.name, text) from error


def write_gold(
    target: GoldTable, rows: DataFrame, folder: str, old: Sequence[DataFile], batch: int
) -> tuple[list[DataFile], int]:
    """Write the files that take the place of `old`; return them and how many of their rows `batch` changed."""
    added = target.table.write(rows.withColumn(MONTH, F.expr(target.gold.partition_expression)), folder)
    changed = sum(_changed_rows(target.table, file, batch) for file in added)
    return cut_files(target, added, old, changed, batch), changed


def late_and_open_files(target: GoldTable, update: GoldUpdate, touched: list[DataFile]) -> list[DataFile]:
    """Return the table's files that may have grains of late rows, which are in `touched`, or sessions that were open.

    Closed windows are new to it.
    """
    late = update.late.files if update.late else ()
    found = near_sessions(target.gold, late, touched) if late else []
    if update.sessions is None:
        return found
    open_since = update.refreshed.since if update.refreshed else None
    recent = files_within(target.table, update.sessions.session.end, [(open_since or FIRST, LAST)])
    return list({file.path: file for file in (*found, *recent)}.values())


def sources_of(target: GoldTable, silver: Table, update: GoldUpdate, old: DataFrame) -> Sources:
    """Return the rows of silver that an update merges into the `old` rows of a table."""
    gold, sources = target.gold, [(part.rows(target, silver), part.within) for part in update.parts]
    if update.sessions is not None and update.closed in update.parts:
        earlier, within = sources[-1]
        sources[-1] = rows_outside(update.sessions.session, gold.keys, earlier, old), within
    return sources


def merged_rows(
    target: GoldTable, silver: Table, update: GoldUpdate, old: DataFrame, sources: Sources, batch: int
) -> DataFrame:
    """Return the `old` rows of a table with an update's sources merged into them."""
    gold = target.gold

    def whole() -> DataFrame:
        spans = touched_spans(gold, [file for part in update.parts for file in part.files])
        return silver.read_batches(target.spark, silver_within(gold, silver, spans), 0, batch)

    return gold_rows(gold).merged(old, sources, whole, batch)


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


def merge_by_spark(
    target: GoldTable, writer: SilverTables, update: GoldUpdate, transaction: tuple[str, int], facts: Mapping[str, Any]
) -> None:
    """Merge the rows of an update that has some by Spark's expressions; this process cuts and commits the files."""
    silver, batch, late = writer.silver, transaction[1], update.late.files if update.late else ()
    touched = touched_files(target, grains_of_silver(target.gold, silver, late)) if late else []
    old = late_and_open_files(target, update, touched)
    before = target.table.read(target.spark, old)
    rows = merged_rows(target, silver, update, before, sources_of(target, silver, update, before), batch)
    opened = Observation()
    if update.sessions is not None:
        rows = closed_sessions(update.sessions, rows, opened)
    added, grains = write_gold(target, rows, merge_folder(target, transaction, facts), old, batch)
    if update.sessions is not None:
        update = update.with_open_sessions(opened.get[OPEN_SINCE])
    commit_merged(target, update, transaction, facts, added, old, grains)


def merge_folder(target: GoldTable, transaction: tuple[str, int], facts: Mapping[str, Any]) -> str:
    """Return the folder of a merge; never one of a run, whose files are committed, for a refresh."""
    return f"{'b' if transaction[0] == target.app_id else 'refresh-'}{transaction[1]:08d}-{facts['epoch']}"


def commit_merged(
    target: GoldTable,
    update: GoldUpdate,
    transaction: tuple[str, int],
    facts: Mapping[str, Any],
    added: Sequence[DataFile] = (),
    old: Sequence[DataFile] = (),
    grains: int = 0,
) -> None:
    """Commit the files of a merge, which has changed so many `grains`; the transaction's version is the last batch."""
    app_id, batch = transaction
    pass_step(Step.GOLD_WRITTEN, batch)
    metadata = gold_metadata(target, added, old, grains, facts) | {"app_id": app_id} | update.metadata
    target.table.commit(app_id, batch, metadata, added, old)
    pass_step(Step.GOLD_COMMITTED, batch)
