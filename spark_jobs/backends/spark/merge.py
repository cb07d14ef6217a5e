"""An update merged into a gold table: the touched grains' old rows are removed and their new rows added, in one MERGE.

Guarantee: the rows are those of the same expressions that rebuild a grain, whatever kind the table is.
The driver counts rows by one aggregate, and knows files by their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.declare.windows import MICROSECOND, Session
from spark_jobs.backends.backend import Metadata, Transaction
from spark_jobs.backends.spark.spark_table import STALE, own
from spark_jobs.contract.literals import literal
from spark_jobs.layers.gold_files import GoldTable, Spans, files_within, touched_spans
from spark_jobs.layers.gold_layer import GoldCommit
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.gold_windows import SessionClosing, is_before
from spark_jobs.layers.row_provenance import ReplacedGrains, rows_in_grains
from spark_jobs.layers.silver_tables import MONTH
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.failpoints import Step, pass_step

OPEN = "_open"
HELD = StorageLevel.MEMORY_AND_DISK
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def merge(commit: GoldCommit) -> None:
    """Merge an update."""
    target, batch = commit.target, commit.batch
    source = _held(_source(target, commit.update.sessions, *_changed(commit)))
    added, removed, opened = _counted(target, source)
    pass_step(Step.GOLD_WRITTEN, batch)
    metadata = commit.with_open_sessions(lambda: opened).metadata(added, added, removed)
    spans, transaction = touched_spans(target.gold, commit.late), Transaction(commit.app_id, batch)
    _commit(target, source.where(~F.col(OPEN)), removed, transaction, metadata, spans)
    pass_step(Step.GOLD_COMMITTED, batch)


def replace_grains(target: GoldTable, replaced: ReplacedGrains, transaction: Transaction, metadata: Metadata) -> None:
    """Replace the stale rows by the fresh ones."""
    source = _held(_source(target, None, replaced.fresh, replaced.stale))
    added, removed, _ = _counted(target, source)
    pass_step(Step.GOLD_WRITTEN, replaced.batch)
    stated = {**metadata, "rows": added, "total": target.table.rows - removed + added}
    _commit(target, source, removed, transaction, stated, _spans(target, replaced.files))


def _commit(
    target: GoldTable, source: DataFrame, removed: int, transaction: Transaction, metadata: Metadata, spans: Spans
) -> None:
    """Commit rows, of which so many name rows to remove: without any, the table is not searched for them."""
    if removed:
        within, on = _within(target, spans), target.gold.row_columns
        own(target.table).replace(source.drop(OPEN), on, transaction, metadata, *within)
    else:
        own(target.table).append(source, transaction, metadata)


def _held(source: DataFrame) -> DataFrame:
    """Return rows that are computed once: MERGE would materialize a cached source once more.

    If an executor is lost, the run fails and begins again.
    """
    return source.localCheckpoint(eager=False, storageLevel=HELD)


def _changed(commit: GoldCommit) -> tuple[DataFrame, DataFrame]:
    """Return the rows of the touched grains as they become, and as they are."""
    target, late, batch = commit.target, commit.late, commit.batch
    gold, table = target.gold, target.table
    touched = files_within(table, gold.grain_columns[0], touched_spans(gold, late)) if late else []
    old = table.read(target.spark, commit.old_files(touched))
    sources, rows = commit.sources(old), gold_rows(gold)
    if gold.session is not None:
        stale = _near(gold.session, gold.keys, old, rows.of_sources(sources, batch))
    else:
        stale = rows_in_grains(old, rows.touched_by(sources, batch, old), rows.grain)
    return commit.merged(stale, sources), stale


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


def _source(target: GoldTable, sessions: SessionClosing | None, fresh: DataFrame, stale: DataFrame) -> DataFrame:
    """Return new rows and, marked, the old ones; of sessions on close also, marked, those that are still open."""
    fresh = fresh.withColumn(MONTH, F.expr(target.gold.partition_expression))
    is_open = ~is_before(sessions.closed.column, sessions.closed.bound) if sessions else F.lit(False)
    fresh = fresh.select(*target.table.spec.schema.fieldNames(), F.lit(False).alias(STALE), is_open.alias(OPEN))
    stale = stale.select(*target.gold.row_columns, F.lit(True).alias(STALE), F.lit(False).alias(OPEN))
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


def _spans(target: GoldTable, files: Sequence[DataFile]) -> Spans:
    """Return the spans of the grain's first column in files of the table; None unless all their rows have a value."""
    name = target.gold.grain_columns[0]
    known = [(file.low[name], file.high[name]) for file in files if file.nulls.get(name) == 0 and name in file.low]
    return known if len(known) == len(files) else None


def _within(target: GoldTable, spans: Spans) -> list[Column]:
    """Return what holds for all rows of grains in the spans, by which files are left out.

    Sessions of earlier runs may be of other keys. A number with a fraction may lie outside of its bounds.
    """
    if not spans or target.gold.session is not None or not isinstance(spans[0][0], int | str | date):
        return []
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    return [F.col(f"t.`{target.gold.grain_columns[0]}`").between(literal(low), literal(high))]
