"""Enters the commits that the ledger lacks: after each run, after a crash, after an outage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sqlalchemy import Connection

from include.ground.delta_log import LOG, commits, commits_following, has_commit, latest_version, read_commit
from include.ground.paths import bronze_path, warehouse
from include.ground.settings import Settings
from include.observe.ledger_errors import LedgerMismatch
from include.observe.ledger_rows import insert_commits, last_projected
from include.observe.ledger_writer import LedgerWriter
from include.observe.project_publications import insert_publications
from include.observe.project_verifications import insert_verifications
from include.read.publication import Publication, find_publication

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
    return Projected(entered, _publish(connection, publication), cleaned)


def _publish(connection: Connection, publication: Publication | None) -> int:
    return 0 if publication is None else insert_publications(connection, publication)


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
