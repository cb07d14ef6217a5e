"""Rows in Arrow files: Spark's tasks or a Java class of ours write them, this process reads them in place.

Writing Parquet takes a task several times as long, and DuckDB would decode it again (layers/adr-0016). The
tasks are threads of this process, which reads the files once, soon after, through the memory of the operating system.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from spark_jobs.contract.java_function import new_instance
from spark_jobs.tables.data_files import ROWS_PER_GROUP, Bounds

SUFFIX = ".arrow"
SOURCE = Path(__file__).with_name("ArrowFiles.java")
UNFINISHED = "_unfinished"


def write_arrow(rows: DataFrame, folder: Path) -> list[Path]:
    """Execute a frame's query and add its rows to a folder, a file for each task that has some; return the files.

    A frame that was executed before is not planned again. A failed execution leaves no file.
    """
    writer = new_instance(rows.sparkSession, SOURCE)
    return added_files(folder, lambda unfinished: writer.write(rows._jdf.queryExecution(), str(unfinished)))


def added_files(folder: Path, write: Callable[[Path], object]) -> list[Path]:
    """Add the Arrow files that `write` writes into the folder it is given, in the order of their names; return them.

    Nothing is left of what fails.
    """
    unfinished = folder / UNFINISHED / uuid4().hex
    unfinished.mkdir(parents=True)
    try:
        write(unfinished)
        return [
            file.rename(folder / f"{unfinished.name}-{file.name}") for file in sorted(unfinished.glob(f"*{SUFFIX}"))
        ]
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_arrow(files: Sequence[Path], names: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of one or more files, with these columns, or all; the rows stay in the files."""
    tables = [_opened(file) for file in files]
    return pa.concat_tables([table if names is None else table.select(names) for table in tables])


def arrow_rows(file: Path) -> int:
    """Return the row count of a file."""
    return int(_opened(file).num_rows)


def arrow_bounds(file: Path, columns: Sequence[str]) -> Iterator[tuple[Bounds, Bounds]]:
    """Yield the lower and upper bounds of `columns` for each batch of a file, as `bounds_of` does for Parquet."""
    for batch in _opened(file).select(columns).to_batches():
        found = {name: pc.min_max(batch[name]).as_py() for name in columns}
        known = {name: each for name, each in found.items() if each["min"] is not None}
        yield {name: each["min"] for name, each in known.items()}, {name: each["max"] for name, each in known.items()}


def _opened(file: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def stage_files(folder: Path) -> list[Path]:
    """Return the files of a folder of Parquet or Arrow files."""
    return sorted([*folder.glob("*.parquet"), *folder.glob(f"*{SUFFIX}")])


def batches_in_files(files: Sequence[Path], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files of a stage, in order, with these columns; those of Arrow files stay there."""
    for file in files:
        if file.suffix == SUFFIX:
            yield from read_arrow([file], names).to_batches()
        else:
            with pq.ParquetFile(file) as source:
                # By row group, whose bytes are bounded: a batch over several may have all rows of a file.
                for group in range(source.num_row_groups):
                    yield from source.iter_batches(ROWS_PER_GROUP, row_groups=[group], columns=list(names))


def no_rows_of_file(file: Path, names: Sequence[str]) -> pa.RecordBatch:
    """Return no rows, with these columns as a file of a stage has them."""
    schema = read_arrow([file], names).schema if file.suffix == SUFFIX else pq.read_schema(file)
    return pa.RecordBatch.from_pylist([], pa.schema([schema.field(name) for name in names]))


def rows_in_files(files: Iterable[Path]) -> int:
    """Return the row count of files, from the footers."""
    return sum(arrow_rows(file) if file.suffix == SUFFIX else pq.read_metadata(file).num_rows for file in files)


def rows_in_folder(folder: Path) -> int:
    """Return the row count of a stage, from the footers."""
    return rows_in_files(stage_files(folder))
