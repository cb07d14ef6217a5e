"""Rebuild of a slice of history: validated again, deduplicated, with its duplicate closure.

Guarantee: the rebuilt slice equals what one pass over all of bronze would give.
After a crash: repeated from the start; production was not touched.

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
from spark_jobs.backends.backend import Backend, Sql, ValidatedFiles
from spark_jobs.backends.local.arrow_files import rows_in_files, rows_in_folder
from spark_jobs.backends.local.identities import identity_columns
from spark_jobs.backends.release import Release
from spark_jobs.layers.silver_tables import POSITIONS, REJECTED, SilverTables, first_complete_batch
from spark_jobs.tables.data_files import DataFile, bounds_of, parquet_files
from spark_jobs.tables.delta_table import RowsUnaccounted, Table

POSITIONS_AND_BATCH = StructType([*POSITIONS, REJECTED["_batch_id"]])
# A condition with a term for each span is evaluated for each row, so it must not have thousands of them.
FEW_SPANS = 20
MOST_STRIPES = 2_000


@dataclass(frozen=True)
class PlanFolder:
    """The plan's folder of rows: `before` and `after` by table, and of these what is `removed` and `added`."""

    path: Path

    def rows(self, state: str, table: str) -> Path:
        """Folder of Parquet files: `state` is before, after, removed, added or grains."""
        return self.path / state / table

    def staging(self, name: str) -> Path:
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
    writer, backend = release.writer, release.backend
    # The whole slice uses the same decisions, also if others are made meanwhile.
    until = writer.decisions.until()
    core = backend.validate(writer, records, batches_in(records), folder.staging("core"), until)
    with backend.sql() as sql:
        _write_chosen(sql, writer, core, slice_, folder)
    core_rows = rows_in_folder(folder.staging("chosen")) + rows_in_files(core.invalid)
    closure = _validate_closure(backend, writer, core, slice_, folder, until)
    with backend.sql() as sql:
        _write_after(sql, writer, core, closure, folder)
    differing = dict[str, int]()
    for table in (writer.silver, writer.rejected):
        with backend.sql() as sql:
            differing[table.spec.name] = _write_before(sql, writer, table, folder)
    rows_out = sum(rows_in_folder(folder.rows("after", name)) for name in differing)
    total = core_rows + rows_in_folder(folder.staging("closure_places"))
    if rows_out != total:
        why = f"{total} records were rebuilt into {rows_out} rows"
        raise RowsUnaccounted(writer.silver.spec.name, (0, 0), why)
    return RebuiltSlice(core_rows, total - core_rows, differing, until)


def in_spans(slice_: Slice, rows: str, partition: str, offset: str) -> str:
    """Return SQL for the rows of view `rows` whose record lies in the slice's spans, which do not overlap."""
    if len(slice_.spans) > FEW_SPANS:
        width = max(1, sum(span.end - span.start for span in slice_.spans) // MOST_STRIPES)
        stripes = (
            f"({span.partition}, {stripe}, {span.start}, {span.end})"
            for span in slice_.spans
            for stripe in range(span.start // width, (span.end - 1) // width + 1)
        )
        return IN_SPANS.format(rows=rows, partition=partition, offset=offset, width=width, stripes=", ".join(stripes))
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
    return any(index.overlaps(each, start, end + 1) for each in index.partitions(first, last))


def _write_chosen(sql: Sql, writer: SilverTables, core: ValidatedFiles, slice_: Slice, folder: PlanFolder) -> None:
    silver = writer.silver
    sql.view_files("accepted", core.accepted, silver.spec.data_schema)
    chosen = "select * from accepted"
    if slice_.since is not None and slice_.until is not None:
        since, until = slice_.since.isoformat(), slice_.until.isoformat()
        inside = " or ".join(
            f"""("{c}" >= '{since}' and "{c}" < '{until}')""" for c in writer.dataset.pipeline.time_columns
        )
        sql.view_table("silver", silver, span_files(silver, slice_, *POSITION))
        there = f"select _partition, _offset from ({in_spans(slice_, 'silver', *POSITION)}) as near where {inside}"
        chosen += f" where {inside} or (_partition, _offset) in ({there})"
    sql.save(chosen, folder.staging("chosen"))


def _validate_closure(
    backend: Backend, writer: SilverTables, core: ValidatedFiles, slice_: Slice, folder: PlanFolder, until: int
) -> ValidatedFiles:
    """Validate the records outside the slice that share an identity with a chosen one."""
    silver, rejected, places = writer.silver, writer.rejected, folder.staging("closure_places")
    with backend.sql() as sql:
        sql.view_folder("chosen", folder.staging("chosen"), silver.spec.data_schema)
        sql.view_files("invalid", core.invalid, POSITIONS)
        sql.view_candidates("candidates", writer, parquet_files(folder.staging("chosen")))
        sql.view_table("inside", silver, span_files(silver, slice_, *POSITION))
        sql.view_table("rejected", rejected, rejected.files())
        winner = f"{sql.first_reason}.detail"
        sql.save(CLOSURE.format(identity=identity_columns(writer.dataset), winner=winner), places)
        sql.view_folder("places", places, POSITIONS_AND_BATCH)
        count, first, last = sql.rows("select count(*), min(_batch_id), max(_batch_id) from places")[0]
    if count and first < first_complete_batch(writer):
        complete, table = first_complete_batch(writer), writer.silver.spec.name
        raise Terminal(
            f"{table}: records of the slice are duplicates of records of batch {first}, which has expired (batches"
            f" before {complete} have): which came first is unknown, so nothing was built",
            "plan a range without these records",
            code="originals-expired",
            table=table,
            batch=first,
        )
    beginning = writer.dataset.release_start
    if count and beginning is not None and first < beginning.batch:
        why = f"records of the slice share identities with batch {first}, which this release has not validated"
        raise RowsUnaccounted(writer.silver.spec.name, (first, last), why)
    if not count:
        return ValidatedFiles((), ())
    records = folder.staging("closure_records")
    with backend.sql() as sql:
        sql.view_folder("closure", places, POSITIONS)
        sql.view_table("bronze", writer.bronze, writer.records.batch_files(first, last))
        at = 'select _partition as "partition", _offset as "offset" from closure'
        sql.save_records(f'select * from bronze semi join ({at}) as closure using ("partition", "offset")', records)
    validated = backend.validate(writer, parquet_files(records), (first, last), folder.staging("closure"), until)
    found = rows_in_files(validated.accepted) + rows_in_files(validated.invalid)
    if found != count:
        why = f"the slice needs {count} records of other batches, bronze has {found} of them"
        raise RowsUnaccounted(writer.bronze.spec.name, (first, last), why)
    return validated


def _write_after(
    sql: Sql, writer: SilverTables, core: ValidatedFiles, closure: ValidatedFiles, folder: PlanFolder
) -> None:
    """Write the first accepted record of each identity, and all other records with their reasons."""
    silver, rejected = writer.silver.spec, writer.rejected.spec
    sql.view_files("accepted", [*parquet_files(folder.staging("chosen")), *closure.accepted], silver.data_schema)
    sql.view_files("invalid", [*core.invalid, *closure.invalid], writer.validated_schema)
    sql.find_duplicates(writer.dataset, "accepted", "(select * from accepted where false)")
    sql.save(ORIGINALS, folder.rows("after", silver.name))
    sql.view_rejected("rejected_rows", writer.dataset)
    columns = ", ".join(rejected.data_schema.fieldNames())
    sql.save(f"select {columns} from rejected_rows", folder.rows("after", rejected.name))


def _write_before(sql: Sql, writer: SilverTables, table: Table, folder: PlanFolder) -> int:
    """Write a table's published rows of the slice and the rows that differ; return how many records differ."""
    name, schema = table.spec.name, table.spec.data_schema
    sql.view_folder("after_silver", folder.rows("after", writer.silver.spec.name), POSITIONS)
    sql.view_folder("after_rejected", folder.rows("after", writer.rejected.spec.name), POSITIONS)
    sql.view_table("there", table, table.files())
    sql.save(BEFORE, folder.rows("before", name))
    for state in ("before", "after"):
        sql.view_folder(state, folder.rows(state, name), schema)
    return save_differences(sql, folder, name, schema)


def save_differences(sql: Sql, folder: PlanFolder, name: str, schema: StructType) -> int:
    """Write the rows of views `before` and `after` that differ; return how many records they are about."""
    forms = {each.name: sql.with_map if "map<" in each.dataType.simpleString() else "{}" for each in schema}
    both = ((form.format(f'b."{name}"'), form.format(f'a."{name}"')) for name, form in forms.items())
    equal = " and ".join(f"{before} is not distinct from {after}" for before, after in both)
    sql.create_table("same", SAME.format(equal=equal))
    for state, side in (("removed", "before"), ("added", "after")):
        sql.save(f"select * from {side} anti join same using (_partition, _offset)", folder.rows(state, name))
        sql.view_folder(state, folder.rows(state, name), schema)
    return sql.count("select _partition, _offset from removed union select _partition, _offset from added")


# A row is compared with the spans of its stripe of offsets: the cost does not grow with rows times spans.
IN_SPANS = """
select {rows}.* from {rows}
semi join (select * from (values {stripes}) as listed(_at, _stripe, _start, _end)) as spans
on {rows}."{partition}" = spans._at and floor({rows}."{offset}" / {width}) = spans._stripe
and {rows}."{offset}" >= spans._start and {rows}."{offset}" < spans._end
"""
CLOSURE = """
with core as (select _partition, _offset from chosen union all select _partition, _offset from invalid),
winners as (
    select _partition, _offset, _batch_id
    from candidates semi join (select {identity} from chosen) as identities using ({identity})
),
own as (select _partition, _offset, _batch_id from inside semi join core using (_partition, _offset)),
won as (
    select distinct concat_ws('/', _batch_id, _partition, _offset) as winner
    from (
        select _partition, _offset, _batch_id from winners union all select _partition, _offset, _batch_id from own
    ) as winning
),
losers as (
    select _partition, _offset, _batch_id
    from rejected semi join won on {winner} = won.winner
    where disposition = 'duplicate'
),
-- Silver may have lost the winner that a duplicate of the core names.
named as (
    select {winner} as place
    from rejected semi join core using (_partition, _offset)
    where disposition = 'duplicate'
),
lost as (
    select
        cast(split_part(place, '/', 2) as int) as _partition,
        cast(split_part(place, '/', 3) as bigint) as _offset,
        cast(split_part(place, '/', 1) as bigint) as _batch_id
    from named
),
found as (
    select _partition, _offset, _batch_id from winners
    union all select _partition, _offset, _batch_id from losers
    union all select _partition, _offset, _batch_id from lost
)
select distinct _partition, _offset, _batch_id from found anti join core using (_partition, _offset)
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
semi join (
    select _partition, _offset from after_silver union all select _partition, _offset from after_rejected
) as slice using (_partition, _offset)
"""
ORIGINALS = "select * from accepted anti join duplicates using (_partition, _offset)"
