"""Divides the rows of two tables by a hash of their keys, so that keys are compared a part at a time.

*Writes:* Parquet files in the spill folder, removed at the end; nothing for tables of one part.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any
from uuid import uuid4

from include.reading.memory_database import spill_folder
from include.sql_quoting import sql_literal

ROWS = 1_000_000
"""In a part, about: their keys and hashes are in memory, of both sides."""
BUFFERED_ROWS = 10_000
"""Of each part and thread, until they are written."""


@contextmanager
def key_parts(database: Any, queries: Sequence[str], keys: str, most: int) -> Iterator[Iterator[list[str]]]:
    """Yield the parts, each as what to select the rows of each query from; `most`: rows of the largest query."""
    count = 1 + most // ROWS
    if count == 1:
        yield iter([[f"({query})" for query in queries]])
        return
    folder = spill_folder(getpid()) / uuid4().hex
    try:
        for number, query in enumerate(queries):
            _write_parts(database, query, keys, count, folder / str(number))
        yield ([_part(folder / str(n), query, part) for n, query in enumerate(queries)] for part in range(count))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_parts(database: Any, query: str, keys: str, count: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    database.execute(f"set partitioned_write_flush_threshold = {BUFFERED_ROWS}")
    parted = f"select *, hash({keys}) % {count} as _part from ({query})"
    database.execute(
        f"copy ({parted}) to {sql_literal(str(folder))} (format parquet, partition_by (_part), row_group_size 100000)"
    )


def _part(folder: Path, query: str, part: int) -> str:
    """Return what to select a part from; a part without rows has no files."""
    files = folder / f"_part={part}"
    if not files.is_dir():
        return f"({query} limit 0)"
    return f"read_parquet({sql_literal(str(files / '*.parquet'))}, hive_partitioning = false)"
