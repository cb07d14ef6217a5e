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

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from include.catalog.pipeline import time_columns
from include.catalog.slice import Slice
from spark_jobs.data_files import DataFile, bounds_of
from spark_jobs.layers.lookup import Lookup, files_in, keep, looking_up, read, rows_in
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
from spark_jobs.tables import RowsUnaccounted, Table

PLACE = ("_partition", "_offset")
PLACES = StructType().add("_partition", IntegerType()).add("_offset", LongType())
INVALID_FOLDER = "_verdict=invalid"
EVERY_BATCH = (0, 2**62)
# A condition with a term for each span is generated as code, so it must not have thousands of them.
FEW_SPANS = 20
SPANS = "_part int, _start long, _end long"


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
    """How many records a slice has: `core` as asked, `kin` by closure; and of each table the rows that differ.

    `decided_until`: how far the list of decisions about rejected records reached that they were judged by.
    """

    core: int
    kin: int
    differing: dict[str, int]
    decided_until: int


def redo_records(release: Release, records: DataFrame, wanted: Slice, folder: Folder) -> Redone:
    """Judge the slice's `records` (columns of bronze) again; write silver and rejected before and after.

    `release` is pinned to the publication that the slice is compared with. RowsUnaccounted when a record of the
    closure is not in bronze, or when the rows do not add up.
    """
    refinery = release.refinery
    # The whole slice by the same decisions, whatever is decided meanwhile.
    until = refinery.decided.until()
    core = judged_files(refinery, records, EVERY_BATCH, folder.bench("core"), until)
    _write_chosen(refinery, core, wanted, folder)
    broken = rows_in(folder.bench("core") / INVALID_FOLDER)
    asked = rows_in(folder.bench("chosen")) + broken
    kin = _judged_kin(refinery, core, wanted, folder, until)
    _write_after(refinery, [*core.invalid, *kin.invalid], folder)
    differing = {
        table.spec.name: _write_before(refinery, table, folder) for table in (refinery.silver, refinery.rejected)
    }
    came_out = sum(rows_in(folder.rows("after", table.spec.name)) for table in (refinery.silver, refinery.rejected))
    total = asked + rows_in(folder.bench("kin_places"))
    if came_out != total:
        why = f"{total} records were done again, {came_out} rows came out"
        raise RowsUnaccounted(refinery.silver.spec.name, (0, 0), why)
    return Redone(asked, total - asked, differing, until)


def spans_condition(wanted: Slice, partition: str, offset: str) -> str:
    """Return SQL that is true for the records of the slice's spans."""
    spans = (f"({partition} = {s.partition} and {offset} >= {s.start} and {offset} < {s.end})" for s in wanted.spans)
    return " or ".join(spans)


def in_spans(rows: DataFrame, wanted: Slice, partition: str, offset: str) -> DataFrame:
    """Return the rows whose record lies in the slice's spans; of many spans, their offsets one by one."""
    if len(wanted.spans) <= FEW_SPANS:
        return rows.where(spans_condition(wanted, partition, offset))
    spans = rows.sparkSession.createDataFrame([(s.partition, s.start, s.end) for s in wanted.spans], SPANS)
    places = spans.selectExpr(f"_part as {partition}", f"explode(sequence(_start, _end - 1)) as {offset}")
    return rows.join(F.broadcast(places), [partition, offset], "left_semi").select(*rows.columns)


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
        marked = valid.join(there.select(*PLACE).distinct().withColumn("_there", F.lit(True)), list(PLACE), "left")
        valid = marked.where(f"{inside} or _there").drop("_there").select(*valid.columns)
    keep(valid, folder.bench("chosen"))


def _valid_rows(refinery: Refinery, judged: JudgedFiles) -> DataFrame:
    spans = [bounds for path in judged.valid for bounds in bounds_of(path, ("_batch_id",))]
    first = min((int(str(low["_batch_id"])) for low, _ in spans), default=0)
    last = max((int(str(high["_batch_id"])) for _, high in spans), default=0)
    rows = silver_rows(refinery, read_judged(refinery, judged.valid), first, last)
    return rows.select(*refinery.silver.spec.data_schema.fieldNames())


def _judged_kin(refinery: Refinery, core: JudgedFiles, wanted: Slice, folder: Folder, until: int) -> JudgedFiles:
    """The records outside that share an identity with a chosen one, judged as well."""
    silver, rejected, places = refinery.silver, refinery.rejected, folder.bench("kin_places")
    with looking_up() as lookup:
        lookup.folder("chosen", folder.bench("chosen"), silver.spec.data_schema)
        lookup.view("invalid", core.invalid, refinery.judged_schema)
        lookup.table("near", silver, files_sharing(refinery, files_in(folder.bench("chosen"))))
        lookup.table("inside", silver, span_files(silver, wanted, *PLACE))
        lookup.table("rejected", rejected, rejected.files())
        lookup.keep(KIN.format(identity=", ".join(refinery.dataset.pipeline.identity)), places)
        count, first, last = _span_of(lookup, places, _places_schema(refinery))
    beginning = refinery.dataset.beginning
    if count and beginning is not None and first < beginning.batch:
        why = f"records of the slice share identities with batch {first}, which this release has not judged"
        raise RowsUnaccounted(refinery.silver.spec.name, (first, last), why)
    if not count:
        keep(refinery.silver.read(refinery.spark, []), folder.bench("kin_valid"))
        return JudgedFiles((), ())
    files = [file for file in refinery.bronze.files() if file.overlaps("_batch_id", first, last)]
    kin = read(refinery.spark, places, _places_schema(refinery))
    at = kin.select(F.col("_partition").alias("partition"), F.col("_offset").alias("offset"))
    records = refinery.bronze.read(refinery.spark, files).join(F.broadcast(at), ["partition", "offset"], "left_semi")
    judged = judged_files(refinery, records, (first, last), folder.bench("kin"), until)
    keep(_valid_rows(refinery, judged), folder.bench("kin_valid"))
    found = rows_in(folder.bench("kin_valid")) + rows_in(folder.bench("kin") / INVALID_FOLDER)
    if found != count:
        why = f"the slice needs {count} records of other batches, bronze has {found} of them"
        raise RowsUnaccounted(refinery.bronze.spec.name, (first, last), why)
    return judged


def _span_of(lookup: Lookup, folder: Path, schema: StructType) -> tuple[int, int, int]:
    """Return how many rows a folder has, and their first and last batch."""
    lookup.folder("spanned", folder, schema)
    count, first, last = lookup.rows("select count(*), min(_batch_id), max(_batch_id) from spanned")[0]
    return count, first, last


def files_sharing(refinery: Refinery, written: Sequence[Path]) -> list[DataFile]:
    """Return silver's files that may hold an identity of the rows in `written` (as deduplication looks for them)."""
    time, horizon = refinery.dataset.pipeline.event_time, refinery.dataset.pipeline.horizon
    identity = refinery.dataset.pipeline.identity[0]
    spans = [bounds for path in written for bounds in bounds_of(path, (time, identity))]
    return [
        file
        for file in refinery.silver.files()
        if any(may_share(file, low, high, time, identity, horizon) for low, high in spans)
    ]


def _write_after(refinery: Refinery, invalid: Sequence[Path], folder: Folder) -> None:
    """Who wins among the valid records of each identity, and all others with their reasons."""
    silver, rejected = refinery.silver.spec, refinery.rejected.spec
    identity = ", ".join(refinery.dataset.pipeline.identity)
    with looking_up() as lookup:
        valid = [*files_in(folder.bench("chosen")), *files_in(folder.bench("kin_valid"))]
        lookup.view("valid", valid, silver.data_schema)
        columns = ", ".join(f'"{name}"' for name in silver.data_schema.fieldNames())
        ranked = RANKED.format(identity=identity)
        lookup.keep(f"select {columns} from ({ranked}) where _rank = 1", folder.rows("after", silver.name))
        lost = f"select {', '.join(COORDINATES)}, _winner from ({ranked}) where _rank > 1"
        lookup.keep(lost, folder.bench("lost"))
    losers = read(
        refinery.spark, folder.bench("lost"), _places_schema(refinery, COORDINATES).add("_winner", StringType())
    )
    named = f"array(named_struct('rule', 'duplicate', 'column', '{identity}', 'detail', _winner)) as _reasons"
    broken = read_judged(refinery, invalid).selectExpr(*COORDINATES, "_reasons", "'invalid' as disposition")
    all_rejected = broken.unionByName(losers.selectExpr(*COORDINATES, named, "'duplicate' as disposition"))
    rows = rejected_rows(all_rejected, refinery.dataset).select(*rejected.data_schema.fieldNames())
    keep(rows, folder.rows("after", rejected.name))


def _write_before(refinery: Refinery, table: Table, folder: Folder) -> int:
    """Write what a table has of the slice's records, and in which rows that is not what came out; return how many."""
    name, schema = table.spec.name, table.spec.data_schema
    with looking_up() as lookup:
        lookup.folder("after_silver", folder.rows("after", refinery.silver.spec.name), PLACES)
        lookup.folder("after_rejected", folder.rows("after", refinery.rejected.spec.name), PLACES)
        lookup.table("there", table, table.files())
        lookup.keep(BEFORE, folder.rows("before", name))
        for state in ("before", "after"):
            lookup.folder(state, folder.rows(state, name), schema)
        for state, one, other in (("removed", "before", "after"), ("added", "after", "before")):
            lookup.keep(f"select * from {one} except all select * from {other}", folder.rows(state, name))
            lookup.folder(state, folder.rows(state, name), schema)
        return lookup.count("select _partition, _offset from removed union select _partition, _offset from added")


def _places_schema(refinery: Refinery, names: Sequence[str] = (*PLACE, "_batch_id")) -> StructType:
    return StructType([refinery.silver.spec.schema[name] for name in names])


KIN = """
with core as (select _partition, _offset from chosen union all select _partition, _offset from invalid),
winners as (select _partition, _offset, _batch_id from near where ({identity}) in (select ({identity}) from chosen)),
own as (select _partition, _offset, _batch_id from inside semi join core using (_partition, _offset)),
won as (
    select distinct concat_ws('/', _batch_id, _partition, _offset) as winner
    from (select * from winners union all select * from own)
),
losers as (
    select _partition, _offset, _batch_id
    from rejected semi join won on reasons[1].detail = won.winner
    where disposition = 'duplicate'
),
-- Silver may have lost the winner that a duplicate of the core names.
named as (
    select string_split(reasons[1].detail, '/') as place
    from rejected semi join core using (_partition, _offset)
    where disposition = 'duplicate'
),
lost as (
    select place[2]::int as _partition, place[3]::bigint as _offset, place[1]::bigint as _batch_id from named
)
select distinct * from (
    select * from winners union all select * from losers union all select * from lost
)
anti join core using (_partition, _offset)
"""
RANKED = """
select
    *,
    row_number() over same as _rank,
    first(concat_ws('/', _batch_id, _partition, _offset)) over same as _winner
from valid
window same as (partition by {identity} order by _batch_id, _partition, _offset)
"""
BEFORE = """
select * from there
semi join (select * from after_silver union all select * from after_rejected) using (_partition, _offset)
"""
