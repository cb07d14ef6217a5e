"""The ledger's ways to fail, and the translation of the database's own errors into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError

from include.errors import Terminal, Transient

REBUILD = "headrace ledger rebuild"
DAMAGE = ("malformed", "not a database")


class LedgerUnavailable(Transient):
    """The database is locked, full, read-only or not reachable; the data path does not need it."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"ledger {url} is unavailable ({why}); the Delta tables are complete without it",
            "nothing to do when it comes back: missing commits are entered then",
        )
        self.url = url
        self.why = why


class LedgerBehind(Transient):
    """Commits are missing before what was to be entered: `table` and `at` (a version or a batch) name it."""

    def __init__(self, table: str, at: int | str) -> None:
        super().__init__(f"ledger lacks commits of {table} before {at}; nothing was entered", "catch_up enters them")
        self.table = table
        self.at = at


class LedgerMissing(Transient):
    """There is no ledger yet at `url`; the first driver or a rebuild creates it."""

    def __init__(self, url: str) -> None:
        super().__init__(f"there is no ledger at {url}", f"headrace up   or   {REBUILD}")
        self.url = url


class LedgerDamaged(Terminal):
    """The database file is no SQLite database any more."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"ledger {url} is damaged ({why}); the Delta tables are complete without it", REBUILD)
        self.url = url


class LedgerSchemaMismatch(Terminal):
    """The ledger was written by another version of the code: `found` and `wanted` are schema versions."""

    def __init__(self, url: str, found: str, wanted: str) -> None:
        super().__init__(f"ledger {url} has schema {found}, this code needs {wanted}; nothing was written", REBUILD)
        self.url = url
        self.found = found
        self.wanted = wanted


class LedgerMismatch(Terminal):
    """The ledger describes another `table` than the one on disk: its commits differ or are gone."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"ledger and table {table} disagree: {why}; nothing was written", REBUILD)
        self.table = table


class CommitMetadataInvalid(Terminal):
    """A commit has our metadata but lacks `key` or has it in another form."""

    def __init__(self, app_id: str, version: int, why: str) -> None:
        super().__init__(
            f"commit {version} of {app_id}: its metadata cannot be read ({why}); the ledger stops before it",
            "headrace audit   (tells whether the data is balanced)",
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
