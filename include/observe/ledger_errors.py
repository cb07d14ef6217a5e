"""Errors of the ledger, and the translation of database errors into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError

from include.ground.errors import Terminal, Transient

REBUILD = "headrace ledger rebuild"
DAMAGE = ("malformed", "not a database")


class LedgerUnavailable(Transient):
    """The database is locked, full, read-only or not reachable; the data path does not need it."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"ledger {url} is unavailable ({why}); the Delta tables are complete without it",
            "nothing: missing commits are inserted once it is available",
        )
        self.url = url
        self.why = why


class LedgerBehind(Transient):
    """The ledger lacks commits of `table` before `at` (a version or a batch)."""

    def __init__(self, table: str, at: int | str) -> None:
        super().__init__(
            f"ledger lacks commits of {table} before {at}; nothing was inserted", "headrace ledger rebuild"
        )
        self.table = table
        self.at = at


class LedgerMissing(Transient):
    """There is no ledger yet at `url`; the first driver or a rebuild creates it."""

    def __init__(self, url: str) -> None:
        super().__init__(f"no ledger exists at {url}", f"headrace up   or   {REBUILD}")
        self.url = url


class LedgerDamaged(Terminal):
    """The file is not a readable SQLite database."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"ledger {url} is damaged ({why}); the Delta tables are complete without it", REBUILD)
        self.url = url


class LedgerSchemaMismatch(Terminal):
    """The ledger has schema version `found`; this code reads and writes only `required`."""

    def __init__(self, url: str, found: str, required: str) -> None:
        super().__init__(f"ledger {url} has schema {found}, this code needs {required}; nothing was written", REBUILD)
        self.url = url
        self.found = found
        self.required = required


class LedgerMismatch(Terminal):
    """The ledger and `table` on disk differ: commits were replaced or are missing."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"ledger and table {table} disagree: {why}; nothing was written", REBUILD)
        self.table = table


class CommitMetadataInvalid(Terminal):
    """The metadata of a commit lacks a key or has a value of the wrong type."""

    def __init__(self, app_id: str, version: int, why: str) -> None:
        super().__init__(
            f"commit {version} of {app_id}: its metadata cannot be read ({why}); the ledger stops before it",
            "headrace audit   (checks the data itself)",
        )
        self.app_id = app_id
        self.version = version


@contextmanager
def translate_database_errors(url: URL) -> Iterator[None]:
    """Raise the database's errors as LedgerUnavailable (may pass) or LedgerDamaged (will not)."""
    shown = url.render_as_string(hide_password=True)
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise LedgerUnavailable(shown, _first_line(error)) from error
    except DatabaseError as error:
        why = _first_line(error)
        if any(word in why for word in DAMAGE):
            raise LedgerDamaged(shown, why) from error
        raise


def _first_line(error: DatabaseError | InterfaceError) -> str:
    return str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
