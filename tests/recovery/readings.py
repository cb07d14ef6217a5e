"""Records that the recovery tests send, and the expected rows: plain Python and SQL, none of it the project's code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from include.ground.delta_log import open_delta

BEGUN = datetime(2024, 2, 27, tzinfo=UTC)
EVERY = timedelta(minutes=7)
GOLD = {
    "hours": """
        select date_trunc('hour', read_at) as hour, device, count(*) as readings,
               cast(sum(litres) as bigint) as litres, max(litres) as most
        from sent group by all""",
    "now": """
        select device, litres, read_at as since from sent
        qualify row_number() over (partition by device order by read_at desc) = 1""",
    "peaks": """
        select cast(date_trunc('day', read_at) as date) as day, device,
               cast(row_number() over (partition by cast(date_trunc('day', read_at) as date), device
                                       order by litres desc, event_id) as integer) as place,
               event_id, litres
        from sent where litres > 50 qualify place <= 3""",
}


@dataclass(frozen=True)
class Sent:
    """A record of the topic; `fate`: `silver`, `duplicate` or the rule that rejects it."""

    key: str
    value: str
    fate: str
    reading: dict[str, Any]


def readings(first: int, count: int) -> list[Sent]:
    """Return `count` readings from number `first` on; 1 in 40 twice, and an invalid record for every 50."""
    plain = [_reading(number) for number in range(first, first + count)]
    twice = [Sent(item.key, item.value, "duplicate", item.reading) for item in plain[7::40]]
    broken = [_broken(number) for number in range(first, first + count, 50)]
    return [*plain[: count // 2], *broken, *plain[count // 2 :], *twice]


def _reading(number: int) -> Sent:
    reading = {
        "event_id": f"r{number:07d}",
        "device": f"d{number % 7}",
        "read_at": BEGUN + EVERY * number,
        "litres": number * 37 % 101,
    }
    at = reading["read_at"]
    assert isinstance(at, datetime)
    value = json.dumps(reading | {"read_at": f"{at:%Y-%m-%dT%H:%M:%SZ}"})
    return Sent(str(reading["device"]), value, "silver", reading)


def _broken(number: int) -> Sent:
    value = f'{{"event_id": "x{number}", "device": "d1", "read_at": "2024-03-01T00:00:00Z", "litres": "many"}}'
    return Sent("d1", value, "type", {})


def wrong_rows(published: Mapping[str, Any], warehouse: Path, dataset: str, sent: Sequence[Sent]) -> str:
    """Return the first difference between the published tables and the expected rows of `sent`, "" for none."""
    tables = {name: _rows(warehouse / t["path"], t["version"]) for name, t in published["tables"].items()}
    silver = pl.DataFrame([item.reading for item in sent if item.fate == "silver"])
    wanted = {f"silver.{dataset}": silver}
    database = duckdb.connect()
    database.execute("set timezone = 'UTC'")
    database.register("sent", silver.to_arrow())
    wanted |= {f"gold.{dataset}_{name}": database.sql(query).pl() for name, query in GOLD.items()}
    found = (_difference(name, tables[name], rows) for name, rows in wanted.items())
    rejected = _difference_in_fates(tables[f"rejected.{dataset}"], sent)
    return next((text for text in (*found, rejected) if text), "")


def _rows(table: Path, version: int) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(open_delta(table, version).to_pyarrow_table()))


def _difference(name: str, found: pl.DataFrame, wanted: pl.DataFrame) -> str:
    there, here = _lines(found.select(wanted.columns)), _lines(wanted)
    lacking, surplus = here - there, there - here
    if not lacking and not surplus:
        return ""
    return f"{name}: {len(lacking)} rows are missing {list(lacking)[:2]}, {len(surplus)} too many {list(surplus)[:2]}"


def _lines(frame: pl.DataFrame) -> Counter[tuple[str, ...]]:
    """Return rows as texts: equal values of different widths are equal."""
    times = pl.selectors.datetime().dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f")
    return Counter(tuple(map(str, row)) for row in frame.with_columns(times).iter_rows())


def _difference_in_fates(rejected: pl.DataFrame, sent: Sequence[Sent]) -> str:
    wanted = Counter(item.fate for item in sent if item.fate != "silver")
    found = Counter(row["reasons"][0]["rule"] for row in rejected.iter_rows(named=True))
    return "" if found == wanted else f"rejected: {dict(found)}, and {dict(wanted)} were sent"
