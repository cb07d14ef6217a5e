"""Compares a table's files with its commits: presence, size, checksum, rows, bounds, and whether each can be read."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from include.audit.findings import Finding, FindingKind
from include.declare.event_times import after
from include.ground.commit_history import HistoryDamaged
from include.ground.delta_log import LogDamaged, LogIncomplete, add_actions
from include.ground.durable_files import file_checksum, named_checksum
from include.ground.stored_path import arrow_source
from include.read.publication import PublishedTable
from include.read.published_tables import PublishedVersionGone, open_table

COMPARED_CHARACTERS = 16
"""The bounds in a log may have only the beginnings of longer texts."""
COARSENESS = timedelta(milliseconds=1)
"""The bounds in a log may have whole milliseconds only."""


def beginning(value: Any) -> Any:
    """Return a value as bounds are compared: of a text the first characters."""
    return value[:COMPARED_CHARACTERS] if isinstance(value, str) else value


def latest_of(high: Any) -> Any:
    """Return the greatest value that an upper bound in a log may stand for."""
    return after(high, COARSENESS) if isinstance(high, datetime) else beginning(high)


def contradiction(path: Path, committed: Mapping[str, Any]) -> str | None:
    """Return how a file's footer contradicts its add action (`num_records`, `min.<column>`, …); None when it does not.

    A column without statistics on either side is not compared. Raises what pyarrow raises for a damaged footer.
    """
    footer = pq.read_metadata(arrow_source(path))
    if committed["num_records"] not in (None, footer.num_rows):
        return f"has {footer.num_rows} rows, {committed['num_records']} were committed"
    bounded = {name.partition(".")[2] for name, bound in committed.items() if bound is not None}
    for column, low, high in _footer_bounds(footer, bounded):
        first, last = committed.get(f"min.{column}"), committed.get(f"max.{column}")
        if first is not None and _is_less(beginning(low), beginning(first)):
            return f"has {column} {low}, {first} was committed as the least"
        if last is not None and _is_less(latest_of(last), beginning(high)):
            return f"has {column} {high}, {last} was committed as the greatest"
    return None


def _footer_bounds(footer: pq.FileMetaData, columns: Container[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the least and the greatest value of each of these columns of which all row groups have them."""
    for index in range(footer.num_columns):
        parts = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        if parts and parts[0].path_in_schema in columns:
            bounds = _bounds_of([part.statistics for part in parts if not _is_empty(part)])
            if bounds is not None:
                yield parts[0].path_in_schema, *bounds


def _bounds_of(found: Sequence[pq.Statistics | None]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, None without them or if Python has no such values: the year 10000."""
    known = [each for each in found if each is not None and each.has_min_max]
    if not known or len(known) < len(found):
        return None
    try:
        return min(each.min for each in known), max(each.max for each in known)
    except (OverflowError, ValueError):
        return None


def _is_empty(part: pq.ColumnChunkMetaData) -> bool:
    return part.statistics is not None and part.statistics.null_count == part.num_values


def _is_less(one: Any, other: Any) -> bool:
    """Whether two bounds of one type contradict; values that do not compare, and NaN, do not."""
    if any(isinstance(value, float) and math.isnan(value) for value in (one, other)):
        return False
    with suppress(TypeError):
        return bool(one < other)
    return False


READ_ERRORS = (
    duckdb.Error,
    pl.exceptions.PolarsError,
    pa.ArrowException,
    OSError,
    PublishedVersionGone,
    LogDamaged,
    LogIncomplete,
    HistoryDamaged,
)
AT_A_TIME = 2


@dataclass(frozen=True)
class FileCheck:
    """The files of one table: `files` verified by checksum; `unverifiable`: written by a version without checksums.

    `earlier`: files that the last balanced audit verified and that are unmodified since; they are not read.
    """

    table: str
    files: int
    unverifiable: int
    earlier: int = 0


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    rows: int
    action: Mapping[str, Any]


def file_check(table: PublishedTable, unchanged: Container[str] = frozenset()) -> tuple[FileCheck, list[Finding]]:
    """Compare the files of a table with its log: presence, size, checksum, rows, bounds. Raises PublishedVersionGone.

    `unchanged`: the paths of files that are not read again.
    """
    listed = _files(table)
    files = [file for file in listed if file.path not in unchanged]
    with ThreadPoolExecutor(AT_A_TIME, "checksum") as pool:
        wrong = pool.map(lambda file: _damage(table.path, file), files)
        findings = [_finding(table, file, why) for file, why in zip(files, wrong, strict=True) if why]
    unverifiable = sum(named_checksum(file.path) is None for file in files)
    return FileCheck(table.name, len(files) - unverifiable, unverifiable, len(listed) - len(files)), findings


def unreadable_files(table: PublishedTable) -> list[Finding]:
    """Return a finding for each file of a table that cannot be read, or for the table when its log cannot."""
    found = []
    try:
        for file in _files(table):
            try:
                for _ in pq.ParquetFile(arrow_source(table.path / file.path)).iter_batches():
                    pass
            except (pa.ArrowException, OSError) as error:
                found.append(_finding(table, file, first_line(error)))
    except READ_ERRORS as error:
        return [unreadable_table(table, error)]
    return found


def unreadable_table(table: PublishedTable, error: Exception) -> Finding:
    """Return a finding for a table that cannot be read as a whole."""
    return Finding(FindingKind.damaged, table.name, 0, f"cannot be read: {first_line(error)}; next: {_remedy(table)}")


def _files(table: PublishedTable) -> list[_File]:
    return [
        _File(unquote(action["path"]), action["size_bytes"], action["num_records"] or 0, action)
        for action in add_actions(open_table(table)).to_pylist()
    ]


def _damage(folder: Path, file: _File) -> str | None:
    """Return how a file differs from what was committed; None when it does not, or has no checksum."""
    path, committed = folder / file.path, named_checksum(file.path)
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"has {size} bytes, {file.size} were committed"
        if committed is not None and (found := file_checksum(path)) != committed:
            return f"has checksum {found}, {committed} was committed"
        return contradiction(path, file.action)
    except (pa.ArrowException, OSError) as error:
        return first_line(error)


def _finding(table: PublishedTable, file: _File, why: str) -> Finding:
    detail = f"file {table.path / file.path}: {why}; next: {_remedy(table)}"
    return Finding(FindingKind.damaged, table.name, file.rows, detail)


def _remedy(table: PublishedTable) -> str:
    restore = "restore the file from a backup"
    rebuild = f"{restore}, or rebuild the tables: headrace release run --dataset {table.dataset}"
    return restore if table.name.startswith("bronze.") else rebuild


def first_line(error: Any) -> str:
    """Return the first line of an error's message."""
    return str(getattr(error, "what", error)).partition("\n")[0]
