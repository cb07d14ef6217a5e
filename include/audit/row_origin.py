"""From a row of gold to the Kafka records from which it was computed: by its grain, in published silver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow.compute as pc

from include.audit.gold_findings import columns_of
from include.audit.gold_recomputation import grained_sql
from include.declare.dataset import released_dataset
from include.declare.event_times import utc_text
from include.declare.pipeline import Gold, QueryGold, closes, gold_session, gold_window, grain_columns, row_columns
from include.declare.windows import Start, Window, window_begin, window_end
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.ground.sql_quoting import duckdb_expression, sql_identifier
from include.read.memory_database import memory_database
from include.read.publication import PublishedTable
from include.read.published_tables import PinnedTables
from include.read.refresh_state import stored_refresh_state

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
    if not table.startswith(GOLD_LAYER):
        raise OriginRefused(table, "is not a table of gold", ())
    pipeline = released_dataset(settings, published.dataset, published.release).pipeline
    gold = next(gold for gold in pipeline.gold if gold.name == table.removeprefix(GOLD_LAYER))
    refuse_other_keys(table, gold, keys)
    database = memory_database()
    try:
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
    finally:
        database.close()
    return RowOrigin(published, pipeline.topic, tuple(rows), tuple(ranges), tuple(records))


def _silver_of(reading: PinnedTables, table: PublishedTable) -> Any:
    """Return silver up to the batch that a table of gold has."""
    silver = f"silver.{table.dataset}"
    rows = reading.arrow(silver)
    return rows if reading.table(silver).batch == table.batch else rows.filter(pc.field("_batch_id") <= table.batch)


def refuse_other_keys(table: str, gold: Gold, keys: Mapping[str, str]) -> None:
    """Raise OriginRefused when the keys do not name a grain of a table."""
    names = row_columns(gold)
    if unknown := [key for key in keys if key not in names]:
        raise OriginRefused(table, f"{unknown[0]} does not name its rows; {', '.join(names)} do", names)
    if missing := [name for name in grain_columns(gold) if name not in keys]:
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
        raise OriginRefused(table, str(error).splitlines()[0], row_columns(gold)) from error
    names = [column[0] for column in found.description]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    if not rows:
        raise _no_row(gold, table, keys, published)
    if gold_session(gold) is not None and len(rows) > 1:
        raise OriginRefused(table, f"has {len(rows)} sessions with these keys", row_columns(gold))
    return rows


def _no_row(gold: Gold, table: str, keys: Mapping[str, str], published: PublishedTable) -> OriginRefused:
    """Return why there is no row with these keys: perhaps its window or session is open."""
    why = f"has no row with {', '.join(f'{k}={v}' for k, v in keys.items())}"
    remedy = f'headrace query "select {", ".join(row_columns(gold))} from {table} limit 20"'
    if not closes(gold):
        return OriginRefused(table, why, (), remedy)
    watermark, window = stored_refresh_state(published.path, published.version).watermark, gold_window(gold)
    reached = f"{utc_text(watermark)} UTC" if watermark else "nowhere yet"
    if window is None:
        why += f"; sessions appear when the watermark, at {reached}, has passed their end by the gap"
        return OriginRefused(table, why, (), f"headrace grains --dataset {published.dataset}")
    start = _start_of(window, keys[window.name])
    end = None if start is None else window_end(window, start)
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
    window, session = gold_window(gold), gold_session(gold)
    found = [(f"{sql_identifier(name)} is not distinct from ?", [row[name]]) for name in grain_columns(gold)]
    if window is not None and row[window.name] is not None:
        # The files of other times are not read.
        span = [window_begin(window, row[window.name]), window_end(window, row[window.name])]
        found.append((f"{sql_identifier(window.column)} between ? and ?", span))
    if session is not None:
        span = [row[session.start], row[session.end]]
        found.append((f"{sql_identifier(session.column)} between ? and ?", span))
    if isinstance(gold, QueryGold):
        # A query sees all rows of its grain; those that touch it are the reason why it is there.
        found.append((f"({duckdb_expression(gold.touched_by, [*silver, *grain_columns(gold)])})", []))
    return found


def _create_origin(database: Any, gold: Gold, conditions: Sequence[tuple[str, list[Any]]]) -> None:
    """Create the table `origin`: coordinates and batch of the rows of silver with these conditions."""
    where = " and ".join(sql for sql, _ in conditions)
    rows = f"select _partition, _offset, _batch_id from grained where {where}"
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
