"""Rebuilds the ledger from the Delta logs and the publication files, in one transaction.

Reads: every commit file of every table in the warehouse. Writes: the ledger alone.
Guarantee: readers see the old ledger or the new one; running drivers wait or continue without it and enter the rest.
After a crash: the old ledger is unchanged. Does not replace the SQLite file: a driver may hold it open, and a database
in WAL mode that is replaced under an open connection is damaged.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, Table, select

from include.ground.delta_log import LOG, commits
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.observe.ledger_errors import LedgerDamaged, translate_database_errors
from include.observe.ledger_rows import insert_commits
from include.observe.ledger_schema import (
    FACTS,
    SCHEMA_VERSION,
    drop_tables,
    ensure_schema,
    found_version,
    lock_for_writing,
    projected,
    sqlite_file,
)
from include.observe.ledger_writer import writing_engine
from include.observe.project_commits import insert_dataset, table_paths

Rows = dict[tuple[object, ...], tuple[object, ...]]


@dataclass(frozen=True)
class Difference:
    """How a table of the ledger differed from the Delta commits, in rows."""

    missing: int
    surplus: int
    changed: int


@dataclass(frozen=True)
class RebuildResult:
    """What a rebuild found.

    `rows` per table after it; `differences` only of tables that differed; `compared` is False when there was no
    readable ledger of this schema before; `set_aside` is where a damaged file went; `cleaned` as in Projected.
    """

    commits: int
    rows: dict[str, int]
    differences: dict[str, Difference]
    compared: bool
    set_aside: Path | None
    cleaned: dict[str, int]

    @property
    def identical(self) -> bool:
        """Whether the ledger had the same rows before."""
        return self.compared and not self.differences


def rebuild(settings: Settings) -> RebuildResult:
    """Rebuild the ledger; LedgerUnavailable (Transient), or the Terminal errors of the Delta logs, change nothing."""
    engine = writing_engine(settings)
    try:
        return _rebuild(engine, settings, None)
    except LedgerDamaged:
        file = sqlite_file(engine.url)
        if file is None:
            raise
        engine.dispose()
        return _rebuild(engine, settings, set_aside(file))
    finally:
        engine.dispose()


def _rebuild(engine: Engine, settings: Settings, aside: Path | None) -> RebuildResult:
    # Reading the logs takes most of the time, so writers are kept out only from here on.
    read = {path: list(commits(warehouse(settings) / path)) for path in _paths(settings)}
    with translate_database_errors(engine.url), engine.begin() as connection:
        lock_for_writing(connection, alone=True)
        before = _emptied(connection)
        for path, found in read.items():
            insert_commits(connection, path, found, cleaned=True)
        late = _enter_newer(connection, settings)
        after = _all_rows(connection)
    return RebuildResult(
        commits=sum(map(len, read.values())) + late,
        rows={name: len(found) for name, found in after.items()},
        differences={} if before is None else _differences(before, after),
        compared=before is not None,
        set_aside=aside,
        cleaned={path: found[0].version for path, found in read.items() if found and found[0].version > 0},
    )


def _emptied(connection: Connection) -> dict[str, Rows] | None:
    """Empty the ledger and return what it held; None when it was of another schema or there was none."""
    found = found_version(connection)
    if found == SCHEMA_VERSION:
        before = _all_rows(connection)
        for table in (*FACTS, projected):
            connection.execute(table.delete())
        return before
    if found is not None:
        drop_tables(connection)
    ensure_schema(connection)
    return None


def _enter_newer(connection: Connection, settings: Settings) -> int:
    """Enter what was committed since the logs were read, and the publications."""
    return sum(insert_dataset(connection, settings, dataset, set()).commits for dataset in _datasets(settings))


def _paths(settings: Settings) -> list[str]:
    return [path for dataset in _datasets(settings) for path in table_paths(settings, dataset)]


def _datasets(settings: Settings) -> list[str]:
    """Every folder of the warehouse that holds a table, whether or not its dataset is still declared."""
    root = warehouse(settings)
    logs = (log for pattern in ("*/bronze", "*/*/silver") for log in root.glob(f"{pattern}/{LOG}"))
    return sorted({log.relative_to(root).parts[0] for log in logs})


def _all_rows(connection: Connection) -> dict[str, Rows]:
    return {table.name: _rows(connection, table) for table in FACTS}


def _rows(connection: Connection, table: Table) -> Rows:
    keys = len(table.primary_key)
    return {tuple(row[:keys]): tuple(row[keys:]) for row in connection.execute(select(table))}


def _differences(before: dict[str, Rows], after: dict[str, Rows]) -> dict[str, Difference]:
    found = {name: _difference(before[name], after[name]) for name in after}
    return {name: difference for name, difference in found.items() if difference != Difference(0, 0, 0)}


def _difference(before: Rows, after: Rows) -> Difference:
    changed = sum(before[key] != after[key] for key in before.keys() & after.keys())
    return Difference(len(after.keys() - before.keys()), len(before.keys() - after.keys()), changed)


def set_aside(file: Path) -> Path:
    """Move a damaged SQLite file and its companions aside for inspection; return the file's new path."""
    number = 1
    while (aside := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm"):
        companion = Path(f"{file}{suffix}")
        if companion.exists():
            os.replace(companion, f"{aside}{suffix}")
    return aside
