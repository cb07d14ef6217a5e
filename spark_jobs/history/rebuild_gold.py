"""Rebuild of gold grains from silver, for every kind of table: for slices and for patches.

A grain is a window and keys, or (latest) the keys. All silver rows of a grain are read; of sessions, whose grain is the
keys, those in reach of the slice (`gold_windows.py`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.declare.event_times import after, before
from include.declare.gold import EVERY_RUN, Gold
from include.declare.windows import Session
from include.ground.errors import Terminal
from include.ground.record_coordinates import POSITION
from include.ground.sql_quoting import same_sql, sql_names
from spark_jobs.backends.backend import Backend, Sql
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.gold_files import GoldTable, column_spans, silver_within
from spark_jobs.layers.gold_layer import refresh_state, refreshed_rows, refreshed_silver
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.gold_windows import FROM, UNTIL, adjacent_to_reach, in_reach, reach_of
from spark_jobs.layers.row_provenance import ReplacedGrains, rows_in_grains, rows_of_other_grains, with_history
from spark_jobs.tables.data_files import DataFile, bounds_of, parquet_files, read_folder, write_folder
from spark_jobs.tables.delta_table import Table

ReadSilver = Callable[[Sequence[DataFile]], DataFrame]


@dataclass(frozen=True)
class SessionReach:
    """The reach of a slice, in `folder`: the first and the last moment by the keys of a table of sessions."""

    target: GoldTable
    session: Session
    folder: Path

    @property
    def spans(self) -> DataFrame:
        return read_folder(self.target.spark, self.folder, self._schema)

    @property
    def _schema(self) -> StructType:
        schema = self.target.table.spec.schema
        time = schema[self.session.start].dataType
        keys = [schema[key] for key in self.target.gold.keys]
        return StructType([*keys, StructField(FROM, time), StructField(UNTIL, time)])

    def silver_files(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Return the files of silver that may have rows in the reach, or at most a gap before or after it."""
        column, gap = self.session.column, self.session.gap
        bounds = [each for path in parquet_files(self.folder) for each in bounds_of(path, (FROM, UNTIL))]
        # Without a bound there is no row with a time.
        known = [(low[FROM], high[UNTIL]) for low, high in bounds if FROM in low]
        spans = [(before(first, gap), after(last, gap)) for first, last in known]  # type: ignore[arg-type]
        return [file for file in files if any(file.overlaps(column, *span) for span in spans)]

    def rows(self, silver: DataFrame) -> DataFrame:
        column = self.session.column
        return in_reach(self.target.gold.keys, silver, (column, column), self.spans, others=False)

    def is_crossed(self, silver: DataFrame) -> bool:
        """Whether a session of silver continues outside of the reach: gold has none, or a part of it."""
        keys, place = self.target.gold.keys, self.folder / "adjacent"
        counted = silver.where(self.target.gold.row_condition)
        write_folder(adjacent_to_reach(self.session, keys, counted, self.spans).select(*keys).limit(1), place)
        return bool(rows_in_folder(place))

    def divided(self, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the rows of the table that are in reach, and those that are not."""
        keys, times, reach = self.target.gold.keys, (self.session.start, self.session.end), self.spans
        return in_reach(keys, rows, times, reach, others=False), in_reach(keys, rows, times, reach, others=True)

    def condition(self, sql: Sql) -> str:
        """Return the condition of the rows of the view `published` in the view `reach`, which it creates."""
        sql.view_folder("reach", self.folder, self._schema)
        same = same_sql(self.target.gold.keys, "published", "reach")
        begin = f'published."{self.session.start}" >= reach.{FROM}'
        return " and ".join([same, begin, f'published."{self.session.end}" <= reach.{UNTIL}'])


def planned_reach(target: GoldTable, folder: PlanFolder) -> SessionReach | None:
    """Return the reach that a plan has in a table; None when all rows of its grains are recomputed."""
    session, place = reached_session(target), folder.rows("reach", target.table.spec.name)
    return SessionReach(target, session, place) if session is not None and parquet_files(place) else None


def reached_session(target: GoldTable) -> Session | None:
    """Return the sessions of a table in which slices have a reach; None for any other table."""
    return target.gold.session if target.gold.refresh == EVERY_RUN else None


def plan_reach(target: GoldTable, folder: PlanFolder, silver: DataFrame, grains: Path) -> None:
    """Write the reach of rows of silver, whose keys are in the folder `grains`, if the table has one."""
    session = reached_session(target)
    if session is not None:
        at = F.col(session.column)
        spans = silver.where(target.gold.row_condition).select(*target.gold.keys, at.alias(FROM), at.alias(UNTIL))
        _written(target, session, spans, grains, folder.rows("reach", target.table.spec.name))


def current_reach(target: GoldTable, folder: PlanFolder, place: Path, grains: DataFrame) -> SessionReach | None:
    """Return the reach of a plan in the `grains` of the folder `place`, by the sessions as they are now.

    None when the plan has none. Other keys do not count: only sessions of these are replaced.
    """
    planned = planned_reach(target, folder)
    if planned is None:
        return None
    spans = rows_in_grains(planned.spans, grains, target.gold.keys)
    return _written(target, planned.session, spans, place, folder.staging("reach") / target.table.spec.name)


def _written(target: GoldTable, session: Session, spans: DataFrame, grains: Path, place: Path) -> SessionReach:
    files = target.files_with(parquet_files(grains))
    write_folder(reach_of(session, target.gold.keys, spans, target.table.read(target.spark, files)), place)
    return SessionReach(target, session, place)


def silver_to_read(
    reach: SessionReach | None, files: Sequence[DataFile], read: ReadSilver
) -> tuple[DataFrame, SessionReach | None]:
    """Return the rows of silver from which grains are recomputed, and their reach, which is removed if crossed."""
    if reach is not None:
        near = read(reach.silver_files(files))
        if not reach.is_crossed(near):
            return reach.rows(near), reach
        shutil.rmtree(reach.folder)
    return read(files), None


def grains_schema(target: GoldTable) -> StructType:
    """Return the columns that name a grain of a table."""
    return StructType([target.table.spec.schema[name] for name in target.gold.grain_columns])


def silver_of_grains(gold: Gold, silver: Table, written: Sequence[Path]) -> list[DataFile]:
    """Return silver's files that may hold a row of the grains in these files."""
    return silver_within(gold, silver, column_spans(written, gold.grain_columns[0]))


def visible(schema: StructType, keys: Sequence[str] = ()) -> StructType:
    """Return the columns for readers: without the platform's own, but for the keys."""
    return StructType([field for field in schema.fields if not field.name.startswith("_") or field.name in keys])


def compared_columns(target: GoldTable) -> StructType:
    """Return the columns by which the rows of a table are compared."""
    return visible(target.table.spec.data_schema, target.gold.row_columns)


@dataclass(frozen=True)
class _SliceGold:
    """A gold table, and the slice in `folder` whose rows of `silver` touch its grains."""

    target: GoldTable
    silver: Table
    folder: PlanFolder

    def silver_rows(self, state: str) -> DataFrame:
        """Return the slice's rows of silver in one of the states before, after, removed and added."""
        spec = self.silver.spec
        return read_folder(self.target.spark, self.folder.rows(state, spec.name), spec.data_schema)

    def staging(self, kind: str) -> Path:
        """Return the folder of the table's grains of a kind: touched, moved or differing."""
        return self.folder.staging(kind) / self.target.table.spec.name

    def rows(self, state: str) -> Path:
        """Return the folder of the table's own rows before or after the slice, or of its grains to correct."""
        return self.folder.rows(state, self.target.table.spec.name)


def rebuild_gold(
    backend: Backend, target: GoldTable, silver: Table, folder: PlanFolder, batch: int, complete: int = 0
) -> int:
    """Compute the grains that the slice's silver rows touch again; write them before and after, and which to correct.

    Only from rows up to the table's last refresh. `silver` and the target are pinned at `batch`; the slice's
    silver is in `folder`. `complete`: the first batch of which silver has all rows. Returns how many grains differ.
    Raises Terminal (`grains-expired`).
    """
    gold = _SliceGold(target, silver, folder)
    _stage_touched_grains(gold)
    _write_rows_after(gold, batch)
    with backend.sql() as sql:
        _save_rows_before(sql, gold, complete)
        _save_grains_to_correct(sql, gold)
    return rows_in_folder(gold.staging("differing"))


def _stage_touched_grains(gold: _SliceGold) -> None:
    """Write the grains of all of the slice's rows as `touched`, and those of rows removed or added as `moved`.

    Most slices remove and add none: then there is no folder, and one job less.
    """
    for kind, states in (("touched", ("before", "after")), ("moved", ("removed", "added"))):
        shutil.rmtree(gold.staging(kind), ignore_errors=True)
        if not any(rows_in_folder(gold.folder.rows(state, gold.silver.spec.name)) for state in states):
            continue
        rows = gold.silver_rows(states[0]).unionByName(gold.silver_rows(states[1]))
        write_folder(_touched(gold, rows), gold.staging(kind))
        if kind == "touched":
            plan_reach(gold.target, gold.folder, rows, gold.staging(kind))


def _touched(gold: _SliceGold, rows: DataFrame) -> DataFrame:
    """Return the grains that rows of silver touch: all of them, if one of the rows belongs to every grain."""
    declared = gold.target.gold
    if declared.everywhere:
        whole = gold.silver.read(gold.target.spark, gold.silver.files()).select(*rows.columns)
        general = rows.where(declared.everywhere).select(F.lit(1)).limit(1)
        rows = rows.unionByName(whole.join(general, how="left_semi"))
    return gold_rows(declared).touched(rows)


def _write_rows_after(gold: _SliceGold, batch: int) -> None:
    """Write the touched grains as computed from the slice's rows after it and silver's rows outside of it."""
    target, before, after = gold.target, gold.silver_rows("before"), gold.silver_rows("after")
    touched = gold.staging("touched")
    grains = read_folder(target.spark, touched, grains_schema(target))
    places = before.select(*POSITION).unionByName(after.select(*POSITION)).distinct()
    refreshed = refresh_state(target)

    def read(files: Sequence[DataFile]) -> DataFrame:
        outside = gold.silver.read(target.spark, files).join(places, list(POSITION), "left_anti")
        return refreshed_silver(target.gold, refreshed, outside.unionByName(after))

    files = silver_of_grains(target.gold, gold.silver, parquet_files(touched))
    merged, _ = silver_to_read(planned_reach(target, gold.folder), files, read)
    fresh = refreshed_rows(target.gold, refreshed, gold_rows(target.gold).of_grains(merged, grains, batch))
    write_folder(fresh.select(*compared_columns(target).fieldNames()), gold.rows("after"))


def _save_rows_before(sql: Sql, gold: _SliceGold, complete: int) -> None:
    """Write the published rows of the touched grains. Raises Terminal (`grains-expired`)."""
    target, touched = gold.target, gold.staging("touched")
    sql.view_table("published", target.table, target.files_with(parquet_files(touched)))
    sql.view_folder("touched", touched, grains_schema(target))
    rows = _touched_rows(sql, target, planned_reach(target, gold.folder))
    _refuse_expired(sql, target, rows, complete)
    names = sql_names(compared_columns(target).fieldNames())
    sql.save(f"select {names} from {rows}", gold.rows("before"))


def _save_grains_to_correct(sql: Sql, gold: _SliceGold) -> None:
    """Write the grains whose rows differ as `differing`, and those and the moved ones as the grains to correct."""
    schema = grains_schema(gold.target)
    for state in ("before", "after"):
        sql.view_folder(state, gold.rows(state), compared_columns(gold.target))
    sql.view_folder("moved", gold.staging("moved"), schema)
    columns = sql_names(gold.target.gold.grain_columns)
    shown = sql_names(compared_columns(gold.target).fieldNames())
    sql.save(DIFFERING.format(columns=columns, all_columns=shown), gold.staging("differing"))
    sql.view_folder("differing", gold.staging("differing"), schema)
    sql.save("select * from differing union select * from moved", gold.rows("grains"))


def refuse_expired_grains(
    backend: Backend, target: GoldTable, silver: Table, folder: PlanFolder, batch: int, complete: int
) -> None:
    """Raise Terminal when rows that `replaced_grains` would replace have records of batches before `complete`."""
    written = parquet_files(folder.rows("grains", target.table.spec.name))
    if not complete or not written:
        return
    _, reach = _silver_to_correct(target, silver, folder, batch)
    with backend.sql() as sql:
        sql.view_table("published", target.table, target.files_with(written))
        sql.view_files("touched", written, grains_schema(target))
        _refuse_expired(sql, target, _touched_rows(sql, target, reach), complete)


def _touched_rows(sql: Sql, target: GoldTable, reach: SessionReach | None) -> str:
    """Return the rows of the view `published` of the grains in the view `touched`, of sessions those in reach."""
    rows = f"published semi join touched on {same_sql(target.gold.grain_columns, 'published', 'touched')}"
    return rows if reach is None else f"(select * from {rows}) as published semi join reach on {reach.condition(sql)}"


def _refuse_expired(sql: Sql, target: GoldTable, rows: str, complete: int) -> None:
    """Raise Terminal when rows of gold have records of batches before `complete`."""
    old = f"from {rows} where _first_batch < {complete}"
    if complete and (count := sql.count(f"select 1 {old}")):
        columns = target.gold.row_columns
        named = sql_names(columns)
        values = sql.rows(f"select {named} {old} order by all limit 1")[0]
        shown = ", ".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))
        raise Terminal(
            f"{target.table.spec.name}: {count:,} rows that the slice touches were computed from records that have"
            f" expired (retention.silver), one is {shown}; they cannot be recomputed, so nothing was changed",
            "plan a range without records of these rows",
            code="grains-expired",
            table=target.table.spec.name,
            rows=count,
            row=shown,
        )


# Grains with a row whose number differs before and after; a third of the time of EXCEPT ALL both ways.
DIFFERING = """
select distinct {columns}
from (
    select {all_columns}
    from (select *, 1 as _sign from before union all select *, -1 as _sign from after) as both_sides
    group by {all_columns} having sum(_sign) <> 0
) as differing
"""


def replaced_grains(target: GoldTable, silver: Table, folder: PlanFolder, batch: int) -> ReplacedGrains:
    """Return the rows of the grains to correct, recomputed from all of silver up to the table's last refresh."""
    spark, gold, table = target.spark, target.gold, target.table
    place = folder.rows("grains", table.spec.name)
    grains, written = read_folder(spark, place, grains_schema(target)), parquet_files(place)
    refreshed = refresh_state(target)
    whole, reach = _silver_to_correct(target, silver, folder, batch)
    merged = refreshed_silver(gold, refreshed, whole)
    fresh = refreshed_rows(gold, refreshed, gold_rows(gold).of_grains(merged, grains, batch))
    begun, old = gold_rows(gold).first_batches(whole, grains), target.files_with(written)
    rows, keys = table.read(spark, old), gold.grain_columns
    stale, others = rows_in_grains(rows, grains, keys), rows_of_other_grains(rows, grains, keys)
    if reach is not None:
        stale, kept = reach.divided(stale)
        others = others.unionByName(kept)
    return ReplacedGrains(with_history(keys, stale, fresh, batch, begun), stale, others, old, batch)


def _silver_to_correct(
    target: GoldTable, silver: Table, folder: PlanFolder, batch: int
) -> tuple[DataFrame, SessionReach | None]:
    """Return the rows of silver from which the grains to correct are recomputed, of sessions with their reach."""
    place = folder.rows("grains", target.table.spec.name)
    grains = read_folder(target.spark, place, grains_schema(target))

    def read(files: Sequence[DataFile]) -> DataFrame:
        return silver.read(target.spark, files).where(F.col("_batch_id") <= batch)

    files = silver_of_grains(target.gold, silver, parquet_files(place))
    return silver_to_read(current_reach(target, folder, place, grains), files, read)
