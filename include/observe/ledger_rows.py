"""Writes rows into the database inside a transaction of the caller; shared by the live writer and the rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from include.ground.delta_log import Commit
from include.observe.commit_rows import Row, Values, rows_of_commit
from include.observe.ledger_errors import LedgerBehind
from include.observe.ledger_schema import FACTS, projected
from include.observe.row_totals import add_to_totals


def insert_commits(connection: Connection, path: str, commits: Sequence[Commit], *, cleaned: bool = False) -> int:
    """Enter the commits that are newer than the last one entered of the table at `path`; return how many.

    They must follow it without a gap, else LedgerBehind: an index with holes would look complete.
    `cleaned`: the caller found that the log itself begins later.
    """
    last = last_projected(connection, path)
    head = -1 if last is None else last[0]
    fresh = [commit for commit in commits if commit.version > head]
    if not fresh:
        return 0
    if fresh[0].version != head + 1 and not cleaned:
        raise LedgerBehind(path, fresh[0].version)
    rows = [row for commit in fresh for row in rows_of_commit(commit)]
    upsert(connection, rows)
    add_to_totals(connection, rows)
    mark: Values = {"path": path, "version": fresh[-1].version, "committed_at_ms": fresh[-1].timestamp_ms}
    upsert(connection, [Row(projected, mark)])
    return len(fresh)


def last_projected(connection: Connection, path: str) -> tuple[int, int] | None:
    """Return version and commit time (UTC ms) of the last commit entered of a table, None when there is none."""
    query = select(projected.c.version, projected.c.committed_at_ms).where(projected.c.path == path)
    found = connection.execute(query).first()
    return None if found is None else (int(found[0]), int(found[1]))


def delete_release(connection: Connection, dataset: str, release: str) -> None:
    """Delete the rows of a release without tables, as a rebuild has none; tables of the same name may follow."""
    for table in (table for table in FACTS if "release" in table.c):
        connection.execute(table.delete().where(table.c.dataset == dataset, table.c.release == release))
    inside = projected.c.path.startswith(f"{dataset}/{release}/", autoescape=True)
    connection.execute(projected.delete().where(inside))


def upsert(connection: Connection, rows: Iterable[Row]) -> None:
    """Insert rows, or replace the given columns of those that are there; of equal keys the last one counts."""
    for _, group in groupby(sorted(rows, key=_shape), key=_shape):
        same = list(group)
        connection.execute(_upsert(connection, same[0].table, list(same[0].values)), [row.values for row in same])


def _shape(row: Row) -> tuple[str, list[str]]:
    return row.table.name, list(row.values)


def _upsert(connection: Connection, table: Table, columns: list[str]) -> postgresql.Insert | sqlite.Insert:
    insert = postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
    keys = [column.name for column in table.primary_key]
    given = {column: insert.excluded[column] for column in columns if column not in keys}
    return insert.on_conflict_do_update(index_elements=keys, set_=given)
