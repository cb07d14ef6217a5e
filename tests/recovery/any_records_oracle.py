"""What records with any time, key, header and value must give, computed from the list of what was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import duckdb
import polars as pl
from any_records import FIRST_MS, LAST_MS, AnyRecord
from readings import GOLD

from include.ground.record_coordinates import HEADER
from include.ground.settings import Settings
from include.read.published_tables import pinned

FUTURE_MS = timedelta(days=1) // timedelta(milliseconds=1)
Place = tuple[int, int]
"""Partition and offset."""


def assert_as_sent(settings: Settings, dataset: str, sent: Mapping[Place, AnyRecord]) -> None:
    """Assert that bronze, silver, rejected and gold are what the records, by partition and offset, must give."""
    tables = pinned(settings)
    found = {layer: rows_of(tables.read(f"{layer}.{dataset}")) for layer in ("bronze", "silver", "rejected")}
    bronze = {(row["partition"], row["offset"]): row for row in found["bronze"]}
    assert set(bronze) == set(sent)
    for place, row in bronze.items():
        assert content_of(row) == expected_content(sent[place]), place
    fates = expected_fates(sent, {place: row["_batch_id"] for place, row in bronze.items()})
    silver = {(row["_partition"], row["_offset"]): row for row in found["silver"]}
    rejected = {(row["_partition"], row["_offset"]): row for row in found["rejected"]}
    assert set(silver) == {place for place, fate in fates.items() if fate == "silver"}
    assert set(rejected) == set(fates) - set(silver)
    for place, row in rejected.items():
        assert_reason(row, fates[place], sent[place])
    for name, wanted in gold_of(pl.DataFrame(list(silver.values()))).items():
        rows = tables.read(f"gold.{dataset}_{name}").collect().select(wanted.columns).rows()
        assert sorted(map(str, rows)) == sorted(map(str, wanted.rows())), name


def assert_reason(row: Mapping[str, Any], fate: str, record: AnyRecord) -> None:
    rules = [(reason["rule"], reason["detail"]) for reason in row["reasons"]]
    if fate == "kafka_timestamp":
        assert rules == [(fate, f"{record.time}")]
    elif fate == "invalid":
        assert (row["disposition"], "kafka_timestamp" in dict(rules)) == ("invalid", False)
    else:
        assert [rule for rule, _ in rules] == [fate]


def expected_fates(sent: Mapping[Place, AnyRecord], batches: Mapping[Place, int]) -> dict[Place, str]:
    """Return silver or the reason, by the total order of the records; `invalid` if the value is no reading."""
    fates, accepted = dict[Place, str](), set[int]()
    for place in sorted(sent, key=lambda each: (batches[each], each)):
        fates[place] = expected_fate(sent[place], accepted)
    return fates


def expected_fate(record: AnyRecord, accepted: set[int]) -> str:
    if not FIRST_MS <= record.time <= LAST_MS:
        return "kafka_timestamp"
    if record.reading is None:
        return "invalid"
    if read_at_ms(record) - record.time > FUTURE_MS:
        return "future_ts"
    if record.reading in accepted:
        return "duplicate"
    accepted.add(record.reading)
    return "silver"


def read_at_ms(record: AnyRecord) -> int:
    assert record.value is not None
    return round(datetime.fromisoformat(json.loads(record.value)["read_at"]).timestamp() * 1000)


def expected_content(record: AnyRecord) -> tuple[Any, ...]:
    headers = [(name.decode(errors="replace"), value) for name, value in record.headers]
    return record.key, record.value, record.time, headers


def content_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key, value, time and headers that a row of bronze says that Kafka has."""
    headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
    time = row["timestamp"]
    if time % 1000:
        (name, number), headers = headers[-1], headers[:-1]
        assert name == HEADER
        return row["key"], row["value"], int(number), headers
    return row["key"], row["value"], time // 1000, headers


def rows_of(table: pl.LazyFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table; a Kafka time is the number of microseconds."""
    times = pl.selectors.by_name("timestamp", require_all=False).dt.timestamp("us")
    return table.collect().with_columns(times).iter_rows(named=True)


def gold_of(silver: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the gold tables that rows of silver must give."""
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("sent", silver.to_arrow())
        return {name: database.sql(query).pl() for name, query in GOLD.items()}
