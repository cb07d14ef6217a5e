"""Changed rows of a published table, publication by publication, with a token that resumes exactly after the last
change.

Only the data files are read in which two published versions differ. A consumer stores the token together with its own
output.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from include.ground.delta_log import FileChanges, file_changes
from include.ground.errors import Terminal
from include.ground.record_coordinates import RECORD
from include.ground.settings import Settings, load_settings
from include.ground.sql_quoting import sql_identifier
from include.ground.stored_path import arrow_files, path_below, text_below
from include.read.memory_database import memory_database
from include.read.publication import PublishedTable
from include.read.published_sql import open_query, tables_mentioned
from include.read.published_tables import PinnedTables, PublishedVersionGone, open_dataset, pinned

if TYPE_CHECKING:
    import pyarrow as pa

POLL_SECONDS = 0.5


class TokenUnusable(Terminal):
    """A token's version of the table cannot be compared with the published one any more."""

    def __init__(self, table: str, why: str) -> None:
        super().__init__(
            f"{table}: the changes since the token are unknown: {why}; nothing was returned",
            f'subscribe again without a token: subscribe("{table}") returns the whole table first',
        )
        self.table = table


@dataclass(frozen=True)
class Token:
    """The published version that a subscriber has; `path` is relative to the state folder."""

    table: str
    path: str
    version: int
    release: str
    batch: int


@dataclass(frozen=True)
class PublishedChange:
    """What a publication changed in a table.

    `added` and `removed` are rows (Arrow) with the table's columns except the platform's own (`_…`), of silver and
    rejected also the record's coordinates; a changed row is in both. `token` resumes after this change.
    """

    token: str
    batch: int
    added: pa.Table
    removed: pa.Table


def subscribe(
    table: str,
    token: str | None = None,
    *,
    settings: Settings | None = None,
    stop: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[PublishedChange]:
    """Yield a change for each publication of a table that is new since `token`; without one the whole table first.

    A change may cover several publications that came in quick succession. Ends when `stop` returns true. Raises
    TableUnknown, TokenUnusable.
    """
    chosen = settings or load_settings()
    last = _parsed(table, token) if token else None
    while not stop():
        now = pinned(chosen).table(table)
        current = Token(table, text_below(chosen.state, now.path), now.version, now.release, now.batch)
        if current == last:
            sleep(POLL_SECONDS)
            continue
        added, removed = _changed(chosen, last, now)
        yield PublishedChange(json.dumps(asdict(current)), now.batch, added, removed)
        last = current


def _parsed(table: str, token: str) -> Token:
    try:
        found = Token(**json.loads(token))
    except (ValueError, TypeError) as error:
        raise TokenUnusable(table, f"{token!r} is not a token ({error})") from error
    if found.table != table:
        raise TokenUnusable(table, f"the token is of {found.table}")
    return found


def _changed(settings: Settings, last: Token | None, now: PublishedTable) -> tuple[pa.Table, pa.Table]:
    if last is None:
        whole = open_dataset(now)
        return _difference(whole, whole.schema.empty_table())
    path = path_below(settings.state, last.path)
    try:
        if path == now.path and last.version <= now.version:
            return _changed_in_files(now, file_changes(path, last.version, now.version))
        earlier = replace(now, path=path, version=last.version)
        return _difference(open_dataset(now), open_dataset(earlier))
    except (FileNotFoundError, PublishedVersionGone) as error:
        raise TokenUnusable(now.name, f"version {last.version} was deleted ({error})") from error


def _changed_in_files(now: PublishedTable, files: FileChanges) -> tuple[pa.Table, pa.Table]:
    if missing := next((file for file in files.removed if not (now.path / file).exists()), None):
        raise FileNotFoundError(now.path / missing)
    return _difference(_rows_of(now, files.added), _rows_of(now, files.removed))


def _rows_of(table: PublishedTable, files: Sequence[str]) -> Any:
    """Return the rows of some files with the table's columns; partition columns begin with `_` and are not read."""
    import pyarrow.dataset as pd

    schema = open_dataset(table).schema
    return pd.dataset(list(files), schema=schema, format="parquet", filesystem=arrow_files(table.path))


def _difference(now: Any, before: Any) -> tuple[pa.Table, pa.Table]:
    """Return the rows that only `now` has, and those that only `before` has; rows may repeat."""
    names = [sql_identifier(name) for name in now.schema.names if not name.startswith("_") or name in RECORD]
    columns = ", ".join(names)
    with memory_database() as database:
        database.register("now", now)
        database.register("before", before)
        only = "select {columns} from {left} except all select {columns} from {right}"
        sides = (("now", "before"), ("before", "now"))
        added, gone = (database.sql(only.format(columns=columns, left=a, right=b)).to_arrow_table() for a, b in sides)
    return added, gone


CHANGES = """
create or replace table changes as
select 1 as _sign, * from (from now except all from before)
union all
select -1 as _sign, * from (from before except all from now)
"""
COUNTS = "select count(*) filter (where _sign > 0), count(*) filter (where _sign < 0) from changes"


@dataclass(frozen=True)
class ResultChange:
    """What publications changed in a query's result: `batches` by dataset, numbers of `new` and `gone` rows.

    `rows`, at most the limit, begin with 1 (new) or -1 (gone); a row that changed is in it twice. `types` are the Arrow
    types of `columns`; `total` is the number of rows of the result.
    """

    batches: Mapping[str, int]
    columns: tuple[str, ...]
    types: tuple[Any, ...]
    rows: tuple[tuple[int, ...], ...]
    new: int
    gone: int
    total: int


def watched_changes(
    settings: Settings,
    sql: str,
    limit: int | None,
    stop: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ResultChange]:
    """Yield the result of a query as new rows, then what each publication changes in it, until `stop` returns true.

    Each change has at most `limit` rows; the results are in DuckDB, which spills beyond its memory limit. Raises
    QueryRefused, QueryFailed.
    """
    last = dict[str, tuple[str, int]]()
    with memory_database() as database:
        while not stop():
            reading = pinned(settings)
            versions = _versions(reading, sql)
            if versions == last:
                sleep(POLL_SECONDS)
                continue
            yield _changed_result(database, reading, sql, limit, is_first=not last)
            last = versions


def _versions(reading: PinnedTables, sql: str) -> dict[str, tuple[str, int]]:
    """Return release and version of each table that the query names, and of nothing, so that it runs at least once."""
    tables = {name: reading.tables[name] for name in tables_mentioned(sql, sorted(reading.tables))}
    return {name: (table.release, table.version) for name, table in tables.items()} | {"": ("", 0)}


def _changed_result(
    database: Any, reading: PinnedTables, sql: str, limit: int | None, *, is_first: bool
) -> ResultChange:
    connection, reader = open_query(reading, sql)
    database.register("result", reader)
    database.execute("create or replace table now as from result")
    connection.close()
    if is_first:
        database.execute("create table before as from now limit 0")
    database.execute(CHANGES)
    ((new, gone),) = database.execute(COUNTS).fetchall()
    ((total,),) = database.execute("select count(*) from now").fetchall()
    rows = database.sql("from changes order by all" + ("" if limit is None else f" limit {limit}")).fetchall()
    database.execute("drop table before; alter table now rename to before")
    names = tables_mentioned(sql, sorted(reading.tables))
    batches = {reading.tables[name].dataset: reading.tables[name].batch for name in names}
    columns = tuple(reader.schema.names), tuple(reader.schema.types)
    return ResultChange(batches, *columns, tuple(rows), new, gone, total)
