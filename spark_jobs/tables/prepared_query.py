"""Spark queries that are built and planned once, and executed again and again over other rows (layers/adr-0013).

A *slot* is the input of such a query: files whose names and sizes never change, so that Spark lists them and plans
tasks for them once. The result is saved as files, or returned through memory if the rows are of bounded size.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.ground.process_folder import new_process_folder
from spark_jobs.tables.repeatable_plan import is_repeatable, scanned_columns
from spark_jobs.tables.spark_files import write_files, write_stage

SLOT_BYTES = 48 << 20
"""The greatest size of the rows as Arrow that this process divides among a slot's files."""
# Below spark.sql.files.maxPartitionBytes, so that one task reads a file.
FILE_BYTES = 2 * SLOT_BYTES
READ_BATCH_ROWS = 4_096
# A file that is read once: a dictionary or compression would cost more than it saves.
UNCOMPRESSED = {"compression": "none", "use_dictionary": False}
SPARK_WRITING = {
    # With version 2 a failed job would leave the files of its completed tasks, whose records are written again.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.page.write-checksum.enabled": "false",
    "parquet.size.statistics.enabled": "false",
}
FOOTER_LENGTH_AND_MAGIC = 8


class ScratchFolder:
    """A folder below `parent` for the files of this process alone, made at first use, removed at exit."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @cached_property
    def path(self) -> Path:
        """The folder, created at first access; folders of dead processes are deleted then."""
        return new_process_folder(self._parent)


class SlotFull(Exception):
    """The rows are too many for a slot: the caller builds a query for this run."""


class Slot:
    """The rows that a prepared query reads, of a `schema`: one file for each of `tasks`; `rows` is their frame.

    With one task, a query that groups or sorts needs no shuffle, so that its plan is repeatable.
    """

    def __init__(self, spark: SparkSession, folder: Path, schema: StructType, tasks: int) -> None:
        # It may be left by an attempt for which the disk was full.
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = [folder / f"{number}.parquet" for number in range(tasks)]
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self.fill(self._schema.empty_table())
        rows = spark.read.schema(schema).parquet(str(folder))
        self.rows = rows.coalesce(1) if tasks == 1 else rows

    @property
    def names(self) -> list[str]:
        """The slot's columns."""
        return list(self._schema.names)

    def fill(self, rows: pa.Table) -> None:
        """Exchange the rows for others with the slot's columns, or those that its query reads.

        Raises SlotFull; the slot is not to be read then.
        """
        if rows.nbytes > SLOT_BYTES:
            raise SlotFull
        each = -(-len(rows) // len(self._files))
        for number, file in enumerate(self._files):
            _write_padded(rows.slice(number * each, each), file)

    def fill_from(self, files: Sequence[Path], *, copied: bool = False) -> None:
        """Exchange the rows for those of Parquet files. Raises SlotFull as soon as they exceed SLOT_BYTES.

        With `copied`, files that are as many as the slot's are taken as they are, however many rows they have: not for
        a query whose result comes through memory.
        """
        if copied and len(files) == len(self._files) and all(file.stat().st_size <= FILE_BYTES for file in files):
            for file, target in zip(files, self._files, strict=True):
                _copy_padded(file, target)
            return
        if sum(uncompressed_bytes(file) for file in files) > SLOT_BYTES:
            raise SlotFull
        parts, size = [self._schema.empty_table()], 0
        for part in self._parts(files):
            parts.append(part)
            size += part.nbytes
            if size > SLOT_BYTES:
                raise SlotFull
        self.fill(pa.concat_tables(parts))

    def remove(self) -> None:
        """Delete the files; the slot's queries must not be executed any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _parts(self, files: Sequence[Path]) -> Iterator[pa.Table]:
        names = self._schema.names
        for file in files:
            with pq.ParquetFile(file) as source:
                for batch in source.iter_batches(READ_BATCH_ROWS, columns=names):
                    yield pa.Table.from_batches([batch]).select(names).cast(self._schema)


class PreparedQuery:
    """A query over slots. Its physical plan is executed again if that is safe; else each execution plans anew."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @cached_property
    def _is_repeatable(self) -> bool:
        return is_repeatable(self._frame)

    @cached_property
    def scanned_columns(self) -> frozenset[str] | None:
        """The columns that an execution reads from files; None when that is unknown."""
        return scanned_columns(self._frame)

    def _current(self) -> DataFrame:
        """Return the frame to execute over what the slots have now."""
        return self._frame if self._is_repeatable else self._frame.select("*")

    def result(self) -> pa.Table:
        """Execute the query; return its rows, in memory."""
        return self._current().toArrow()

    def save(self, folder: Path) -> None:
        """Execute the query; add its rows to a folder that Spark does not read."""
        write_stage(self._current(), folder, SPARK_WRITING)

    def save_by(self, column: str, folder: Path) -> None:
        """Execute the query; add its rows as Parquet to a folder for each value of `column` below `folder`."""
        save_by(self.result(), column, folder)


@dataclass(frozen=True)
class QueryOfOneRun:
    """A query that is built for one run, over any number of rows."""

    frame: DataFrame

    def save(self, folder: Path) -> None:
        """Execute the query; add its rows to a folder that Spark does not read."""
        write_stage(self.frame, folder, SPARK_WRITING)

    def save_by(self, column: str, folder: Path) -> None:
        """Execute the query; add its rows as Parquet to a folder for each value of `column` below `folder`."""
        write_files(self.frame, folder, "append", column, SPARK_WRITING)


def save_by(rows: pa.Table, column: str, folder: Path) -> None:
    """Add rows as Parquet to a folder for each value of `column` below `folder`."""
    form = ds.ParquetFileFormat()
    ds.write_dataset(
        rows,
        folder,
        format=form,
        file_options=form.make_write_options(**UNCOMPRESSED),
        partitioning=[column],
        partitioning_flavor="hive",
        basename_template=f"{uuid4().hex}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
    )


def _write_padded(rows: pa.Table, file: Path) -> None:
    """Write rows as a Parquet file of FILE_BYTES, sparse where the storage can.

    A reader finds the footer from the end and the row groups from the beginning, so there may be a gap between them.
    """
    buffer = BytesIO()
    pq.write_table(rows, buffer, write_statistics=False, **UNCOMPRESSED)
    content = buffer.getbuffer()
    if len(content) > FILE_BYTES:
        raise SlotFull
    _exchange(file, content)


def _copy_padded(source: Path, file: Path) -> None:
    """Copy a Parquet file of at most FILE_BYTES, with the gap of `_write_padded`."""
    # The view is released also on an error, which an open one would hide behind an error of its own.
    with (
        source.open("rb") as opened,
        mmap(opened.fileno(), 0, access=ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        _exchange(file, content)


def _exchange(file: Path, content: memoryview) -> None:
    """Replace a slot's file by the content of a Parquet file with a gap before its footer."""
    footer = int.from_bytes(content[-FOOTER_LENGTH_AND_MAGIC:-4], "little") + FOOTER_LENGTH_AND_MAGIC
    new = file.with_suffix(".new")
    try:
        with new.open("wb") as opened, content[:-footer] as rows, content[-footer:] as end:
            opened.write(rows)
            opened.seek(FILE_BYTES - footer)
            opened.write(end)
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)


def uncompressed_bytes(file: Path) -> int:
    """Return the bytes of a file's rows before compression, from its footer: as Arrow they are as many or, where a
    dictionary holds equal values once, more.
    """
    footer = pq.read_metadata(file)
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
