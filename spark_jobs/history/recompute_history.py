"""Deep audit: silver, rejected and gold recomputed from bronze, and compared row by row with what is published.

Guarantee: duplicates are found among recomputed rows, so a wrong row of silver changes the verdict on no other.
After a crash: the folder is one of the process's temporary files; nothing else was written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from include.declare.gold import Gold
from include.ground.record_coordinates import POSITION, RANK
from include.ground.settings import Settings
from include.ground.sql_quoting import same_sql, sql_names
from include.read.rejected_records import DecidedRecord, Position
from spark_jobs.backends.backend import Backend, Sql
from spark_jobs.backends.local.arrow_files import rows_in_files
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.backends.local.runs import run_records
from spark_jobs.backends.release import Release, last_of_run
from spark_jobs.history.apply_patch import PatchedReference, patched_references, validate_joined
from spark_jobs.history.rebuild_gold import compared_columns
from spark_jobs.history.rebuild_slice import ORIGINALS, PlanFolder, save_differences
from spark_jobs.history.row_differences import Differences, row_differences
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import refresh_state, refreshed_rows, refreshed_silver
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.run_inputs import RecordDecisions
from spark_jobs.layers.silver_tables import (
    POSITIONS,
    RefineRun,
    SilverTables,
    first_complete_batch,
    first_unexpired_batch,
)
from spark_jobs.tables.data_files import parquet_files, read_files, write_folder
from spark_jobs.tables.delta_table import Table

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Recomputed:
    """What a deep audit compared: bronze's `records`, the first batch, the first not `expired`, each table."""

    records: int
    first: int
    differences: Sequence[Differences]
    expired: int = 0


@dataclass
class ChosenDecisions(RecordDecisions):
    """Of the decisions about some records, those that their published rows follow."""

    chosen: Mapping[Position, DecidedRecord] = field(default_factory=dict)

    def for_batches(self, batches: tuple[int, int], until: int) -> dict[Position, DecidedRecord]:
        return dict(self.chosen)


def recompute_history(
    settings: Settings, release: Release, batch: int, folder: Path, progress: Progress = lambda *_: None
) -> Recomputed:
    """Recompute what `release`, pinned to its publication at `batch`, holds, and compare it; removes the folder.

    Batches that the release inherited, or that have expired, are left out. Raises RowsUnaccounted.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        start = release.dataset.release_start
        complete, backend = first_complete_batch(release.writer), release.backend
        first = max(start.batch if start else 0, complete)
        history = _History(backend, backend.apart(release.writer, folder), folder, first, batch)
        history.compare_unknown_batches()
        records = 0
        for run in history.runs(2 * settings.refine_records):
            progress("silver and rejected", run.last, batch)
            records += history.compare_run(run)
        tables = (history.writer.silver, history.writer.rejected)
        found = [history.differences(table) for table in tables]
        for number, target in enumerate(release.gold):
            progress(target.table.spec.name, number, len(release.gold))
            found.append(compare_gold(history, target))
        return Recomputed(records, history.first, found, complete)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _History:
    """The batches [first, last] of a release, and the rows of them that differ."""

    backend: Backend
    writer: SilverTables
    folder: Path
    first: int
    last: int
    slices: list[PlanFolder] = field(default_factory=list)
    """Folders of the slices with differences: `removed` is published and not recomputed, `added` the reverse."""

    def __post_init__(self) -> None:
        settings, dataset = self.writer.decisions.settings, self.writer.decisions.dataset
        self._decisions = ChosenDecisions(settings, dataset)
        # One for all runs: its queries are prepared once. The schemas are those that the tables were made with.
        payloads = replace(self.writer.payloads, learns=False)
        self._recomputing = replace(self.writer, decisions=self._decisions, payloads=payloads)
        self._patched = patched_references(self.writer.silver)

    def runs(self, most_rows: int) -> Iterator[RefineRun]:
        first = self.first
        while first <= self.last:
            bound = last_of_run(self.writer.records, first, self.last, most_rows)
            yield RefineRun(first, bound, 0)
            first = bound + 1

    def rows(self, state: str, table: Table) -> list[Path]:
        """Return the files of the rows of a table that differ."""
        return [path for found in self.slices for path in parquet_files(found.rows(state, table.spec.name))]

    def compare_run(self, run: RefineRun) -> int:
        """Recompute some batches and keep the rows that differ; return the number of records.

        A decision about a record (a fix, a discard) acts when the record is validated again. Where the published
        row differs, the latest decision has not acted yet and is left out. Where a plan has joined it with reference
        tables of its own, the record is joined with these.
        """
        writer, until = self.writer, self.writer.decisions.until()
        decided = writer.decisions.for_batches(run.batches, until)
        found = PlanFolder(self.folder / "slices" / str(run.first))
        tables, joined = (writer.silver, writer.rejected), dict[Position, PatchedReference]()
        while True:
            self._decisions.chosen = decided
            records = self._recompute(run, until, found, joined)
            differing = sum(self._compare(table, run, found) for table in tables)
            if differing and not joined and (joined := self._joined_by_plans(found, tables)):
                continue
            pending = decided.keys() & self._differing(tables, found) if differing and decided else set()
            if not pending:
                break
            decided = {
                position: fewer for position, each in decided.items() if (fewer := _without(each, position in pending))
            }
        self._keep(found, differing)
        return records

    def _joined_by_plans(self, found: PlanFolder, tables: Sequence[Table]) -> dict[Position, PatchedReference]:
        """Return the records that differ and that a plan may have joined with reference tables of its own."""
        positions = self._differing(tables, found) if self._patched else set()
        return {position: each for each in reversed(self._patched) for position in positions if each.has(position)}

    def _recompute(
        self, run: RefineRun, until: int, found: PlanFolder, joined: Mapping[Position, PatchedReference]
    ) -> int:
        writer = self._recomputing
        records = run_records(self.backend.sql, writer.records, run.batches, found.path / "records")
        files = validate_joined(self.backend, writer, records, run.batches, until, joined)
        silver, rejected = writer.silver.spec, writer.rejected.spec
        with self.backend.sql() as sql:
            sql.view_files("accepted", files.accepted, silver.data_schema)
            sql.view_files("invalid", files.invalid, writer.validated_schema)
            sql.view_candidates("candidates", writer, files.accepted)
            for state in ("removed", "added"):
                sql.view_files(f"silver_{state}", self.rows(state, writer.silver), silver.data_schema)
            columns = sql_names(dict.fromkeys([*writer.dataset.pipeline.identity, *RANK]))
            sql.view_query("recomputed", RECOMPUTED.format(columns=columns, rank=", ".join(RANK), first=run.first))
            sql.find_duplicates(writer.dataset, "accepted", "recomputed")
            sql.view_rejected("rejected_rows", writer.dataset)
            columns = ", ".join(rejected.data_schema.fieldNames())
            sql.save(f"select {columns} from rejected_rows", found.rows("after", rejected.name))
            sql.save(ORIGINALS, found.rows("after", silver.name))
        return rows_in_files(records)

    def _compare(self, table: Table, run: RefineRun, found: PlanFolder) -> int:
        with self.backend.sql() as sql:
            sql.view_table("published", table, table.batch_files(*run.batches))
            sql.view_folder("recomputed", found.rows("after", table.spec.name), table.spec.data_schema)
            self._view_orphans(sql, run)
            inside = f"_batch_id between {run.first} and {run.last}"
            for name, side in (("before", "published"), ("after", "recomputed")):
                judged = f"select * from {side} where {inside}"
                sql.view_query(
                    name, f"select * from ({judged}) as judged anti join orphans using (_partition, _offset)"
                )
            return save_differences(sql, found, table.spec.name, table.spec.data_schema)

    def _view_orphans(self, sql: Sql, run: RefineRun) -> None:
        """Create a view of the run's duplicates of records that have expired: nothing says any more that they are."""
        rejected, expired = self.writer.rejected, first_unexpired_batch(self.writer, "silver")
        sql.view_table("duplicates", rejected, rejected.batch_files(*run.batches) if expired else [])
        sql.view_query("orphans", ORPHANS.format(expired=expired, winner=f"{sql.first_reason}.detail"))

    def compare_unknown_batches(self) -> None:
        """Keep the published rows of batches that bronze does not have."""
        found, differing = PlanFolder(self.folder / "slices" / "unknown"), 0
        for table in (self.writer.silver, self.writer.rejected):
            with self.backend.sql() as sql:
                sql.view_table("published", table, table.files())
                unknown = f"select * from published where (_batch_id between 0 and {self.last}) is not true"
                sql.save(unknown, found.rows("removed", table.spec.name))
            differing += rows_in_files(parquet_files(found.rows("removed", table.spec.name)))
        self._keep(found, differing)

    def _differing(self, tables: Sequence[Table], found: PlanFolder) -> set[Position]:
        differing: set[Position] = set()
        for table in tables:
            with self.backend.sql() as sql:
                for state in ("removed", "added"):
                    sql.view_folder(state, found.rows(state, table.spec.name), POSITIONS)
                differing |= {(partition, offset) for partition, offset in sql.rows(DIFFERING_POSITIONS)}
        return differing

    def _keep(self, found: PlanFolder, differing: int) -> None:
        for folder in (self.writer.staging, found.path / "records", found.path / "after"):
            shutil.rmtree(folder, ignore_errors=True)
        if differing:
            self.slices.append(found)
        else:
            shutil.rmtree(found.path)

    def differences(self, table: Table) -> Differences:
        identity = self.writer.dataset.pipeline.identity if table is self.writer.silver else ()
        with duckdb_session() as duck:
            for state in ("removed", "added"):
                duck.view_files(state, self.rows(state, table), table.spec.data_schema)
            found = row_differences(duck, table, list(POSITION), list(identity))
            first, last = duck.rows(BATCHES)[0]
        return self.with_batches(found, first, last)

    def with_batches(self, found: Differences, first: int | None, last: int | None) -> Differences:
        """Return differences with the batches to replay: all when it is not known which."""
        if first is None or last is None:
            first, last = self.first, self.last
        within = (max(self.first, min(first, self.last)), min(self.last, max(last, self.first)))
        return replace(found, batches=within) if found.counts else found

    def silver(self, spark: SparkSession) -> DataFrame:
        """Return silver as recomputed: the published rows with those that differ replaced."""
        table = self.writer.silver
        rows, schema = table.read(spark, table.files()), table.spec.data_schema
        removed, added = (read_files(spark, schema, self.rows(state, table)) for state in ("removed", "added"))
        if not self.slices:
            return rows
        return rows.join(removed.select(*RANK).distinct(), list(RANK), "left_anti").unionByName(added)


def _without(record: DecidedRecord, is_pending: bool) -> DecidedRecord | None:
    """Return what is decided without the latest decision, if that has not acted; None when nothing is left."""
    decisions = record.decisions[:-1] if is_pending else record.decisions
    return DecidedRecord(decisions) if decisions else None


def compare_gold(history: _History, target: GoldTable) -> Differences:
    """Recompute a gold table from silver as recomputed; return how the published rows differ."""
    gold, table, silver = target.gold, target.table, history.silver(target.spark)
    refreshed = refresh_state(target)
    silver = refreshed_silver(gold, refreshed, silver)
    rows = gold_rows(gold).complete(silver, history.last)
    shown = compared_columns(target)
    written, keys = history.folder / "gold", list(gold.row_columns)
    write_folder(refreshed_rows(gold, refreshed, rows).select(*shown.fieldNames()), written)
    states = {"removed": history.folder / "removed", "added": history.folder / "added"}
    with history.backend.sql() as sql:
        sql.view_table("published", table, table.files())
        sql.view_folder("recomputed", written, shown)
        columns = sql_names(shown.fieldNames())
        _view_complete(sql, gold, first_unexpired_batch(history.writer, "silver"))
        sql.create_table("differing", DIFFERING.format(columns=columns))
        for sign, (state, place) in zip((1, -1), states.items(), strict=True):
            copies = sql.numbers.format(f"{sign} * _copies")
            sql.save(COPIES.format(columns=columns, sign=sign, copies=copies), place)
            sql.view_folder(state, place, shown)
        source = f"published semi join removed on {same_sql(keys, 'published', 'removed')}"
        first, last = sql.rows(f"select min(_first_batch), max(_last_batch) from {source}")[0]
    with duckdb_session() as duck:
        for state, place in states.items():
            duck.view_folder(state, place, shown)
        sums = shown.fields if gold.measures else []
        doubles = [field.name for field in sums if field.dataType.simpleString() == "double"]
        found = row_differences(duck, table, keys, keys, doubles)
    shutil.rmtree(written)
    return history.with_batches(found, None if "missing" in found.counts else first, last)


def _view_complete(sql: Sql, gold: Gold, first: int) -> None:
    """Create views of both sides without grains that have records of batches before `first`, which have expired."""
    keys = gold.grain_columns
    sql.create_table("expired", f"select distinct {sql_names(keys)} from published where _first_batch < {first}")
    for side in ("published", "recomputed"):
        sql.view_query(
            f"{side}_complete", f"select * from {side} anti join expired on {same_sql(keys, side, 'expired')}"
        )


# Silver before the slice, as recomputed.
RECOMPUTED = """
select {columns} from candidates anti join silver_removed using ({rank}) where _batch_id < {first}
union all
select {columns} from silver_added
"""
ORPHANS = """
select _partition, _offset from duplicates
where disposition = 'duplicate' and try_cast(split_part({winner}, '/', 1) as bigint) < {expired}
"""
BATCHES = """
select min(_batch_id), max(_batch_id)
from (select _batch_id from removed union all select _batch_id from added) as differing
"""
DIFFERING_POSITIONS = "select _partition, _offset from removed union select _partition, _offset from added"
DIFFERING = """
select {columns}, cast(sum(_sign) as bigint) as _copies
from (
    select {columns}, 1 as _sign from published_complete
    union all select {columns}, -1 as _sign from recomputed_complete
) as both_sides
group by {columns}
having sum(_sign) <> 0
"""
COPIES = """
select {columns} from (select {columns}, {copies} as _copy from differing where {sign} * _copies > 0) as copied
"""
