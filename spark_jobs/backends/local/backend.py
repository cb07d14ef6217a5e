"""The local backend: rows are computed in the driver's process; what it cannot do raises NeedsSpark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from include.declare.dataset import Dataset
from include.declare.file_sets import FileSet
from include.ground.durable_files import named_checksum
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier, sql_literal, sql_names
from spark_jobs.backends.backend import SPLIT_BY_DAY, DecidedRun, Metadata, NeedsSpark, Transaction, ValidatedFiles
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.backends.local.bronze import commit_bronze, loaded_rows
from spark_jobs.backends.local.duckdb_session import (
    DuckSession,
    background_session,
    database_of_many_rows,
    duckdb_session,
)
from spark_jobs.backends.local.gold import merge
from spark_jobs.backends.local.identities import IdentityLookup, find_duplicates
from spark_jobs.backends.local.runs import (
    LocalRun,
    NextBounds,
    NextRun,
    RunRows,
    ValidatedRun,
    Validations,
    decided_run,
)
from spark_jobs.backends.local.tables import LocalTables, local_tables, rejected_rows_sql
from spark_jobs.backends.local.validation import begin_full_validation, validate_files
from spark_jobs.layers.bronze import LoadedBatches
from spark_jobs.layers.gold_files import GoldTable, rows_of
from spark_jobs.layers.gold_layer import GoldCommit, write_gold
from spark_jobs.layers.row_provenance import ReplacedGrains
from spark_jobs.layers.silver_tables import Month, RefineRun, SilverTables, files_at
from spark_jobs.tables.data_files import DataFile, TableSpec, are_of_one_day, parquet_files
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.failpoints import Step, pass_step

LEAST_COPIED = 512 << 10
"""Files that are smaller in the mean have few rows in a row group: their rows are written again, in larger ones."""


def _can_be_copied(table: Table, group: Sequence[DataFile], day: str) -> bool:
    """Whether the files' row groups are large enough to stay as they are, in the order of batches, and of one day."""
    if any("_batch_id" not in file.high for file in group):
        return False
    if sum(file.size for file in group) < LEAST_COPIED * len(group):
        return False
    if any(named_checksum(file.path) is None for file in group):
        # Reading it in full shows whether it is damaged.
        return False
    is_in_order = all(file.last_batch < following.first_batch for file, following in pairwise(group))
    if not is_in_order or (day and not are_of_one_day(group, day)):
        return False
    return have_same_columns([table.spec.path / file.path for file in group])


def _write_sorted(
    duck: DuckSession, table: Table, group: Sequence[DataFile], part: Path, order: Sequence[str], day: str
) -> None:
    duck.view_table("small", table, group)
    column = day if sum(file.size for file in group) >= SPLIT_BY_DAY else ""
    for number, condition in enumerate(_days(duck, column)):
        ordered = f" order by {sql_names(order)}" if order else ""
        duck.save_file(f"select * from small{condition}{ordered}", part / f"part-{number}.parquet")


def _days(duck: DuckSession, column: str) -> list[str]:
    """Return a condition for each day that the rows of `small` have; one that holds for all without a column."""
    if not column:
        return [""]
    day = f"date_trunc('day', {sql_identifier(column)})"
    days = duck.rows(f"select distinct {day}::varchar from small order by all")
    return [f" where {day}::varchar is not distinct from {sql_literal(d) if d else 'null'}" for (d,) in days]


REPLACED = """
select *, {month} as _month from (
    select * from current anti join removed using (_partition, _offset) union all select * from added
)
"""


PLAIN_INTEGERS = {(f"INT{bits}", f"Int(bitWidth={bits}, isSigned=true)") for bits in (32, 64)}


def have_same_columns(files: Sequence[Path]) -> bool:
    """Return whether the files have the same columns of the same types, as the parts of one file must."""
    first, *others = (_columns(file) for file in files)
    return all(first == other for other in others)


def _columns(file: Path) -> list[tuple[object, ...]]:
    """Return path, physical type and meaning of each column of a file.

    A signed integer of its type's width means the same without an annotation: DuckDB writes it, Arrow does not.
    """
    schema = pq.read_metadata(file).schema
    found = list[tuple[object, ...]]()
    for column in (schema.column(number) for number in range(len(schema))):
        means = str(column.logical_type)
        found.append(
            (
                column.path,
                column.physical_type,
                column.length,
                column.max_definition_level,
                column.max_repetition_level,
                "None" if (column.physical_type, means) in PLAIN_INTEGERS else means,
            )
        )
    return found


def copy_row_groups(spark: SparkSession, files: Sequence[Path], target: Path) -> None:
    """Write the row groups of the files, in order, into one new file. Raises py4j's error when one cannot be read."""
    java: Any = spark._jvm
    hadoop, path = java.org.apache.parquet.hadoop, java.org.apache.hadoop.fs.Path
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    # `appendFile` makes new options for each file, and parses Hadoop's XML files for them.
    options = java.org.apache.parquet.HadoopReadOptions.builder(configuration).build()

    def opened(file: Path) -> Any:
        return hadoop.ParquetFileReader.open(
            hadoop.util.HadoopInputFile.fromPath(path(str(file)), configuration), options
        )

    output = hadoop.util.HadoopOutputFile.fromPath(path(str(target)), configuration)
    sizes = (hadoop.ParquetWriter.DEFAULT_BLOCK_SIZE, hadoop.ParquetWriter.MAX_PADDING_SIZE_DEFAULT)
    with closing(opened(files[0])) as first:
        schema = first.getFileMetaData().getSchema()
    with closing(hadoop.ParquetFileWriter(output, schema, hadoop.ParquetFileWriter.Mode.CREATE, *sizes)) as writer:
        writer.start()
        for file in files:
            with closing(opened(file)) as reader:
                reader.appendTo(writer)
        writer.end(java.java.util.HashMap())


class LocalSql(DuckSession):
    """A session of DuckDB."""

    first_reason = "reasons[1]"
    rules = "unnest(list_distinct([reason.rule for reason in reasons]))"
    numbers = "unnest(range({}))"
    with_map = "{}"
    find_duplicates = find_duplicates

    def view_candidates(self, name: str, writer: SilverTables, given: Sequence[Path]) -> None:
        adopted(writer).identities.view_candidates(self, name, given)

    def view_rejected(self, name: str, dataset: Dataset) -> None:
        self.view_query(name, rejected_rows_sql(dataset))


@dataclass(frozen=True)
class LocalBackend:
    """Arrow and DuckDB over the tables' own files, which this process commits. `spark` copies row groups."""

    spark: SparkSession | None = None
    ingest = staticmethod(commit_bronze)
    adopt = staticmethod(local_tables)

    def open_table(self, spec: TableSpec, version: int | None = None) -> Table:
        return Table(spec, version)

    def loaded_rows(self, settings: Settings, files: FileSet, start: int, bounds: tuple[int, int]) -> LoadedBatches:
        return loaded_rows(settings, files, start, bounds)

    def begin_opening(self, dataset: Dataset) -> Callable[[SilverTables], None]:
        """Have a thread plan the full validation: another one plans seconds of other queries meanwhile."""
        assert self.spark is not None
        begun = begin_full_validation(self.spark, dataset)
        return lambda writer: adopted(writer).prepared.expect(begun)

    def run_after(
        self, writer: SilverTables, ahead: ValidatedRun | None, next_bounds: NextBounds, validations: Validations
    ) -> NextRun:
        return NextRun(adopted(writer), ahead, next_bounds, validations)

    def apart(self, writer: SilverTables, folder: Path) -> LocalTables:
        """Return the tables with an index of their own, built from silver's rows."""
        index = IdentityLookup(writer.dataset, writer.silver, folder / "identities", owns=True)
        return replace(adopted(writer), staging=folder / "_staging", identities=index)

    def decide(
        self, writer: SilverTables, run: RefineRun, following: NextRun | None = None, *, is_committed: bool = False
    ) -> LocalRun:
        return decided_run(adopted(writer), run, following, is_committed=is_committed)

    def validate(
        self, writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
    ) -> ValidatedFiles:
        return validate_files(adopted(writer), records, batches, folder, until)

    def merge(self, commit: GoldCommit, decided: DecidedRun | None = None) -> None:
        """Merge the rows of a run into a gold table; those of an update that is no run's are Spark's."""
        tables, late = adopted(commit.writer), commit.update.late
        if commit.target.gold.name not in tables.merges or late is None:
            raise NeedsSpark("DuckDB has no such keys, measures or refresh")
        rows = decided.rows if isinstance(decided, LocalRun) else RunRows(tables, late.files, (late.first, late.last))
        merge(tables, commit, rows)

    @contextmanager
    def sql(self) -> Iterator[LocalSql]:
        with closing(LocalSql(database_of_many_rows())) as duck:
            yield duck

    def drop_expired(self, writer: SilverTables, ends: Mapping[int, int]) -> None:
        adopted(writer).identities.drop_expired(ends)

    def rebuild_identities(self, writer: SilverTables) -> int:
        return adopted(writer).identities.rebuild()

    def rewrite(
        self, table: Table, group: Sequence[DataFile], folder: Path, order: Sequence[str], day: str, *, aside: bool
    ) -> list[DataFile]:
        """Write the rows of a group into new files; row groups of larger files are copied as they are."""
        part = folder / f"{table.spec.partition}={quote(group[0].partition_text, safe='')}"
        part.mkdir(parents=True)
        if self.spark is not None and _can_be_copied(table, group, day):
            paths = [table.spec.path / file.path for file in group]
            copy_row_groups(self.spark, paths, part / "part-0.parquet")
        else:
            with background_session() if aside else duckdb_session() as duck:
                _write_sorted(duck, table, group, part, order, day)
        return table.written_files(folder)

    def expire(
        self, table: Table, before: int, order: Sequence[str], transaction: Transaction, metadata: Metadata
    ) -> None:
        """Commit the table without the rows of batches before `before`."""
        files = table.batch_files(0, before - 1)
        kept = [file for file in files if file.last_batch >= before]
        attempt = table.attempt_folder(f"expired-{before}-{table.version}")
        shutil.rmtree(attempt, ignore_errors=True)
        with duckdb_session() as duck:
            for number, file in enumerate(kept):
                folder = attempt / str(number) / f"{table.spec.partition}={quote(file.partition_text, safe='')}"
                folder.mkdir(parents=True)
                duck.view_table(f"kept_{number}", table, [file])
                rows = f"select * from kept_{number} where _batch_id >= {before}"
                duck.save_file(f"{rows} order by {sql_names(order)}", folder / "part.parquet")
        added = table.written_files(attempt) if kept else []
        if sum(file.rows for file in files) - sum(file.rows for file in added) != metadata["rows_removed"]:
            raise RowsUnaccounted(table.spec.name, (0, before - 1), "files of expired batches do not add up")
        table.commit(*transaction, metadata, added, files)

    def replace(
        self, table: Table, month: Month, removed: Path, added: Path, transaction: Transaction, metadata: Metadata
    ) -> None:
        """Commit the files that may have the rows to remove, written again."""
        changed = rows_in_folder(removed), rows_in_folder(added)
        old = files_at(table, [*parquet_files(removed), *parquet_files(added)]) if any(changed) else []
        written: list[DataFile] = []
        if any(changed):
            with duckdb_session() as duck:
                duck.view_folder("removed", removed, table.spec.data_schema)
                duck.view_folder("added", added, table.spec.data_schema)
                duck.view_table("current", table, old)
                folder = f"{transaction.app_id.rpartition('/')[2]}-{transaction.version}"
                written = duck.write(REPLACED.format(month=month.in_duckdb), table, folder)
        expected, found = sum(file.rows for file in old) - changed[0] + changed[1], sum(file.rows for file in written)
        if found != expected:
            why = f"{found} rows were to be written instead of {expected}: rows have changed"
            raise RowsUnaccounted(table.spec.name, (-1, transaction.version), why)
        table.commit(*transaction, metadata, written, old)

    def replace_grains(
        self, target: GoldTable, replaced: ReplacedGrains, transaction: Transaction, metadata: Metadata
    ) -> None:
        """Commit the files of gold that may have the grains, written again."""
        table, old = target.table, replaced.files
        rows = replaced.others.select(*replaced.fresh.columns).unionByName(replaced.fresh)
        folder = f"{transaction.app_id.rpartition('/')[2]}-{transaction.version}"
        added, _ = write_gold(target, rows, folder, old, replaced.batch)
        pass_step(Step.GOLD_WRITTEN, replaced.batch)
        counts = {"rows": rows_of(added), "total": table.rows - rows_of(old) + rows_of(added)}
        table.commit(*transaction, {**metadata, **counts}, added, old)


def adopted(writer: SilverTables) -> LocalTables:
    """Return a release's tables as the local backend has them."""
    assert isinstance(writer, LocalTables), f"{writer.silver.spec.name} was opened for another backend"
    return writer
