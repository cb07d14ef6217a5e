"""What a table with `on_close` does not have yet: rows of windows and sessions that the watermark has not passed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from include.audit.gold_findings import DIALECT, EVALUATION_ERRORS, columns_of
from include.audit.gold_recomputation import grained_columns, grained_sql, recompute_sql
from include.declare.event_times import before
from include.declare.gold_refresh import closing, first_open
from include.declare.pipeline import Gold, QueryGold, gold_session, gold_window, grain_columns
from include.declare.window_sql import end_sql
from include.declare.windows import MICROSECOND, window_begin
from include.ground.sql_quoting import duckdb_expression, sql_identifier
from include.read.memory_database import memory_database
from include.read.published_tables import PinnedTables


@dataclass(frozen=True)
class OpenRows:
    """How many rows a table will get, and when the first of them: when the watermark reaches `closes`.

    `rows` is None where DuckDB cannot evaluate the declaration.
    """

    rows: int | None
    closes: datetime | None


def open_rows(reading: PinnedTables, dataset: str, gold: Gold, watermark: datetime | None) -> OpenRows:
    """Count, in published silver, the rows that a table with `on_close` gets after this watermark."""
    database = memory_database()
    try:
        database.execute(DIALECT)
        database.register("silver", _recent(reading, f"silver.{dataset}", gold, watermark))
        count, closes = database.sql(_open_sql(database, gold, watermark)).fetchall()[0]
    except EVALUATION_ERRORS:
        return OpenRows(None, None)
    finally:
        database.close()
    return OpenRows(int(count), closes.astimezone(UTC) if closes else None)


def _recent(reading: PinnedTables, silver: str, gold: Gold, watermark: datetime | None) -> Any:
    """Return the rows of silver that open windows and sessions may have, so that older files are not opened.

    Of a session that began earlier its last row is among them, and so is its end.
    """
    rows, session, window = reading.arrow(silver), gold_session(gold), gold_window(gold)
    if watermark is None:
        return rows
    if session is not None:
        return rows.filter(pc.field(session.column) >= pc.scalar(before(watermark, session.gap)))
    start = first_open(window, watermark) if window else None
    if window is None or start is None:
        return rows
    return rows.filter(pc.field(window.column) >= pc.scalar(window_begin(window, start)))


def _open_sql(database: Any, gold: Gold, watermark: datetime | None) -> str:
    silver, session, window = columns_of(database, "silver"), gold_session(gold), gold_window(gold)
    if session is not None:
        gap = f"interval '{session.gap // MICROSECOND + 1} microseconds'"
        is_open = f"not ({closing(session, watermark).sql})"
        ends = f"min({sql_identifier(session.end)}::timestamptz + {gap})"
        return f"select count(*), {ends} from ({recompute_sql(gold, silver)}) where {is_open}"
    assert window is not None, f"gold.{gold.name} has no time"
    grain = ", ".join(map(sql_identifier, grain_columns(gold)))
    counts = (
        duckdb_expression(gold.touched_by, grained_columns(gold, silver)) if isinstance(gold, QueryGold) else "true"
    )
    is_open = f"not ({closing(window, watermark).sql})"
    rows = f"{grained_sql(gold, silver)} select distinct {grain} from grained where {is_open} and ({counts})"
    return f"select count(*), min({end_sql(window, sql_identifier(window.name))}) from ({rows})"
