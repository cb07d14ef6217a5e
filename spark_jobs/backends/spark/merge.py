"""An update merged into a gold table: the touched grains' old rows are removed and their new rows added, in one MERGE.

Reads: the update's rows of silver, by the files that its commits added; the old rows of the same grains.
Guarantee: the rows are those of the same expressions that rebuild a grain, whatever kind the table is.
The driver counts rows by one aggregate, and knows files by their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.declare.event_times import FIRST, LAST
from include.declare.windows import MICROSECOND, Session
from spark_jobs.backends.backend import Metadata, Transaction
from spark_jobs.backends.spark.spark_table import STALE, SparkTable
from spark_jobs.layers.gold_files import (
    GoldTable,
    Spans,
    files_within,
    near_sessions,
    silver_spans,
    silver_within,
    window_bounds,
)
from spark_jobs.layers.gold_layer import failure_named
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.gold_update import GoldUpdate
from spark_jobs.layers.gold_windows import is_before
from spark_jobs.layers.row_provenance import rows_in_grains
from spark_jobs.layers.session_gold import rows_outside
from spark_jobs.layers.silver_tables import MONTH, SilverTables
from spark_jobs.tables.data_files import Bound, DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, pass_step

OPEN = "_open"
HELD = StorageLevel.MEMORY_AND_DISK
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class _Changed:
    """The rows of a gold table that take the place of its `stale` ones; `on`: the columns that name the latter."""

    fresh: DataFrame
    stale: DataFrame
    on: Sequence[str]


def merge(
    target: GoldTable, writer: SilverTables, update: GoldUpdate, transaction: Transaction, facts: Metadata
) -> None:
    """Merge an update, unless it has no rows: the commit says how far the table is refreshed then."""
    table, batch = target.table, transaction.version
    assert isinstance(table, SparkTable), f"{table.spec.name} was opened by another backend"
    named = {**facts, "table": table.spec.name, "app_id": transaction.app_id}
    if not update.parts:
        pass_step(Step.GOLD_WRITTEN, batch)
        counts = {"rows": 0, "grains": 0, "total": table.rows}
        table.append(target.spark.range(0).select(*_nulls(table)), transaction, {**named, **counts, **update.metadata})
        pass_step(Step.GOLD_COMMITTED, batch)
        return
    with failure_named(facts["dataset"], table):
        changed = _changed(target, writer.silver, update, batch)
        # A cached source would be materialized once more by MERGE. If an executor is lost, the run fails and begins
        # again.
        source = _source(target, update, changed).localCheckpoint(eager=False, storageLevel=HELD)
        _commit(target, update, changed, source, transaction, named)
    pass_step(Step.GOLD_COMMITTED, batch)


def _commit(
    target: GoldTable,
    update: GoldUpdate,
    changed: _Changed,
    source: DataFrame,
    transaction: Transaction,
    named: Metadata,
) -> None:
    table, batch = target.table, transaction.version
    assert isinstance(table, SparkTable)
    added, removed, opened = _counted(target, source)
    if update.sessions is not None:
        update = update.with_open_sessions(opened)
    pass_step(Step.GOLD_WRITTEN, batch)
    counts = {"rows": added, "grains": added, "total": table.rows - removed + added}
    metadata = {**named, **counts, **update.metadata}
    rows = source.where(~F.col(OPEN)).drop(OPEN)
    if removed:
        table.replace(rows, changed.on, transaction, metadata, _within(target, update))
    else:
        table.append(rows, transaction, metadata)


def _nulls(table: Table) -> list[Column]:
    return [F.lit(None).cast(field.dataType).alias(field.name) for field in table.spec.schema.fields]


def _changed(target: GoldTable, silver: Table, update: GoldUpdate, batch: int) -> _Changed:
    gold, table, spark = target.gold, target.table, target.spark
    old = table.read(spark, _old_files(target, update))
    sources = [(part.rows(target, silver), part.within) for part in update.parts]
    if update.sessions is not None and update.closed in update.parts:
        earlier, within = sources[-1]
        sources[-1] = rows_outside(update.sessions.session, gold.keys, earlier, old), within
    rows = gold_rows(gold)
    if gold.session is not None:
        stale = _near(gold.session, gold.keys, old, rows.of_sources(sources, batch))
    else:
        stale = rows_in_grains(old, rows.touched_by(sources, batch), rows.grain)

    def whole() -> DataFrame:
        spans = _spans(target, [file for part in update.parts for file in part.files])
        return silver.read_batches(spark, silver_within(gold, silver, spans), 0, batch)

    return _Changed(rows.merged(stale, sources, whole, batch), stale, gold.row_columns)


def _near(session: Session, keys: Sequence[str], old: DataFrame, new: DataFrame) -> DataFrame:
    """Return the old sessions that lie at most a gap from a new one of their keys: no others are joined to it."""
    gap = session.gap // MICROSECOND
    left, right = old.alias("_old"), new.select(*keys, session.start, session.end).alias("_new")
    near = (F.unix_micros(f"_old.{session.end}") >= F.unix_micros(f"_new.{session.start}") - gap) & (
        F.unix_micros(f"_old.{session.start}") <= F.unix_micros(f"_new.{session.end}") + gap
    )
    for key in keys:
        near = near & F.col(f"_old.`{key}`").eqNullSafe(F.col(f"_new.`{key}`"))
    return left.join(right, near, "left_semi")


def _source(target: GoldTable, update: GoldUpdate, changed: _Changed) -> DataFrame:
    """Return new rows and, marked, the old ones; of sessions on close also, marked, those that are still open."""
    fresh = changed.fresh.withColumn(MONTH, F.expr(target.gold.partition_expression))
    is_open = F.lit(False)
    if update.sessions is not None:
        is_open = ~is_before(update.sessions.closed.column, update.sessions.closed.bound)
    fresh = fresh.select(*target.table.spec.schema.fieldNames(), F.lit(False).alias(STALE), is_open.alias(OPEN))
    stale = changed.stale.select(*changed.on, F.lit(True).alias(STALE), F.lit(False).alias(OPEN))
    return fresh.unionByName(stale, allowMissingColumns=True)


def _counted(target: GoldTable, source: DataFrame) -> tuple[int, int, datetime | None]:
    """Return how many rows are added and removed, and the least start of an open session."""
    session = target.gold.session
    start = F.unix_micros(session.start) if session is not None else F.lit(None).cast("long")
    found = source.agg(
        F.count_if(~F.col(STALE) & ~F.col(OPEN)).alias("added"),
        F.count_if(F.col(STALE)).alias("removed"),
        F.min(F.when(F.col(OPEN), start)).alias("since"),
    ).first()
    assert found is not None, "an aggregate without groups is one row"
    since = None if found["since"] is None else EPOCH + found["since"] * timedelta(microseconds=1)
    return found["added"], found["removed"], since


def _old_files(target: GoldTable, update: GoldUpdate) -> list[DataFile]:
    """Return the table's files that may have the grains of the update's late rows; closed windows are new to it."""
    gold, table, late = target.gold, target.table, update.late.files if update.late else ()
    found = near_sessions(gold, late, files_within(table, gold.grain_columns[0], _spans(target, late))) if late else []
    if update.sessions is None:
        return found
    open_since = update.refreshed.since if update.refreshed else None
    recent = files_within(table, update.sessions.session.end, [(open_since or FIRST, LAST)])
    return list({file.path: file for file in (*found, *recent)}.values())


def _spans(target: GoldTable, files: Sequence[DataFile]) -> Spans:
    """Return the spans of a table's first column of the grain in which rows of these files of silver lie."""
    window, spans = target.gold.window, silver_spans(target.gold, files)
    if window is None or spans is None:
        return spans
    return [window_bounds(window, low, high) for low, high in spans]


def _within(target: GoldTable, update: GoldUpdate) -> str:
    """Return a condition that holds for all rows that an update removes, by which files are left out."""
    window, spans = target.gold.window, _spans(target, update.late.files if update.late else ())
    if window is None or not spans:
        return "true"
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    return f"t.`{window.name}` between {_sql(low)} and {_sql(high)}"


def _sql(bound: Bound) -> str:
    if isinstance(bound, datetime):
        return f"timestamp '{bound.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"
    return f"date '{bound}'"
