"""Rebuild of gold grains from silver, for every kind of table: for slices and for patches.

A grain is what a row of gold depends on: a window and keys, or (latest) the keys. All of its silver rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog.pipeline import Gold, gold_window, grain_columns
from include.catalog.windows import Start, window_begin, window_end
from include.record_coordinates import PLACE
from spark_jobs.engine.rebuild_slice import PlanFolder
from spark_jobs.layers.gold_files import GoldTable, files_within, grain_spans, grains_in, touched_files
from spark_jobs.layers.gold_rows import rows_of_grains, touched_grains
from spark_jobs.layers.gold_update import held_by, held_rows, held_silver
from spark_jobs.layers.row_provenance import with_grains_replaced
from spark_jobs.storage.data_files import Bound, DataFile
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.duckdb_session import duckdb_session, parquet_files, read_folder, rows_in_folder, write_folder


def grains_schema(target: GoldTable) -> StructType:
    """Return the columns that name a grain of a table."""
    return StructType([target.table.spec.schema[name] for name in grain_columns(target.gold)])


def silver_of_grains(gold: Gold, silver: Table, written: Sequence[Path]) -> list[DataFile]:
    """Return silver's files that may hold a row of the grains that stand in these files."""
    window, (column, spans) = gold_window(gold), grain_spans(gold, written)
    if window is None or spans is None:
        return files_within(silver, column if window is None else window.column, None if window else spans)
    moments = [(window_begin(window, _start(low)), window_end(window, _start(high))) for low, high in spans]
    return files_within(silver, window.column, moments)


def _start(bound: Bound) -> Start:
    assert isinstance(bound, date), f"a window begins at {bound!r}"
    return bound


def visible(schema: StructType) -> StructType:
    """Return the columns that a reader looks at: not our own."""
    return StructType([field for field in schema.fields if not field.name.startswith("_")])


def rebuild_gold(target: GoldTable, silver: Table, folder: PlanFolder, batch: int) -> int:
    """Compute the grains that the slice's silver rows touch again; write them before and after, and which to correct.

    Only from the rows that the table holds by its `refresh`. `silver` and the target are pinned at `batch`; the slice's
    silver is in `folder`. Returns how many grains differ.
    """
    spark, gold, table, name = target.spark, target.gold, target.table, target.table.spec.name
    rows = {s: read_folder(spark, folder.rows(s, silver.spec.name), silver.spec.data_schema) for s in STATES}
    written = folder.staging("grains") / name
    write_folder(touched_grains(gold, rows["before"].unionByName(rows["after"])), written)
    grains, files = read_folder(spark, written, grains_schema(target)), parquet_files(written)
    places = rows["before"].select(*PLACE).unionByName(rows["after"].select(*PLACE)).distinct()
    outside = silver.read(spark, silver_of_grains(gold, silver, files)).join(places, list(PLACE), "left_anti")
    shown = visible(table.spec.data_schema)
    held = held_by(target)
    whole = held_silver(gold, held, outside.unionByName(rows["after"]))
    fresh = held_rows(gold, held, rows_of_grains(gold, whole, grains, batch))
    write_folder(fresh.select(*shown.fieldNames()), folder.rows("after", name))
    moved = rows["removed"].unionByName(rows["added"])
    write_folder(touched_grains(gold, moved), folder.staging("moved") / name)
    columns = ", ".join(f'"{column}"' for column in grain_columns(gold))
    with duckdb_session() as duck:
        duck.view_table("there", table, touched_files(target, grains_in(gold, files)))
        duck.view_folder("touched", written, grains_schema(target))
        names = ", ".join(f'"{column}"' for column in shown.fieldNames())
        same = " and ".join(f'there."{c}" is not distinct from touched."{c}"' for c in grain_columns(gold))
        duck.save(f"select {names} from there semi join touched on {same}", folder.rows("before", name))
        for state in ("before", "after"):
            duck.view_folder(state, folder.rows(state, name), shown)
        duck.view_folder("moved", folder.staging("moved") / name, grains_schema(target))
        duck.save(DIFFERING.format(columns=columns), folder.staging("differing") / name)
        duck.view_folder("differing", folder.staging("differing") / name, grains_schema(target))
        duck.save("select * from differing union select * from moved", folder.rows("grains", name))
    return rows_in_folder(folder.staging("differing") / name)


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

    From all of silver that the table holds. Also return the files of the table that they replace.
    """
    spark, gold, table = target.spark, target.gold, target.table
    old = touched_files(target, grains_in(gold, written))
    held = held_by(target)
    whole = silver.read(spark, silver_of_grains(gold, silver, written)).where(F.col("_batch_id") <= batch)
    fresh = held_rows(gold, held, rows_of_grains(gold, held_silver(gold, held, whole), grains, batch))
    return with_grains_replaced(grain_columns(gold), table.read(spark, old), fresh, grains, batch), old
