"""Compares a table's files with its commits: presence, size, checksum, rows, bounds, and whether each can be read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from include.audit.audit_findings import Finding, FindingKind
from include.audit.file_bounds import contradiction
from include.ground.commit_history import HistoryDamaged
from include.ground.delta_log import LogDamaged, LogIncomplete
from include.ground.file_checksum import file_checksum, named_checksum
from include.ground.table_files import add_actions
from include.read.publication import PublishedTable
from include.read.published_tables import PublishedVersionGone, open_table

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
                for _ in pq.ParquetFile(table.path / file.path).iter_batches():
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
