"""From a row of gold to the Kafka records from which it was computed: by its grain, in published silver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow.compute as pc

from include.audit.gold import DIALECT, EVALUATION_ERRORS, columns_of, grained_columns, grained_sql, recompute_sql
from include.declare.dataset import released_dataset
from include.declare.derived_dataset import as_query, released_derived
from include.declare.event_times import before, utc_text
from include.declare.gold import Gold
from include.declare.sql_checks import duckdb_translation
from include.declare.windows import MICROSECOND, Start, Window
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.ground.sql_quoting import duckdb_expression, sql_identifier
from include.read.memory_database import memory_database
from include.read.plain_values import text_value
from include.read.publication import PublishedTable, find_publication
from include.read.published_tables import PinnedTables, stored_refresh_state

GOLD_LAYER = "gold."


class OriginRefused(Terminal):
    """The keys do not name exactly one row of gold; `table` is its table."""

    def __init__(self, table: str, why: str, keys: Sequence[str], remedy: str = "") -> None:
        named = " ".join(f"--key {key}=…" for key in keys)
        super().__init__(f"{table}: {why}; nothing was read further", remedy or f"headrace explain {table} {named}")
        self.table = table


@dataclass(frozen=True)
class RecordRange:
    """Records of one partition and batch: some offsets in [first, last]; a row of gold was computed from them."""

    partition: int
    batch: int
    first: int
    last: int
    records: int


@dataclass(frozen=True)
class SourceRecord:
    """One record that a row of gold was computed from, with its payload in bronze."""

    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True)
class RowOrigin:
    """The rows of gold of one grain (by column), the topic, and the records of silver from which they were computed."""

    table: PublishedTable
    topic: str
    rows: tuple[Mapping[str, Any], ...]
    ranges: tuple[RecordRange, ...]
    records: tuple[SourceRecord, ...]


def row_origin(settings: Settings, reading: PinnedTables, table: str, keys: Mapping[str, str], limit: int) -> RowOrigin:
    """Return the origin of the rows of gold that `keys` (column → text) name, with up to `limit` records.

    Raises TableUnknown, OriginRefused.
    """
    published = reading.table(table)
    pipeline = released_dataset(settings, published.dataset, published.release).pipeline
    gold = next((gold for gold in pipeline.gold if gold.table == table), None)
    if gold is None:
        raise OriginRefused(table, "is not a table of gold or of children", ())
    refuse_other_keys(table, gold, keys)
    with memory_database() as database:
        database.register("published", reading.arrow(table))
        database.register("silver", _silver_of(reading, published))
        rows = rows_with_keys(database, gold, table, keys, published)
        conditions = _origin_conditions(gold, rows[0], columns_of(database, "silver"))
        _create_origin(database, gold, conditions)
        ranges = [RecordRange(*row) for row in database.execute(RANGES).fetchall()]
        records = list[SourceRecord]()
        if limit:
            database.register("bronze", reading.arrow(f"bronze.{published.dataset}"))
            records = [SourceRecord(*row) for row in database.execute(RECORDS, [limit]).fetchall()]
    return RowOrigin(published, pipeline.topic, tuple(rows), tuple(ranges), tuple(records))


def _silver_of(reading: PinnedTables, table: PublishedTable) -> Any:
    silver = f"silver.{table.dataset}"
    rows = reading.arrow(silver)
    return rows if reading.table(silver).batch == table.batch else rows.filter(pc.field("_batch_id") <= table.batch)


def refuse_other_keys(table: str, gold: Gold, keys: Mapping[str, str]) -> None:
    """Raise OriginRefused when the keys do not name a grain of a table."""
    names = gold.row_columns
    if unknown := [key for key in keys if key not in names]:
        raise OriginRefused(table, f"{unknown[0]} does not name its rows; {', '.join(names)} do", names)
    if missing := [name for name in gold.grain_columns if name not in keys]:
        raise OriginRefused(table, f"--key is missing for {', '.join(missing)}", names)


def rows_with_keys(
    database: Any, gold: Gold, table: str, keys: Mapping[str, str], published: PublishedTable
) -> list[dict[str, Any]]:
    """Return the published rows with these keys; a text is cast to the type of its column, empty is null."""
    types = dict(database.sql("select column_name, column_type from (describe published)").fetchall())
    same = " and ".join(f"{sql_identifier(key)} is not distinct from cast(? as {types[key]})" for key in keys)
    try:
        found = database.execute(f"select * from published where {same}", [value or None for value in keys.values()])
    except duckdb.ConversionException as error:
        raise OriginRefused(table, str(error).splitlines()[0], gold.row_columns) from error
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    if not rows:
        raise _no_row(gold, table, keys, published)
    if gold.session is not None and len(rows) > 1:
        raise OriginRefused(table, f"has {len(rows)} sessions with these keys", gold.row_columns)
    return rows


def _no_row(gold: Gold, table: str, keys: Mapping[str, str], published: PublishedTable) -> OriginRefused:
    """Return why there is no row with these keys: perhaps its window or session is open."""
    why = f"has no row with {', '.join(f'{k}={v}' for k, v in keys.items())}"
    remedy = f'headrace query "select {", ".join(gold.row_columns)} from {table} limit 20"'
    if not gold.closes:
        return OriginRefused(table, why, (), remedy)
    watermark, window = stored_refresh_state(published.path, published.version).watermark, gold.window
    reached = f"{utc_text(watermark)} UTC" if watermark else "nowhere yet"
    if window is None:
        why += f"; sessions appear when the watermark, at {reached}, has passed their end by the gap"
        return OriginRefused(table, why, (), f"headrace grains --dataset {published.dataset}")
    start = _start_of(window, keys[window.name])
    end = None if start is None else window.end(start)
    if end is None or (watermark is not None and end <= watermark):
        return OriginRefused(table, why, (), remedy)
    why += f"; its window is open: it closes when the watermark, at {reached}, reaches {utc_text(end)} UTC"
    return OriginRefused(table, why, (), f"headrace grains --dataset {published.dataset}")


def _start_of(window: Window, text: str) -> Start | None:
    """Return the start of a window that a key names; None when it is not a time."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=found.tzinfo or UTC) if window.size.domain == "time" else found.date()


def _origin_conditions(gold: Gold, row: Mapping[str, Any], silver: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """Return the SQL conditions, with their values, of the rows of silver from which a row of gold was computed."""
    window, session = gold.window, gold.session
    found = [(f"{sql_identifier(name)} is not distinct from ?", [row[name]]) for name in gold.grain_columns]
    if window is not None and row[window.name] is not None:
        # The files of other times are not read.
        span = [window.begin(row[window.name]), window.end(row[window.name])]
        found.append((f"{sql_identifier(window.column)} between ? and ?", span))
    if session is not None:
        span = [row[session.start], row[session.end]]
        found.append((f"{sql_identifier(session.column)} between ? and ?", span))
    if gold.recomputes:
        # A query sees all rows of its grain; those that touch it are the reason why it is there.
        found.append((f"({duckdb_expression(gold.row_condition, [*silver, *gold.grain_columns])})", []))
    return found


def _create_origin(database: Any, gold: Gold, conditions: Sequence[tuple[str, list[Any]]]) -> None:
    where = " and ".join(sql for sql, _ in conditions)
    # Several children may be of one record.
    once = "distinct " if gold.over else ""
    rows = f"select {once}_partition, _offset, _batch_id from grained where {where}"
    source = grained_sql(gold, columns_of(database, "silver"))
    database.execute(
        f"create temp table origin as {source} {rows}", [value for _, values in conditions for value in values]
    )


RANGES = """
select _partition, _batch_id, min(_offset), max(_offset), count(*)
from origin group by _partition, _batch_id order by _batch_id, _partition
"""
RECORDS = """
select o._partition, o._offset, b.value
from (from origin order by _batch_id, _partition, _offset limit ?) as o
join bronze as b on b.partition = o._partition and b."offset" = o._offset
order by o._batch_id, o._partition, o._offset
"""


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
    try:
        with memory_database() as database:
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
    name = table.name.removeprefix(GOLD_LAYER)
    publication = find_publication(settings, table.dataset)
    if publication is not None and publication.is_derived:
        derived = released_derived(settings, table.dataset, table.release).pipeline
        return next(gold.grain for gold in derived.gold if gold.name == name)
    pipeline = released_dataset(settings, table.dataset, table.release).pipeline
    return next(gold.row_columns for gold in pipeline.gold if gold.table == table.name)


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


@dataclass(frozen=True)
class OpenRows:
    """How many rows a table will get, and when the first of them: when the watermark reaches `closes`.

    `rows` is None where DuckDB cannot evaluate the declaration.
    """

    rows: int | None
    closes: datetime | None


def open_rows(reading: PinnedTables, dataset: str, gold: Gold, watermark: datetime | None) -> OpenRows:
    """Count, in published silver, the rows that a table with `on_close` gets after this watermark."""
    try:
        with memory_database() as database:
            database.execute(DIALECT)
            database.register("silver", _recent(reading, f"silver.{dataset}", gold, watermark))
            count, closes = database.sql(_open_sql(database, gold, watermark)).fetchall()[0]
    except EVALUATION_ERRORS:
        return OpenRows(None, None)
    return OpenRows(int(count), closes.astimezone(UTC) if closes else None)


def _recent(reading: PinnedTables, silver: str, gold: Gold, watermark: datetime | None) -> Any:
    """Return the rows of silver that open windows and sessions may have, so that older files are not opened.

    Of a session that began earlier its last row is among them, and so is its end.
    """
    rows, session, window = reading.arrow(silver), gold.session, gold.window
    if watermark is None:
        return rows
    if session is not None:
        return rows.filter(pc.field(session.column) >= pc.scalar(before(watermark, session.gap)))
    start = window.first_open(watermark) if window else None
    if window is None or start is None:
        return rows
    return rows.filter(pc.field(window.column) >= pc.scalar(window.begin(start)))


def _open_sql(database: Any, gold: Gold, watermark: datetime | None) -> str:
    silver, session, window = columns_of(database, "silver"), gold.session, gold.window
    if session is not None:
        gap = f"interval '{session.gap // MICROSECOND + 1} microseconds'"
        is_open = f"not ({session.closing(watermark).sql})"
        ends = f"min({sql_identifier(session.end)}::timestamptz + {gap})"
        return f"select count(*), {ends} from ({recompute_sql(gold, silver)}) where {is_open}"
    assert window is not None, f"{gold.table} has no time"
    grain = ", ".join(map(sql_identifier, gold.grain_columns))
    counts = duckdb_expression(gold.row_condition, grained_columns(gold, silver)) if gold.recomputes else "true"
    is_open = f"not ({window.closing(watermark).sql})"
    rows = f"{grained_sql(gold, silver)} select distinct {grain} from grained where {is_open} and ({counts})"
    return f"select count(*), min({window.end_sql(sql_identifier(window.name))}) from ({rows})"
