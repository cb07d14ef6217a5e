"""Divides the rows of two tables by a hash of their keys, so that keys are compared a part at a time.

*Writes:* Parquet files in the spill folder, removed at the end; nothing for tables of one part.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any
from uuid import uuid4

from include.ground.sql_quoting import sql_literal
from include.read.memory_database import spill_folder

ROWS = 1_000_000
"""In a part, about: their keys and hashes are in memory, of both sides."""
BUFFERED_ROWS = 10_000
"""Of each part and thread, until they are written."""
READ_ONCE = "_read_once"


@contextmanager
def key_parts(
    database: Any, views: Mapping[str, Callable[[], Any]], selected: str, keys: str, most: int
) -> Iterator[Iterator[list[str]]]:
    """Yield the parts, each as what to select the rows of each view from.

    `views`: by name what returns a reader of all rows of the view. `selected`: what is selected of them, `keys` among
    it. `most`: rows of the largest view.
    """
    count, queries = 1 + most // ROWS, [f"select {selected} from {view}" for view in views]
    if count == 1:
        yield iter([[f"({query})" for query in queries]])
        return
    folder = spill_folder(getpid()) / uuid4().hex
    try:
        for view, read in views.items():
            _write_parts(database, read(), selected, keys, count, folder / view)
        yield ([_part(folder / v, q, part) for v, q in zip(views, queries, strict=True)] for part in range(count))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_parts(database: Any, reader: Any, selected: str, keys: str, count: int, folder: Path) -> None:
    folder.mkdir(parents=True)
    database.execute(f"set partitioned_write_flush_threshold = {BUFFERED_ROWS}")
    database.register(READ_ONCE, reader)
    parted = f"select *, hash({keys}) % {count} as _part from (select {selected} from {READ_ONCE})"
    database.execute(
        f"copy ({parted}) to {sql_literal(str(folder))} (format parquet, partition_by (_part), row_group_size 100000)"
    )
    database.unregister(READ_ONCE)


def _part(folder: Path, query: str, part: int) -> str:
    """Return what to select a part from; a part without rows has no files."""
    files = folder / f"_part={part}"
    if not files.is_dir():
        return f"({query} limit 0)"
    return f"read_parquet({sql_literal(str(files / '*.parquet'))}, hive_partitioning = false)"
