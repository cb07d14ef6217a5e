"""The driver's writer of the ledger: enters commits and publications, idempotently, one transaction per call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from include.ground.delta_log import Commit
from include.ground.settings import Settings
from include.observe.ledger_errors import LedgerBehind, translate_database_errors
from include.observe.ledger_rows import insert_commits
from include.observe.ledger_schema import ensure_schema, lock_for_writing, open_engine, sqlite_file
from include.observe.project_publications import insert_publications, is_inserted
from include.read.publication import Publication


class LedgerWriter:
    """Writes to one ledger; an empty database becomes a ledger by itself.

    Errors of every method: LedgerUnavailable (Transient: continue without the ledger, enter the commits later),
    LedgerDamaged and LedgerSchemaMismatch (Terminal: the ledger must be rebuilt; the data path may continue).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Tables and folders that this process has compared with the ledger; later calls read only changes.
        self.compared: set[str] = set()

    def project(self, path: str, commits: Sequence[Commit]) -> int:
        """Enter consecutive commits of the table at `path` (relative to the warehouse); return how many were new.

        LedgerBehind (Transient) when a commit before the first one given is missing; `project_dataset` inserts it.
        """
        with self.transaction() as connection:
            return insert_commits(connection, path, commits)

    def publish(self, publication: Publication) -> int:
        """Enter the batches that the publication has passed; return how many. LedgerBehind when commits are missing."""
        with self.transaction() as connection:
            entered = insert_publications(connection, publication)
            if not is_inserted(connection, publication):
                raise LedgerBehind(f"{publication.dataset}/{publication.release}", f"batch {publication.batch}")
            return entered

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._engine.dispose()

    @contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[Connection]:
        """Open a transaction on a ledger of this schema version; `alone` keeps all other writers out until its end."""
        with translate_database_errors(self._engine.url), self._engine.begin() as connection:
            lock_for_writing(connection, alone=alone)
            ensure_schema(connection)
            yield connection


def open_writer(settings: Settings) -> LedgerWriter:
    """Return a writer on the ledger that the settings name; the database is opened at the first call."""
    return LedgerWriter(writing_engine(settings))


def writing_engine(settings: Settings) -> Engine:
    """Return an engine whose transactions are a writer's from their first statement."""
    engine = open_engine(settings)
    file = sqlite_file(engine.url)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    return engine.execution_options(begin="begin immediate")
