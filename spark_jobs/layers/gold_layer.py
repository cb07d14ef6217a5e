"""Gold: the affected grains of a table, merged copy-on-write (docs/architecture.md §4, step 5).

Reads: the silver files that a run committed; the gold files that may hold the same grains; for a query also the
silver files of the affected grains. Writes: `gold.<table>`, one commit, idempotent by (app id, b).
Guarantee: after batch b the table holds what its declaration gives over silver up to b, independently of the batches.
After a crash: a committed run is skipped; else the same rows are merged into the same old rows.
Does not: read silver of untouched grains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.declare.event_times import FIRST, LAST
from include.declare.gold import Gold
from include.ground.app_ids import refresh_app_id
from include.ground.errors import Terminal
from include.ground.paths import gold_path
from include.ground.settings import Settings
from spark_jobs.layers.embedded_gold import MERGES
from spark_jobs.layers.gold_files import (
    MOST_ROWS,
    GoldTable,
    cut_files,
    files_within,
    grains_of_silver,
    near_sessions,
    silver_spans,
    silver_within,
    touched_files,
    window_bounds,
    write_rows,
)
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.gold_update import GoldUpdate, refresh_state, refresh_update, update_of_run
from spark_jobs.layers.session_gold import OPEN_SINCE, closed_sessions, rows_outside
from spark_jobs.layers.silver import SilverOfRun
from spark_jobs.layers.silver_tables import MONTH, RefineRun, SilverTables, facts_of
from spark_jobs.layers.transform_errors import record_error
from spark_jobs.tables.data_files import DataFile, TableSpec
from spark_jobs.tables.delta_table import Table, partitioned_schema
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.prepared_query import SlotFull

# Planning is one thread's work, so two tables at a time keep the second core busy.
GOLD_AT_A_TIME = 2
MOST_SOURCE_ROWS = 4 * MOST_ROWS
"""Rows of silver that DuckDB reads for a query; it keeps the columns that the query reads, of the affected grains."""


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


def commit_gold(
    targets: Sequence[GoldTable], writer: SilverTables, run: RefineRun, silver: SilverOfRun, now: float | None = None
) -> None:
    """Commit a run, as `silver` has it, to every gold table; tables with an interval that is over at `now` catch up.

    Raises OwnershipLost, GoldFailed.
    """
    pending = [target for target in targets if target.table.committed(target.app_id) < run.last]
    if silver.files and any(target.embedded for target in pending):
        silver = silver.in_memory(writer, run)
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        for _ in pool.map(lambda target: _commit_run(target, writer, run, silver.rows, now), pending):
            pass
    pass_step(Step.ALL_GOLD_COMMITTED, run.last)


def _commit_run(
    target: GoldTable, writer: SilverTables, run: RefineRun, rows: pa.Table | None, now: float | None
) -> None:
    update = update_of_run(target, writer, run, now)
    _commit_update(target, writer, update, (target.app_id, run.last), run.facts(writer.dataset), rows)


def refresh_gold(target: GoldTable, writer: SilverTables, upto: int, epoch: int, now: float) -> None:
    """Bring a table with an interval up to batch `upto` between two runs; the commit belongs to no run.

    Raises OwnershipLost, GoldFailed.
    """
    update = refresh_update(writer.silver, refresh_state(target), upto, now)
    _commit_update(target, writer, update, (refresh_app_id(target.app_id), upto), facts_of(writer.dataset, epoch))


def _commit_update(
    target: GoldTable,
    writer: SilverTables,
    update: GoldUpdate,
    transaction: tuple[str, int],
    facts: Mapping[str, Any],
    fresh: pa.Table | None = None,
) -> None:
    """Merge the rows of an update into one table; the transaction's version is the last batch.

    `fresh`: the inputs of these rows in memory, if they are known.
    """
    table, batch = target.table, transaction[1]
    old, added, grains = list[DataFile](), list[DataFile](), 0
    # Never the folder of a run, whose files are committed.
    folder = f"{'b' if transaction[0] == target.app_id else 'refresh-'}{batch:08d}-{facts['epoch']}"
    if update.parts:
        with failure_named(facts["dataset"], table):
            merged = None if fresh is None else _merged_embedded(target, writer.silver, fresh, folder, batch)
            if merged is not None:
                old, added, grains = merged
            else:
                old = _replaced_files(target, writer.silver, update)
                update, added, grains = _merged_by_spark(target, writer.silver, update, old, folder, batch)
    pass_step(Step.GOLD_WRITTEN, batch)
    metadata = gold_metadata(target, added, old, grains, facts) | {"app_id": transaction[0]} | update.metadata
    table.commit(*transaction, metadata, added, old)
    pass_step(Step.GOLD_COMMITTED, batch)


def _merged_embedded(
    target: GoldTable, silver: Table, fresh: pa.Table, folder: str, batch: int
) -> tuple[list[DataFile], list[DataFile], int] | None:
    """Merge a run in this process; return the files replaced, those in their place, and how many rows changed.

    None when the table needs Spark: its old rows are too many or too large, or a value does not fit its type.
    """
    if target.embedded is None:
        return None
    kind = MERGES[type(target.gold)]
    try:
        with kind.session(len(fresh)) as duck:
            merge = kind(duck, target, target.embedded, silver, batch)
            grains = merge.begin(fresh)
            if not grains.spans and grains.spans is not None:
                return [], [], 0
            old, sources = touched_files(target, grains), merge.sources(grains)
            if _rows_of(old) + len(fresh) > MOST_ROWS or _rows_of(sources) > MOST_SOURCE_ROWS:
                return None
            merged = merge.finish(old, sources)
    except (SlotFull, duckdb.OutOfMemoryException):
        return None
    except (duckdb.DataError, pa.ArrowInvalid):
        # Spark fails on it as well, and names the cause.
        return None
    changed = int(pc.sum(pc.equal(merged["_last_batch"], batch)).as_py() or 0)
    return old, write_rows(target, merged, target.table.attempt_folder(folder), old, changed, batch), changed


def _rows_of(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)


def _merged_by_spark(
    target: GoldTable, silver: Table, update: GoldUpdate, old: Sequence[DataFile], folder: str, batch: int
) -> tuple[GoldUpdate, list[DataFile], int]:
    """Write the rows that take the place of `old`; return the update with its open sessions, the files, and a count."""
    rows = _merged(target, silver, update, target.table.read(target.spark, old), batch)
    opened = Observation()
    if update.sessions is not None:
        rows = closed_sessions(update.sessions, rows, opened)
    added, grains = write_gold(target, rows, folder, old, batch)
    if update.sessions is not None:
        update = update.with_open_sessions(opened.get[OPEN_SINCE])
    return update, added, grains


def _replaced_files(target: GoldTable, silver: Table, update: GoldUpdate) -> list[DataFile]:
    """Return the table's files that may have the grains of the update's late rows; closed windows are new to it."""
    gold, late = target.gold, update.late.files if update.late else ()
    found = near_sessions(gold, late, touched_files(target, grains_of_silver(gold, silver, late))) if late else []
    if update.sessions is None:
        return found
    open_since = update.refreshed.since if update.refreshed else None
    recent = files_within(target.table, update.sessions.session.end, [(open_since or FIRST, LAST)])
    return list({file.path: file for file in (*found, *recent)}.values())


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


def _merged(target: GoldTable, silver: Table, update: GoldUpdate, old: DataFrame, batch: int) -> DataFrame:
    gold, parts = target.gold, update.parts
    sources = [(part.rows(target, silver), part.within) for part in parts]
    if update.sessions is not None and update.closed in parts:
        earlier, within = sources[-1]
        sources[-1] = rows_outside(update.sessions.session, gold.keys, earlier, old), within

    def whole() -> DataFrame:
        spans = silver_spans(gold, [file for part in parts for file in part.files])
        if gold.window is not None and spans is not None:
            spans = [window_bounds(gold.window, low, high) for low, high in spans]
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
