"""Files of a table written again by DuckDB: compacted, without expired batches, or with the rows of a patch."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from include.ground.durable_files import named_checksum
from include.ground.sql_quoting import sql_identifier, sql_literal, sql_names
from spark_jobs.backends.backend import SPLIT_BY_DAY, Metadata, Transaction
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.backends.local.duckdb_session import DuckSession, background_session, duckdb_session
from spark_jobs.layers.gold_files import GoldTable, rows_of
from spark_jobs.layers.gold_layer import write_gold
from spark_jobs.layers.row_provenance import ReplacedGrains
from spark_jobs.layers.silver_tables import Month, files_at
from spark_jobs.tables.data_files import DataFile, are_of_one_day
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.spark_files import parquet_files

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


@dataclass(frozen=True)
class Rewrites:
    """The verbs that write files again. `spark` copies row groups."""

    spark: SparkSession | None = None

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
