"""Rebuild of gold grains from silver, for every kind of table: for slices and for patches.

A grain is what a row of gold depends on: a window and keys, or (latest) the keys. All of its silver rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog.pipeline import Gold, grain_columns, row_columns
from include.errors import Terminal
from include.record_coordinates import PLACE
from spark_jobs.engine.rebuild_slice import PlanFolder
from spark_jobs.layers.gold_files import GoldTable, grain_spans, grains_in, silver_within, touched_files
from spark_jobs.layers.gold_rows import first_batches, rows_of_grains, touched_grains
from spark_jobs.layers.gold_update import refresh_state, refreshed_rows, refreshed_silver
from spark_jobs.layers.row_provenance import with_grains_replaced
from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.duckdb_session import (
    DuckSession,
    duckdb_session,
    parquet_files,
    read_folder,
    rows_in_folder,
    write_folder,
)


def grains_schema(target: GoldTable) -> StructType:
    """Return the columns that name a grain of a table."""
    return StructType([target.table.spec.schema[name] for name in grain_columns(target.gold)])


def silver_of_grains(gold: Gold, silver: Table, written: Sequence[Path]) -> list[DataFile]:
    """Return silver's files that may hold a row of the grains that stand in these files."""
    return silver_within(gold, silver, grain_spans(gold, written)[1])


def visible(schema: StructType) -> StructType:
    """Return the columns that a reader looks at: not our own."""
    return StructType([field for field in schema.fields if not field.name.startswith("_")])


class GrainsExpired(Terminal):
    """Rows of gold would be computed again without records that have expired from silver; `row` is one of them."""

    def __init__(self, table: str, rows: int, row: str) -> None:
        super().__init__(
            f"{table}: {rows:,} rows that the slice touches were made of records that have expired (retention.silver),"
            f" one is {row}; they cannot be computed again, so nothing was changed",
            "a later range",
        )
        self.table, self.rows, self.row = table, rows, row


def rebuild_gold(target: GoldTable, silver: Table, folder: PlanFolder, batch: int, complete: int = 0) -> int:
    """Compute the grains that the slice's silver rows touch again; write them before and after, and which to correct.

    Only from rows up to the table's last refresh. `silver` and the target are pinned at `batch`; the slice's
    silver is in `folder`. `complete`: the first batch of which silver has all rows. Returns how many grains differ.
    Raises GrainsExpired.
    """
    spark, gold, table, name = target.spark, target.gold, target.table, target.table.spec.name
    rows = {s: read_folder(spark, folder.rows(s, silver.spec.name), silver.spec.data_schema) for s in STATES}
    written = folder.staging("grains") / name
    write_folder(touched_grains(gold, rows["before"].unionByName(rows["after"])), written)
    grains, files = read_folder(spark, written, grains_schema(target)), parquet_files(written)
    places = rows["before"].select(*PLACE).unionByName(rows["after"].select(*PLACE)).distinct()
    outside = silver.read(spark, silver_of_grains(gold, silver, files)).join(places, list(PLACE), "left_anti")
    shown = visible(table.spec.data_schema)
    refreshed = refresh_state(target)
    whole = refreshed_silver(gold, refreshed, outside.unionByName(rows["after"]))
    fresh = refreshed_rows(gold, refreshed, rows_of_grains(gold, whole, grains, batch))
    write_folder(fresh.select(*shown.fieldNames()), folder.rows("after", name))
    moved = rows["removed"].unionByName(rows["added"])
    write_folder(touched_grains(gold, moved), folder.staging("moved") / name)
    columns = ", ".join(f'"{column}"' for column in grain_columns(gold))
    with duckdb_session() as duck:
        duck.view_table("there", table, touched_files(target, grains_in(gold, files)))
        duck.view_folder("touched", written, grains_schema(target))
        names, same = ", ".join(f'"{column}"' for column in shown.fieldNames()), _same_grain(gold)
        _refuse_expired(duck, target, f"there semi join touched on {same}", complete)
        duck.save(f"select {names} from there semi join touched on {same}", folder.rows("before", name))
        for state in ("before", "after"):
            duck.view_folder(state, folder.rows(state, name), shown)
        duck.view_folder("moved", folder.staging("moved") / name, grains_schema(target))
        duck.save(DIFFERING.format(columns=columns), folder.staging("differing") / name)
        duck.view_folder("differing", folder.staging("differing") / name, grains_schema(target))
        duck.save("select * from differing union select * from moved", folder.rows("grains", name))
    return rows_in_folder(folder.staging("differing") / name)


def refuse_expired_grains(target: GoldTable, written: Sequence[Path], complete: int) -> None:
    """Raise GrainsExpired when rows of the grains in these files have records of batches before `complete`."""
    if not complete or not written:
        return
    with duckdb_session() as duck:
        duck.view_table("there", target.table, touched_files(target, grains_in(target.gold, written)))
        duck.view_files("touched", written, grains_schema(target))
        _refuse_expired(duck, target, f"there semi join touched on {_same_grain(target.gold)}", complete)


def _same_grain(gold: Gold) -> str:
    return " and ".join(f'there."{c}" is not distinct from touched."{c}"' for c in grain_columns(gold))


def _refuse_expired(duck: DuckSession, target: GoldTable, rows: str, complete: int) -> None:
    """Raise GrainsExpired when rows of gold have records of batches before `complete`."""
    old = f"from {rows} where _first_batch < {complete}"
    if complete and (count := duck.count(f"select 1 {old}")):
        columns = row_columns(target.gold)
        named = ", ".join(f'"{column}"' for column in columns)
        values = duck.rows(f"select {named} {old} order by all limit 1")[0]
        shown = ", ".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))
        raise GrainsExpired(target.table.spec.name, count, shown)


STATES = ("before", "after", "removed", "added")
# Grains with a row that is not there as often before as after; a third of the time of EXCEPT ALL both ways.
DIFFERING = """
select distinct {columns}
from (
    select * exclude (_sign)
    from (select *, 1 as _sign from before union all select *, -1 from after)
    group by all having sum(_sign) <> 0
)
"""


def patched_rows(
    target: GoldTable, silver: Table, grains: DataFrame, written: Sequence[Path], batch: int
) -> tuple[DataFrame, list[DataFile]]:
    """Return the rows with which `grains`, which stand in the files `written`, are computed again.

    From all of silver up to the table's last refresh. Also return the files of the table that they replace.
    """
    spark, gold, table = target.spark, target.gold, target.table
    old = touched_files(target, grains_in(gold, written))
    refreshed = refresh_state(target)
    whole = silver.read(spark, silver_of_grains(gold, silver, written)).where(F.col("_batch_id") <= batch)
    merged = refreshed_silver(gold, refreshed, whole)
    fresh = refreshed_rows(gold, refreshed, rows_of_grains(gold, merged, grains, batch))
    begun = first_batches(gold, whole, grains)
    return with_grains_replaced(grain_columns(gold), table.read(spark, old), fresh, grains, batch, begun), old
