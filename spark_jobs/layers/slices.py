"""A slice of history done again: judged anew, each identity once, widened until nothing outside contradicts it.

Reads: the slice's bronze rows as they are given; silver and rejected as published at batch `batch`.
Writes: rows as they are and as they come out now, into a folder of the plan's own (`Folder`).
Guarantee: the slice, put in the place of what is there, is what one pass over all of bronze would have given.
After a crash: done again from the start; nothing of production was touched.
Does not: apply anything (correct.py).

Closure (DESIGN §6): whichever record outside shares an identity with an accepted one inside belongs to the slice too,
be it the winner in silver or a duplicate that lost to it: who wins is decided among all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructType

from include.catalog.pipeline import time_columns
from include.catalog.slice import Slice
from spark_jobs.layers.release import Release
from spark_jobs.layers.silver import (
    COORDINATES,
    JudgedFiles,
    Refinery,
    judged_files,
    may_share,
    read_judged,
    rejected_rows,
    silver_rows,
)
from spark_jobs.tables import DataFile, RowsUnaccounted, Table, bounds_of, read_files

PLACE = ["_partition", "_offset"]


@dataclass(frozen=True)
class Folder:
    """The plan's folder of rows: `before` and `after` by table, and of these what is `removed` and `added`."""

    path: Path

    def rows(self, state: str, table: str) -> Path:
        """Folder of Parquet files: `state` is before, after, removed, added or grains."""
        return self.path / state / table

    def bench(self, name: str) -> Path:
        """Folder for unfinished work."""
        return self.path / "_bench" / name


@dataclass(frozen=True)
class Redone:
    """How many records a slice has: `core` as asked, `kin` by closure; and of each table the rows that differ."""

    core: int
    kin: int
    differing: dict[str, int]


def redo_records(release: Release, records: DataFrame, wanted: Slice, folder: Folder) -> Redone:
    """Judge the slice's `records` (columns of bronze) again; write silver and rejected before and after.

    `release` is pinned to the publication that the slice is compared with. RowsUnaccounted when a record of the
    closure is not in bronze, or when the rows do not add up.
    """
    refinery = release.refinery
    core = judged_files(refinery.judge, records, folder.bench("core"))
    _write_chosen(refinery, core, wanted, folder)
    invalid = read_judged(refinery, core.invalid).select(*COORDINATES, "_reasons")
    kin = _judged_kin(refinery, invalid, folder)
    valid = _chosen(refinery, folder).unionByName(_valid_rows(refinery, kin))
    broken = invalid.unionByName(read_judged(refinery, kin.invalid).select(*COORDINATES, "_reasons"))
    keep(valid.select(*COORDINATES).unionByName(broken.select(*COORDINATES)), folder.bench("places"))
    places = read(refinery.spark, folder.bench("places"), _places_schema(refinery))
    _write_after(refinery, valid, broken, folder)
    _write_before(refinery, places, folder)
    differing = {
        refinery.silver.spec.name: write_differences(refinery.spark, refinery.silver, folder),
        refinery.rejected.spec.name: write_differences(refinery.spark, refinery.rejected, folder),
    }
    total, core_rows = places.count(), _chosen(refinery, folder).count() + invalid.count()
    _validate_balance(refinery, folder, total)
    return Redone(core_rows, total - core_rows, differing)


def spans_condition(wanted: Slice, partition: str, offset: str) -> str:
    """Return SQL that is true for the records of the slice's spans."""
    spans = (f"({partition} = {s.partition} and {offset} >= {s.start} and {offset} < {s.end})" for s in wanted.spans)
    return " or ".join(spans)


def span_files(table: Table, wanted: Slice, partition: str, offset: str) -> list[DataFile]:
    """Return the files that may hold a record of the slice's spans."""
    return [
        file
        for file in table.files()
        if any(
            file.overlaps(partition, s.partition, s.partition) and file.overlaps(offset, s.start, s.end - 1)
            for s in wanted.spans
        )
    ]


def read(spark: SparkSession, folder: Path, schema: StructType) -> DataFrame:
    """Return the rows that were kept in a folder."""
    return read_files(spark, schema, sorted(folder.glob("*.parquet")))


def keep(rows: DataFrame, folder: Path) -> None:
    """Write rows into a folder, in the place of what is there."""
    rows.write.mode("overwrite").parquet(str(folder))


def _write_chosen(refinery: Refinery, core: JudgedFiles, wanted: Slice, folder: Folder) -> None:
    """Of the valid records, those that the slice is about, as silver has them."""
    valid = _valid_rows(refinery, core)
    if wanted.since is not None and wanted.until is not None:
        columns = time_columns(refinery.dataset.pipeline)
        inside = " or ".join(
            f"({c} >= '{wanted.since.isoformat()}' and {c} < '{wanted.until.isoformat()}')" for c in columns
        )
        files = span_files(refinery.silver, wanted, "_partition", "_offset")
        there = refinery.silver.read(refinery.spark, files).where(spans_condition(wanted, *PLACE)).where(inside)
        marked = valid.join(there.select(*PLACE, F.lit(True).alias("_there")), PLACE, "left")
        valid = marked.where(f"{inside} or _there").drop("_there").select(*valid.columns)
    keep(valid, folder.bench("chosen"))


def _valid_rows(refinery: Refinery, judged: JudgedFiles) -> DataFrame:
    rows = silver_rows(read_judged(refinery, judged.valid), refinery.dataset, refinery.transform)
    return rows.select(*refinery.silver.spec.data_schema.fieldNames())


def _chosen(refinery: Refinery, folder: Folder) -> DataFrame:
    return read(refinery.spark, folder.bench("chosen"), refinery.silver.spec.data_schema)


def _judged_kin(refinery: Refinery, invalid: DataFrame, folder: Folder) -> JudgedFiles:
    """The records outside that share an identity with a chosen one, judged as well."""
    identity = list(refinery.dataset.pipeline.identity)
    chosen = _chosen(refinery, folder)
    core = chosen.select(*PLACE).unionByName(invalid.select(*PLACE))
    near = refinery.silver.read(refinery.spark, _files_of_kin(refinery, folder))
    same = near.join(chosen.select(*identity).distinct(), identity, "left_semi")
    winners = same.select(*PLACE, "_batch_id")
    inside = _silver_at(refinery, core)
    won = F.concat_ws("/", "_batch_id", *PLACE).alias("_winner")
    losers = _duplicates(refinery).join(winners.unionByName(inside).select(won).distinct(), "_winner", "left_semi")
    kin = winners.unionByName(losers.select(*PLACE, "_batch_id")).join(core, PLACE, "left_anti").distinct()
    keep(kin, folder.bench("kin_places"))
    return _judged_at(refinery, folder)


def _files_of_kin(refinery: Refinery, folder: Folder) -> list[DataFile]:
    """Silver's files that may hold an identity of the chosen rows (as deduplication looks for them)."""
    time, horizon = refinery.dataset.pipeline.event_time, refinery.dataset.pipeline.horizon
    identity = refinery.dataset.pipeline.identity[0]
    written = sorted(folder.bench("chosen").glob("*.parquet"))
    spans = [bounds for path in written for bounds in bounds_of(path, (time, identity))]
    return [
        file
        for file in refinery.silver.files()
        if any(may_share(file, low, high, time, identity, horizon) for low, high in spans)
    ]


def _silver_at(refinery: Refinery, places: DataFrame) -> DataFrame:
    """Where silver has rows of the slice's own records."""
    whole = refinery.silver.read(refinery.spark, refinery.silver.files())
    return whole.select(*PLACE, "_batch_id").join(places, PLACE, "left_semi")


def _duplicates(refinery: Refinery) -> DataFrame:
    rows = refinery.rejected.read(refinery.spark, refinery.rejected.files()).where("disposition = 'duplicate'")
    return rows.select(*PLACE, "_batch_id", F.expr("get(reasons, 0).detail").alias("_winner"))


def _judged_at(refinery: Refinery, folder: Folder) -> JudgedFiles:
    spark = refinery.spark
    kin = read(spark, folder.bench("kin_places"), _places_schema(refinery, [*PLACE, "_batch_id"]))
    count, first, last = kin.agg(F.count("*"), F.min("_batch_id"), F.max("_batch_id")).head() or (0, 0, 0)
    if not count:
        return JudgedFiles((), ())
    files = [file for file in refinery.bronze.files() if file.overlaps("_batch_id", first, last)]
    wanted = kin.select(F.col("_partition").alias("partition"), F.col("_offset").alias("offset"))
    records = refinery.bronze.read(spark, files).join(F.broadcast(wanted), ["partition", "offset"], "left_semi")
    judged = judged_files(refinery.judge, records, folder.bench("kin"))
    found = read_judged(refinery, judged.valid).count() + read_judged(refinery, judged.invalid).count()
    if found != count:
        why = f"the slice needs {count} records of other batches, bronze has {found} of them"
        raise RowsUnaccounted(refinery.bronze.spec.name, (first, last), why)
    return judged


def _write_after(refinery: Refinery, valid: DataFrame, broken: DataFrame, folder: Folder) -> None:
    """Who wins among the valid records of each identity, and all others with their reasons."""
    identity = refinery.dataset.pipeline.identity
    order = Window.partitionBy(*identity).orderBy("_batch_id", *PLACE)
    winner = F.first(F.concat_ws("/", "_batch_id", *PLACE)).over(order)
    keep(valid.select("*", F.row_number().over(order).alias("_rank"), winner.alias("_winner")), folder.bench("ranked"))
    schema = (
        StructType([*refinery.silver.spec.data_schema.fields]).add("_rank", IntegerType()).add("_winner", StringType())
    )
    ranked = read(refinery.spark, folder.bench("ranked"), schema)
    silver = ranked.where("_rank = 1").select(*refinery.silver.spec.data_schema.fieldNames())
    keep(silver, folder.rows("after", refinery.silver.spec.name))
    named = f"array(named_struct('rule', 'duplicate', 'column', '{', '.join(identity)}', 'detail', _winner))"
    lost = ranked.where("_rank > 1").selectExpr(*COORDINATES, f"{named} as _reasons", "'duplicate' as disposition")
    rejected = broken.withColumn("disposition", F.lit("invalid")).unionByName(lost)
    rows = rejected_rows(rejected, refinery.dataset).select(*refinery.rejected.spec.data_schema.fieldNames())
    keep(rows, folder.rows("after", refinery.rejected.spec.name))


def _write_before(refinery: Refinery, places: DataFrame, folder: Folder) -> None:
    for table in (refinery.silver, refinery.rejected):
        there = table.read(refinery.spark, table.files()).join(places.select(*PLACE), PLACE, "left_semi")
        columns = table.spec.data_schema.fieldNames()
        keep(there.select(*columns), folder.rows("before", table.spec.name))


def write_differences(spark: SparkSession, table: Table, folder: Folder) -> int:
    """Write the rows that only `before` or only `after` has; return how many records that concerns."""
    name, schema = table.spec.name, table.spec.data_schema
    before, after = (read(spark, folder.rows(state, name), schema) for state in ("before", "after"))
    keep(before.exceptAll(after), folder.rows("removed", name))
    keep(after.exceptAll(before), folder.rows("added", name))
    removed, added = (read(spark, folder.rows(state, name), schema).select(*PLACE) for state in ("removed", "added"))
    return removed.unionByName(added).distinct().count()


def _validate_balance(refinery: Refinery, folder: Folder, total: int) -> None:
    after = {
        table.spec.name: read(refinery.spark, folder.rows("after", table.spec.name), table.spec.data_schema).count()
        for table in (refinery.silver, refinery.rejected)
    }
    if sum(after.values()) != total:
        why = f"{total} records were done again, {after} are the rows that came out"
        raise RowsUnaccounted(refinery.silver.spec.name, (0, 0), why)


def _places_schema(refinery: Refinery, names: Sequence[str] = COORDINATES) -> StructType:
    return StructType([refinery.silver.spec.schema[name] for name in names])
