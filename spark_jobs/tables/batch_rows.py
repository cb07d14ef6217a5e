"""Rows per bronze batch of data files: from the bounds where a file has one batch, else from its `_batch_id` column.

A compacted file has rows of many batches, one batch after the other, so the column takes a few kilobytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.file_index import BATCH


def first_batch(file: DataFile) -> int:
    """Return the lowest batch of a file."""
    return int(str(file.low[BATCH]))


def last_batch(file: DataFile) -> int:
    """Return the highest batch of a file."""
    return int(str(file.high[BATCH]))


def batch_rows(table: Table, files: Iterable[DataFile], first: int, last: int) -> Counter[int]:
    """Return by batch how many rows of batches [first, last] these files of the table have."""
    rows: Counter[int] = Counter()
    for file in files:
        rows.update({b: n for b, n in rows_of_file(table, file).items() if first <= b <= last})
    return rows


def rows_of_file(table: Table, file: DataFile) -> Mapping[int, int]:
    """Return the rows of one file by batch."""
    if file.lies_within(BATCH, first_batch(file), first_batch(file)):
        return {first_batch(file): file.rows}
    return _column_counts(table.spec.path / file.path)


@lru_cache(maxsize=256)
def _column_counts(path: Path) -> Mapping[int, int]:
    column = pq.read_table(path, columns=[BATCH], partitioning=None)[BATCH]
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist()}


def count_rows(table: Table, first: int, last: int) -> int:
    """Return how many rows of batches [first, last] a table has; reads only files that have other batches too."""
    files = table.batch_files(first, last)
    whole = [file for file in files if file.lies_within(BATCH, first, last)]
    mixed = [file for file in files if not file.lies_within(BATCH, first, last)]
    return sum(file.rows for file in whole) + batch_rows(table, mixed, first, last).total()
