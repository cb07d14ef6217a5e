"""Rows in Arrow files: Spark's tasks or a Java class of ours write them, this process reads them in place.

A *place* is Kafka's partition and offset of a record in 64 bits.

Writing Parquet takes a task several times as long, and DuckDB would decode it again (layers/adr-0016). The
tasks are threads of this process, which reads the files once, soon after, through the memory of the operating system.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from include.ground.stored_path import arrow_source
from spark_jobs.contract.java_function import shared_instance
from spark_jobs.tables.data_files import ROWS_PER_GROUP, Bounds

SUFFIX = ".arrow"
SOURCES = [Path(__file__).with_name(f"{name}.java") for name in ("ArrowFiles", "ArrowFile")]
UNFINISHED = "_unfinished"


def write_arrow(rows: DataFrame, folder: Path) -> list[Path]:
    """Execute a frame's query and add its rows to a folder, a file for each task that has some; return the files.

    A frame that was executed before is not planned again. A failed execution leaves no file.
    """
    writer = shared_instance(rows.sparkSession.sparkContext, *SOURCES)
    return added_files(folder, lambda unfinished: writer.write(rows._jdf.queryExecution(), str(unfinished)))


def added_files(folder: Path, write: Callable[[Path], object]) -> list[Path]:
    """Add the Arrow files that `write` writes into a folder, by name; return them. Of what fails nothing is left."""
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
    return sum(
        (_opened(file) if file.suffix == SUFFIX else pq.read_metadata(arrow_source(file))).num_rows for file in files
    )


def rows_in_folder(folder: Path) -> int:
    """Return the row count of a stage, from the footers."""
    return rows_in_files(stage_files(folder))


Words = NDArray[np.uint64]
OFFSET_BITS = 48
PARTITIONS = (1 << 64 - OFFSET_BITS) - 1
NOWHERE = np.uint64(2**64 - 1)
"""The place of a row whose partition or offset is null or beyond any of Kafka's: no record is there."""


def packed_places(partitions: NDArray[np.int64], offsets: NDArray[np.int64]) -> Words:
    """Return the places of partitions below PARTITIONS and offsets of at most OFFSET_BITS bits."""
    return (partitions.astype(np.uint64) << np.uint64(OFFSET_BITS)) | offsets.astype(np.uint64)


def unpacked_places(places: Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return partitions and offsets of places."""
    offsets = places & np.uint64((1 << OFFSET_BITS) - 1)
    return (places >> np.uint64(OFFSET_BITS)).astype(np.int64), offsets.astype(np.int64)


def places_in(batch: pa.RecordBatch, names: Sequence[str]) -> Words:
    """Return the places of rows; `names` are their columns of partition and offset."""
    partitions, offsets = (pc.fill_null(batch[name], -1).to_numpy() for name in names)
    is_somewhere = (partitions >= 0) & (partitions < PARTITIONS) & (offsets >= 0) & (offsets < 1 << OFFSET_BITS)
    return np.where(is_somewhere, packed_places(partitions, offsets), NOWHERE)


def are_in(values: Words, in_order: Words) -> NDArray[np.bool_]:
    """Return which of the values are among those `in_order`."""
    if not len(in_order):
        return np.zeros(len(values), bool)
    return np.asarray(in_order.take(np.searchsorted(in_order, values), mode="clip") == values)
