"""From a row of a derived table to the rows of its sources and their records, found by grain through `touched_by`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from include.audit.gold_findings import columns_of
from include.audit.row_origin import (
    GOLD_LAYER,
    OriginRefused,
    RecordRange,
    RowOrigin,
    refuse_other_keys,
    row_origin,
    rows_with_keys,
)
from include.declare.dataset import released_dataset
from include.declare.derived_dataset import as_query, released_derived
from include.declare.pipeline import row_columns
from include.declare.sql_checks import duckdb_translation
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from include.read.memory_database import memory_database
from include.read.plain_values import text_value
from include.read.publication import PublishedTable, find_publication
from include.read.published_tables import PinnedTables

SHOWN_ROWS = 10
TOUCHING_RANGES = """
select _partition, _batch_id, min(_offset), max(_offset), count(*)
from touching group by _partition, _batch_id order by _batch_id, _partition
"""


@dataclass(frozen=True)
class SourceOrigin:
    """The rows of a source that touch a grain: their number, for silver their records, for gold the first SHOWN_ROWS.

    `below`: the origin of each of these rows of gold, down to the records of a topic.
    """

    table: str
    count: int
    ranges: tuple[RecordRange, ...]
    rows: tuple[Mapping[str, Any], ...]
    below: tuple[RowOrigin | DerivedOrigin, ...] = ()


@dataclass(frozen=True)
class DerivedOrigin:
    """The rows of one grain of a derived table, and their origins by source."""

    table: PublishedTable
    rows: tuple[Mapping[str, Any], ...]
    sources: tuple[SourceOrigin, ...]


def origin_of(
    settings: Settings, reading: PinnedTables, table: str, keys: Mapping[str, str], limit: int = 0
) -> RowOrigin | DerivedOrigin:
    """Return the origin of the rows of gold that `keys` name, derived or not. Raises TableUnknown, OriginRefused."""
    publication = find_publication(settings, reading.table(table).dataset)
    if publication is not None and publication.is_derived:
        return derived_origin(settings, reading, table, keys)
    return row_origin(settings, reading, table, keys, limit)


def derived_origin(settings: Settings, reading: PinnedTables, table: str, keys: Mapping[str, str]) -> DerivedOrigin:
    """Return the origin of the rows of a derived table that `keys` (column → text) name. Raises OriginRefused."""
    published = reading.table(table)
    pipeline = released_derived(settings, published.dataset, published.release).pipeline
    gold = next(gold for gold in pipeline.gold if gold.name == table.removeprefix(GOLD_LAYER))
    refuse_other_keys(table, as_query(gold), keys)
    database = memory_database()
    try:
        database.register("published", reading.arrow(table))
        rows = rows_with_keys(database, as_query(gold), table, keys, published)
        grain = {column: rows[0][column] for column in gold.grain}
        sources = [
            _source_origin(database, reading, source, gold.touched_by[name], grain)
            for name, source in pipeline.sources.items()
        ]
    except duckdb.Error as error:
        why = f"DuckDB cannot evaluate touched_by ({str(error).splitlines()[0]})"
        raise OriginRefused(table, why, gold.grain) from error
    finally:
        database.close()
    return DerivedOrigin(published, tuple(rows), tuple(_with_below(settings, reading, source) for source in sources))


def _with_below(settings: Settings, reading: PinnedTables, source: SourceOrigin) -> SourceOrigin:
    """Return a source with the origins of its rows; without them where keys do not identify a row."""
    if not source.rows:
        return source
    columns = _key_columns(settings, reading.table(source.table))
    keys = {
        tuple(text_value(row[column]) if row[column] is not None else "" for column in columns) for row in source.rows
    }
    below = list[RowOrigin | DerivedOrigin]()
    for each in sorted(keys):
        with suppress(OriginRefused):
            below.append(origin_of(settings, reading, source.table, dict(zip(columns, each, strict=True))))
    return replace(source, below=tuple(below))


def _key_columns(settings: Settings, table: PublishedTable) -> tuple[str, ...]:
    """Return the columns that name a row of a published gold table."""
    name = table.name.removeprefix(GOLD_LAYER)
    publication = find_publication(settings, table.dataset)
    if publication is not None and publication.is_derived:
        derived = released_derived(settings, table.dataset, table.release).pipeline
        return next(gold.grain for gold in derived.gold if gold.name == name)
    pipeline = released_dataset(settings, table.dataset, table.release).pipeline
    return next(row_columns(gold) for gold in pipeline.gold if gold.name == name)


def _source_origin(
    database: Any, reading: PinnedTables, table: str, touched_by: Mapping[str, str], grain: Mapping[str, Any]
) -> SourceOrigin:
    database.register("source", reading.arrow(table))
    columns = columns_of(database, "source")
    named = {column: duckdb_translation(text) for column, text in touched_by.items()}
    texts = ", ".join(f"({sql}) as {sql_identifier(column)}" for column, sql in named.items())
    kinds = dict(database.sql(f"select column_name, column_type from (describe select {texts} from source)").fetchall())
    conditions = " and ".join(_touches(sql, kinds[column]) for column, sql in named.items())
    query = f"create or replace temp table touching as select * from source where {conditions}"
    database.execute(query, [grain[column] for column in named])
    count = int(database.execute("select count(*) from touching").fetchall()[0][0])
    if not table.startswith(GOLD_LAYER):
        ranges = tuple(RecordRange(*row) for row in database.execute(TOUCHING_RANGES).fetchall())
        return SourceOrigin(table, count, ranges, ())
    shown = ", ".join(sql_identifier(name) for name in columns if not name.startswith("_"))
    found = database.execute(f"select {shown} from touching order by all limit {SHOWN_ROWS}")
    names = [column[0] for column in found.description]
    return SourceOrigin(table, count, (), tuple(dict(zip(names, row, strict=True)) for row in found.fetchall()))


def _touches(sql: str, kind: str) -> str:
    return f"list_contains(({sql}), ?)" if kind.endswith("[]") else f"({sql}) is not distinct from ?"
