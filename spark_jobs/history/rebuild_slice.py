"""Rebuild of a slice of history: validated again, deduplicated, with its duplicate closure.

Reads: the slice's bronze rows from files; silver and rejected as published at batch `batch`.
Writes: rows before and after the rebuild, into the plan's folder (`PlanFolder`).
Guarantee: the rebuilt slice equals what one pass over all of bronze would give.
After a crash: repeated from the start; production was not touched.
Does not: apply anything (apply_patch.py).

Closure (docs/architecture.md §6): a record outside that shares an identity with an accepted one inside belongs to it,
be it the winner in silver or a duplicate that lost to it: who wins is decided among all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.types import StructType

from include.declare.history_slice import Slice, SpanIndex
from include.ground.errors import Terminal
from include.ground.record_coordinates import POSITION
from spark_jobs.backends.local.arrow_files import rows_in_files, rows_in_folder
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session
from spark_jobs.backends.local.identities import ORIGINALS, find_duplicates, identity_columns
from spark_jobs.backends.local.runs import rejected_rows_sql
from spark_jobs.backends.local.tables import LocalTables
from spark_jobs.backends.local.validation import KAFKA_POSITION, ValidatedFiles, validate_files
from spark_jobs.backends.release import Release
from spark_jobs.layers.silver_tables import POSITIONS, REJECTED, first_complete_batch
from spark_jobs.tables.data_files import DataFile, bounds_of
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.spark_files import parquet_files

POSITIONS_AND_BATCH = StructType([*POSITIONS, REJECTED["_batch_id"]])
# A condition with a term for each span is evaluated for each row, so it must not have thousands of them.
FEW_SPANS = 20


class OriginalsExpired(Terminal):
    """Records of a slice share identities with records of an expired `batch`: which came first is unknown."""

    def __init__(self, table: str, batch: int, complete: int) -> None:
        super().__init__(
            f"{table}: records of the slice are duplicates of records of batch {batch}, which has expired (batches"
            f" before {complete} have); they cannot be validated again, so nothing was built",
            "plan a range without these records",
        )
        self.table, self.batch = table, batch


@dataclass(frozen=True)
class PlanFolder:
    """The plan's folder of rows: `before` and `after` by table, and of these what is `removed` and `added`."""

    path: Path

    def rows(self, state: str, table: str) -> Path:
        """Folder of Parquet files: `state` is before, after, removed, added or grains."""
        return self.path / state / table

    def staging(self, name: str) -> Path:
        """Folder for unfinished work."""
        return self.path / "_staging" / name


@dataclass(frozen=True)
class RebuiltSlice:
    """How many records a slice has: `core` as requested, `closure` in addition; `differing` rows by table.

    `decided_until`: length of the list of decisions about rejected records that were applied.
    """

    core: int
    closure: int
    differing: dict[str, int]
    decided_until: int


def rebuild_slice(release: Release, records: Sequence[Path], slice_: Slice, folder: PlanFolder) -> RebuiltSlice:
    """Validate the slice's records (files with bronze's columns) again; write silver and rejected before and after.

    `release` is pinned to the publication that the slice is compared with. RowsUnaccounted when a record of the
    closure is not in bronze, or when the rows do not add up.
    """
    writer = release.local
    # The whole slice uses the same decisions, also if others are made meanwhile.
    until = writer.decisions.until()
    core = validate_files(writer, records, batches_in(records), folder.staging("core"), until)
    _write_chosen(writer, core, slice_, folder)
    core_rows = rows_in_folder(folder.staging("chosen")) + rows_in_files(core.invalid)
    closure = _validate_closure(writer, core, slice_, folder, until)
    _write_after(writer, core, closure, folder)
    differing = {table.spec.name: _write_before(writer, table, folder) for table in (writer.silver, writer.rejected)}
    rows_out = sum(rows_in_folder(folder.rows("after", table.spec.name)) for table in (writer.silver, writer.rejected))
    total = core_rows + rows_in_folder(folder.staging("closure_places"))
    if rows_out != total:
        why = f"{total} records were rebuilt into {rows_out} rows"
        raise RowsUnaccounted(writer.silver.spec.name, (0, 0), why)
    return RebuiltSlice(core_rows, total - core_rows, differing, until)


def in_spans(slice_: Slice, rows: str, partition: str, offset: str) -> str:
    """Return SQL for the rows of view `rows` whose record lies in the slice's spans, which do not overlap."""
    if len(slice_.spans) > FEW_SPANS:
        spans = ", ".join(f"({s.partition}, {s.start}, {s.end})" for s in slice_.spans)
        return IN_SPANS.format(rows=rows, partition=partition, offset=offset, spans=spans)
    terms = (f'("{partition}" = {s.partition} and "{offset}" between {s.start} and {s.end - 1})' for s in slice_.spans)
    return f"select * from {rows} where {' or '.join(terms)}"


def batches_in(records: Sequence[Path]) -> tuple[int, int]:
    """Return the first and the last batch of the records in files with the columns of bronze, from their footers."""
    spans = [bounds for path in records for bounds in bounds_of(path, ("_batch_id",)) if bounds[0]]
    first = min((int(str(low["_batch_id"])) for low, _ in spans), default=0)
    return first, max((int(str(high["_batch_id"])) for _, high in spans), default=first)


def span_files(table: Table, slice_: Slice, partition: str, offset: str) -> list[DataFile]:
    """Return the files that may hold a record of the slice's spans."""
    index = SpanIndex(slice_.spans)
    return [file for file in table.files() if _may_meet(file, index, partition, offset)]


def _may_meet(file: DataFile, index: SpanIndex, partition: str, offset: str) -> bool:
    """Whether a file's bounds meet a span; true without bounds. A compacted file of silver has several partitions."""
    if any(name not in file.low for name in (partition, offset)):
        return True
    (first, start), (last, end) = ([int(str(b[name])) for name in (partition, offset)] for b in (file.low, file.high))
    return any(index.overlaps(each, start, end + 1) for each in range(first, last + 1))


def _write_chosen(writer: LocalTables, core: ValidatedFiles, slice_: Slice, folder: PlanFolder) -> None:
    """Write the accepted records that the slice is about."""
    silver = writer.silver
    with duckdb_session() as duck:
        duck.view_files("accepted", core.accepted, silver.spec.data_schema)
        chosen = "select * from accepted"
        if slice_.since is not None and slice_.until is not None:
            since, until = slice_.since.isoformat(), slice_.until.isoformat()
            inside = " or ".join(
                f"""("{c}" >= '{since}' and "{c}" < '{until}')""" for c in writer.dataset.pipeline.time_columns
            )
            duck.view_table("silver", silver, span_files(silver, slice_, *POSITION))
            there = f"select _partition, _offset from ({in_spans(slice_, 'silver', *POSITION)}) where {inside}"
            chosen += f" where {inside} or (_partition, _offset) in ({there})"
        duck.save(chosen, folder.staging("chosen"))


def _validate_closure(
    writer: LocalTables, core: ValidatedFiles, slice_: Slice, folder: PlanFolder, until: int
) -> ValidatedFiles:
    """Validate the records outside the slice that share an identity with a chosen one."""
    silver, rejected, places = writer.silver, writer.rejected, folder.staging("closure_places")
    with duckdb_session() as duck:
        duck.view_folder("chosen", folder.staging("chosen"), silver.spec.data_schema)
        duck.view_files("invalid", core.invalid, POSITIONS)
        writer.identities.view_candidates(duck, "candidates", parquet_files(folder.staging("chosen")))
        duck.view_table("inside", silver, span_files(silver, slice_, *POSITION))
        duck.view_table("rejected", rejected, rejected.files())
        duck.save(CLOSURE.format(identity=identity_columns(writer.dataset)), places)
        count, first, last = _span_of(duck, places, POSITIONS_AND_BATCH)
    if count and first < first_complete_batch(writer):
        raise OriginalsExpired(writer.silver.spec.name, first, first_complete_batch(writer))
    beginning = writer.dataset.release_start
    if count and beginning is not None and first < beginning.batch:
        why = f"records of the slice share identities with batch {first}, which this release has not validated"
        raise RowsUnaccounted(writer.silver.spec.name, (first, last), why)
    if not count:
        return ValidatedFiles((), ())
    records = folder.staging("closure_records")
    files = writer.bronze.batch_files(first, last)
    with duckdb_session() as duck:
        duck.view_folder("closure", places, POSITIONS)
        duck.view_table("bronze", writer.bronze, files)
        at = 'select _partition as "partition", _offset as "offset" from closure'
        duck.save_records(f"select * from bronze semi join ({at}) using ({KAFKA_POSITION})", records)
    validated = validate_files(writer, parquet_files(records), (first, last), folder.staging("closure"), until)
    found = rows_in_files(validated.accepted) + rows_in_files(validated.invalid)
    if found != count:
        why = f"the slice needs {count} records of other batches, bronze has {found} of them"
        raise RowsUnaccounted(writer.bronze.spec.name, (first, last), why)
    return validated


def _span_of(duck: DuckSession, folder: Path, schema: StructType) -> tuple[int, int, int]:
    """Return how many rows a folder has, and their first and last batch."""
    duck.view_folder("spanned", folder, schema)
    count, first, last = duck.rows("select count(*), min(_batch_id), max(_batch_id) from spanned")[0]
    return count, first, last


def _write_after(writer: LocalTables, core: ValidatedFiles, closure: ValidatedFiles, folder: PlanFolder) -> None:
    """Write the first accepted record of each identity, and all other records with their reasons."""
    silver, rejected = writer.silver.spec, writer.rejected.spec
    with duckdb_session() as duck:
        duck.view_files("accepted", [*parquet_files(folder.staging("chosen")), *closure.accepted], silver.data_schema)
        duck.view_files("invalid", [*core.invalid, *closure.invalid], writer.validated_schema)
        find_duplicates(duck, writer.dataset, "accepted", "(select * from accepted where false)")
        duck.save(ORIGINALS, folder.rows("after", silver.name))
        columns = ", ".join(rejected.data_schema.fieldNames())
        duck.save(f"select {columns} from ({rejected_rows_sql(writer.dataset)})", folder.rows("after", rejected.name))


def _write_before(writer: LocalTables, table: Table, folder: PlanFolder) -> int:
    """Write a table's published rows of the slice and the rows that differ; return how many records differ."""
    name, schema = table.spec.name, table.spec.data_schema
    with duckdb_session() as duck:
        duck.view_folder("after_silver", folder.rows("after", writer.silver.spec.name), POSITIONS)
        duck.view_folder("after_rejected", folder.rows("after", writer.rejected.spec.name), POSITIONS)
        duck.view_table("there", table, table.files())
        duck.save(BEFORE, folder.rows("before", name))
        for state in ("before", "after"):
            duck.view_folder(state, folder.rows(state, name), schema)
        return save_differences(duck, folder, name, schema)


def save_differences(duck: DuckSession, folder: PlanFolder, name: str, schema: StructType) -> int:
    """Write the rows of views `before` and `after` that differ; return how many records they are about."""
    equal = " and ".join(f'b."{column}" is not distinct from a."{column}"' for column in schema.fieldNames())
    duck.create_table("same", SAME.format(equal=equal))
    for state, side in (("removed", "before"), ("added", "after")):
        duck.save(f"select * from {side} anti join same using (_partition, _offset)", folder.rows(state, name))
        duck.view_folder(state, folder.rows(state, name), schema)
    return duck.count("select _partition, _offset from removed union select _partition, _offset from added")


# Each row finds the last span that begins before it: the cost does not grow with rows times spans.
IN_SPANS = """
select {rows}.* from {rows}
asof join (values {spans}) as spans(_at, _start, _end)
on {rows}."{partition}" = spans._at and {rows}."{offset}" >= spans._start
where {rows}."{offset}" < spans._end
"""
CLOSURE = """
with core as (select _partition, _offset from chosen union all select _partition, _offset from invalid),
winners as (
    select _partition, _offset, _batch_id from candidates where ({identity}) in (select ({identity}) from chosen)
),
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
# Places whose one row is the same before and after. EXCEPT ALL both ways says as much in five times the time.
SAME = """
with twice as (
    select _partition, _offset from before group by all having count(*) > 1
    union all
    select _partition, _offset from after group by all having count(*) > 1
)
select _partition, _offset from before as b join after as a using (_partition, _offset)
anti join twice using (_partition, _offset)
where {equal}
"""
BEFORE = """
select * from there
semi join (select * from after_silver union all select * from after_rejected) using (_partition, _offset)
"""
