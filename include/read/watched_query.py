"""A query that runs again with each publication of what it reads, and the rows that changed in its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from include.ground.settings import Settings
from include.read.memory_database import memory_database
from include.read.published_sql import open_query, tables_mentioned
from include.read.published_tables import PinnedTables, pinned

POLL_SECONDS = 0.5
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
    database, last = memory_database(), dict[str, tuple[str, int]]()
    try:
        while not stop():
            reading = pinned(settings)
            versions = _versions(reading, sql)
            if versions == last:
                sleep(POLL_SECONDS)
                continue
            yield _changed(database, reading, sql, limit, is_first=not last)
            last = versions
    finally:
        database.close()


def _versions(reading: PinnedTables, sql: str) -> dict[str, tuple[str, int]]:
    """Return release and version of each table that the query names, and of nothing, so that it runs at least once."""
    tables = {name: reading.tables[name] for name in tables_mentioned(sql, sorted(reading.tables))}
    return {name: (table.release, table.version) for name, table in tables.items()} | {"": ("", 0)}


def _changed(database: Any, reading: PinnedTables, sql: str, limit: int | None, *, is_first: bool) -> ResultChange:
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
