"""Writes the ledger: new commits and publications, one idempotent transaction per call, or all of it again.

A rebuild reads every commit file of every table. Readers see the old ledger or the new one; running drivers wait, or
continue without it and enter the rest. It does not replace the SQLite file: a driver may hold it open, and a database
in WAL mode that is replaced under an open connection is damaged.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, Table, func, select

from include.declare.gold import full_name
from include.ground.delta_log import LOG, commits, commits_following, has_commit, latest_version, read_commit
from include.ground.paths import bronze_path, verified_path, warehouse
from include.ground.settings import Settings
from include.observe import ledger_schema as ledger
from include.observe.ledger_rows import Row, canonical, insert_commits, last_projected, upsert
from include.observe.ledger_schema import LedgerDamaged, LedgerMismatch, sqlite_file, translate_database_errors
from include.read.publication import Publication, find_publication
from include.read.published_tables import RECORD_LAYERS
from include.state.release_files import verified_file

GOLD = "gold."


def insert_publications(connection: Connection, publication: Publication) -> int:
    """Enter every batch up to the publication's that all tables of a release hold; return how many were new."""
    releases = _parts_of_paths(connection, f"{publication.dataset}/", "/silver")
    return sum(_enter_release(connection, publication, release) for release in releases)


def _enter_release(connection: Connection, publication: Publication, release: str) -> int:
    dataset, upto, c = publication.dataset, publication.batch, ledger.publications.c
    done = connection.execute(select(func.max(c.batch)).where(c.dataset == dataset, c.release == release)).scalar()
    after = -1 if done is None else int(done)
    found = _runs(connection, dataset, release, after, upto)
    if not found:
        return 0
    needed = _parts_of_paths(connection, f"{dataset}/{release}/gold/", "")
    if release == publication.release:
        records = {f"{layer}.{dataset}" for layer in RECORD_LAYERS}
        needed |= {name.removeprefix(GOLD) for name in publication.tables if name not in records}
    gold = _gold(connection, dataset, release, after, upto)
    complete = [run for run in found if {commit["gold"] for commit in gold[run["last_batch"]]} >= needed]
    bronze = _bronze_versions(connection, dataset, [run["last_batch"] for run in complete])
    rows = [_row(run, gold[run["last_batch"]], bronze.get(run["last_batch"])) for run in complete]
    upsert(connection, rows)
    return len(rows)


def _row(run: RowMapping, gold: list[RowMapping], bronze: int | None) -> Row:
    dataset = run["dataset"]
    tables = {full_name(str(commit["gold"])): commit["version"] for commit in gold}
    tables |= {f"silver.{dataset}": run["silver_version"], f"rejected.{dataset}": run["rejected_version"]}
    if bronze is not None:
        tables[f"bronze.{dataset}"] = bronze
    times = [run["silver_committed_at_ms"], run["rejected_committed_at_ms"], *(c["committed_at_ms"] for c in gold)]
    key = {"dataset": dataset, "release": run["release"], "batch": run["last_batch"]}
    return Row(ledger.publications, key | {"published_at_ms": max(times), "tables": canonical(tables)})


def _runs(connection: Connection, dataset: str, release: str, after: int, upto: int) -> list[RowMapping]:
    whole = ledger.runs.c.silver_version.is_not(None) & ledger.runs.c.rejected_version.is_not(None)
    return _between(connection, ledger.runs, (dataset, release), (after, upto), whole)


def _gold(connection: Connection, dataset: str, release: str, after: int, upto: int) -> dict[int, list[RowMapping]]:
    by_batch: dict[int, list[RowMapping]] = defaultdict(list)
    for commit in _between(connection, ledger.gold_commits, (dataset, release), (after, upto)):
        by_batch[commit["last_batch"]].append(commit)
    return by_batch


def _between(
    connection: Connection, table: Table, owner: tuple[str, str], bounds: tuple[int, int], *conditions: Any
) -> list[RowMapping]:
    c, (dataset, release), (after, upto) = table.c, owner, bounds
    ours = (c.dataset == dataset) & (c.release == release) & (c.last_batch > after) & (c.last_batch <= upto)
    return list(connection.execute(select(table).where(ours, *conditions).order_by(c.last_batch)).mappings())


def _bronze_versions(connection: Connection, dataset: str, of: Sequence[int]) -> dict[int, int]:
    """Return by batch the version of bronze; a release that is not advanced any more reads none."""
    if not of:
        return {}
    c = ledger.batches.c
    ours = (c.dataset == dataset) & c.batch.between(min(of), max(of))
    found = connection.execute(select(c.batch, c.version).where(ours).order_by(c.version))
    return {int(batch): int(version) for batch, version in found}


def _parts_of_paths(connection: Connection, before: str, after: str) -> set[str]:
    """Return the part between two texts in the paths of the entered tables: releases, or a release's gold tables."""
    paths = connection.execute(select(ledger.projected.c.path)).scalars()
    return {p.removeprefix(before).removesuffix(after) for p in paths if p.startswith(before) and p.endswith(after)}


class LedgerWriter:
    """Writes to one ledger; an empty database becomes a ledger by itself.

    Errors of every method: Transient (`ledger-unavailable`: continue without the ledger, enter the commits later),
    LedgerDamaged, and Terminal for another schema (the ledger must be rebuilt; the data path may continue).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Tables and folders that this process has compared with the ledger; later calls read only changes.
        self.compared: set[str] = set()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Connection]:
        """Open a transaction on a ledger of this schema version; `alone` keeps all other writers out until its end."""
        with translate_database_errors(self._engine.url), self._engine.begin() as connection:
            ledger.lock_for_writing(connection, alone=alone)
            ledger.ensure_schema(connection)
            yield connection


def open_writer(settings: Settings) -> LedgerWriter:
    """Return a writer on the ledger that the settings name; the database is opened at the first call."""
    return LedgerWriter(writing_engine(settings))


def writing_engine(settings: Settings) -> Engine:
    """Return an engine whose transactions are a writer's from their first statement."""
    engine = ledger.open_engine(settings)
    file = sqlite_file(engine.url)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    return engine.execution_options(begin="begin immediate")


# A folder that changed so recently may change again without another modification time.
SETTLED_SECONDS = 2.0


def insert_verifications(connection: Connection, settings: Settings, dataset: str, compared: set[str]) -> None:
    """Enter the verifications of a dataset's releases; the same again is the same row. Raises StateFileUnreadable.

    Folders in `compared` are skipped until they change.
    """
    pattern = verified_path(settings, dataset, "*", "*").parent.relative_to(settings.state)
    for folder in sorted(settings.state.glob(str(pattern))):
        changed = folder.stat().st_mtime_ns
        if (key := f"{folder} {changed}") not in compared:
            upsert(connection, _verified_rows(folder, dataset))
            if time.time() - changed / 1e9 > SETTLED_SECONDS:
                compared.add(key)


def _verified_rows(folder: Path, dataset: str) -> Iterator[Row]:
    for path in sorted(folder.glob("*.json")):
        if verified := verified_file(path).read():
            key = {"dataset": dataset, "release": path.parent.parent.name, "plan": verified.plan}
            spans = {"since_ms": _ms(verified.since), "until_ms": _ms(verified.until)}
            times = {"batch": verified.batch, "verified_at_ms": verified.verified_at_ms}
            yield Row(ledger.verifications, key | spans | times)


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


AT_ONCE = 1_000
"""Commits in memory when a ledger catches up: after an outage there may be as many as a day has seconds."""


@dataclass(frozen=True)
class Projected:
    """What one call entered: commits, published batches, and tables whose log begins later than the ledger needs.

    `cleaned` maps such a table's path to the first version its log still has.
    """

    commits: int
    published: int
    cleaned: dict[str, int]


def project_dataset(writer: LedgerWriter, settings: Settings, dataset: str) -> Projected:
    """Enter all commits of a dataset's tables that are newer than the ledger, and the publication.

    Reads: the publication file and the new commit files, at first also the last one entered. One transaction.
    After a crash: call it again. Errors: those of LedgerWriter; LedgerMismatch (Terminal) when the ledger describes
    other tables than these; LogDamaged, LogIncomplete (Terminal) of the tables.
    """
    try:
        with writer.transaction() as connection:
            return insert_dataset(connection, settings, dataset, writer.compared)
    except BaseException:
        # What was compared in this transaction is not in the ledger.
        writer.compared.clear()
        raise


def insert_dataset(connection: Connection, settings: Settings, dataset: str, compared: set[str]) -> Projected:
    """Do what `project_dataset` does in a transaction of the caller; tables in `compared` are not compared again."""
    # The publication first: all batches that it covers are in the logs that are read after it.
    publication = find_publication(settings, dataset)
    paths = table_paths(settings, dataset)
    _refuse_lost_bronze(connection, settings, dataset)
    cleaned: dict[str, int] = {}
    entered = sum(_enter_table(connection, settings, path, compared, cleaned) for path in paths)
    insert_verifications(connection, settings, dataset, compared)
    published = 0 if publication is None else insert_publications(connection, publication)
    return Projected(entered, published, cleaned)


def table_paths(settings: Settings, dataset: str) -> list[str]:
    """Return the paths, relative to the warehouse, of a dataset's Delta tables in all releases, bronze first."""
    root = warehouse(settings)
    patterns = ("bronze", "*/silver", "*/rejected", "*/gold/*")
    found = (path for pattern in patterns for path in sorted(root.glob(f"{dataset}/{pattern}/{LOG}")))
    return [path.parent.relative_to(root).as_posix() for path in found]


def _enter_table(
    connection: Connection, settings: Settings, path: str, compared: set[str], cleaned: dict[str, int]
) -> int:
    table, last = warehouse(settings) / path, last_projected(connection, path)
    head = -1 if last is None else last[0]
    if path in compared and last is not None:
        return insert_commits(connection, path, list(commits_following(table, head)))
    latest = latest_version(table)
    _refuse_other_table(path, table, last, latest)
    new, entered = commits(table, head) if latest > head else iter(()), 0
    while some := list(islice(new, AT_ONCE)):
        if not entered and some[0].version != head + 1:
            cleaned[path] = some[0].version
        entered += insert_commits(connection, path, some, cleaned=True)
    compared.add(path)
    return entered


def _refuse_other_table(path: str, table: Path, last: tuple[int, int] | None, latest: int) -> None:
    """A table that was deleted and created again has other commits under the same versions."""
    if last is None:
        return
    version, committed_at_ms = last
    if latest < version:
        raise LedgerMismatch(path, f"it has commits up to {latest}, the ledger up to {version}")
    if has_commit(table, version) and read_commit(table, version).timestamp_ms != committed_at_ms:
        raise LedgerMismatch(path, f"version {version} was committed at another time than the ledger says")


def _refuse_lost_bronze(connection: Connection, settings: Settings, dataset: str) -> None:
    bronze = bronze_path(settings, dataset)
    if last_projected(connection, f"{dataset}/bronze") is not None and not (bronze / LOG).is_dir():
        raise LedgerMismatch(f"{dataset}/bronze", "the ledger has its commits, and the table does not exist")


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
        return self.compared and not self.differences


def rebuild(settings: Settings) -> RebuildResult:
    """Rebuild the ledger. When it is not available, or a Delta log has a Terminal error, nothing changes."""
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
    paths = [path for dataset in _datasets(settings) for path in table_paths(settings, dataset)]
    read = {path: list(commits(warehouse(settings) / path)) for path in paths}
    with translate_database_errors(engine.url), engine.begin() as connection:
        ledger.lock_for_writing(connection, alone=True)
        before = _emptied(connection)
        for path, found in read.items():
            insert_commits(connection, path, found, cleaned=True)
        late = sum(insert_dataset(connection, settings, dataset, set()).commits for dataset in _datasets(settings))
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
    found = ledger.found_version(connection)
    if found == ledger.SCHEMA_VERSION:
        before = _all_rows(connection)
        for table in (*ledger.FACTS, ledger.projected):
            connection.execute(table.delete())
        return before
    if found is not None:
        ledger.drop_tables(connection)
    ledger.ensure_schema(connection)
    return None


def _datasets(settings: Settings) -> list[str]:
    """Every folder of the warehouse that holds a table, whether or not its dataset is still declared."""
    root = warehouse(settings)
    logs = (log for pattern in ("*/bronze", "*/*/silver") for log in root.glob(f"{pattern}/{LOG}"))
    return sorted({log.relative_to(root).parts[0] for log in logs})


def _all_rows(connection: Connection) -> dict[str, Rows]:
    return {table.name: _rows(connection, table) for table in ledger.FACTS}


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
