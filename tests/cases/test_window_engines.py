"""Spark, DuckDB and Python give the same windows for every kind of declaration, also where clocks change."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.declare.time_zones import installed_zone
from include.declare.windows import EPOCH, MICROSECOND, Start, Window, parsed_size, windowed_sql
from spark_jobs.layers.gold_windows import windowed


def declared(size: str, slide: str = "", offset: timedelta = timedelta(0), time_zone: str = "UTC") -> Window:
    slides = parsed_size(slide) if slide else None
    return Window("at", parsed_size(size), "started", slides, offset, installed_zone(time_zone))


HOURS_4, DAYS_14 = timedelta(hours=4), timedelta(days=14)
WINDOWS = [
    declared("10 seconds"),
    declared("10 seconds", "2 seconds"),
    declared("15 minutes", offset=timedelta(minutes=5)),
    declared("1 hour"),
    declared("6 hours", "90 minutes", timedelta(minutes=30)),
    declared("1 day"),
    declared("1 day", offset=HOURS_4, time_zone="America/New_York"),
    declared("1 day", time_zone="America/Sao_Paulo"),
    declared("2 days", time_zone="Pacific/Apia"),
    declared("1 week", time_zone="Europe/Berlin"),
    declared("1 week", "1 day", time_zone="Asia/Kolkata"),
    declared("1 month"),
    declared("1 month", offset=DAYS_14, time_zone="Australia/Lord_Howe"),
    declared("3 months", "1 month"),
    declared("1 year", offset=DAYS_14 + HOURS_4),
]
EDGES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2012, 2, 29, 23, 30, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
]
# Around changes of clocks, the midnight that Sao Paulo skipped, and the day that Apia skipped.
CHANGES = ["2013-03-10T07:00", "2013-11-03T06:00", "2013-10-20T03:00", "2013-02-17T02:00", "2011-12-30T10:00"]


def moments() -> list[datetime]:
    numbers = random.Random(7)
    around = [datetime.fromisoformat(f"{text}:00+00:00") for text in CHANGES]
    near = [at + timedelta(minutes=numbers.randrange(-2000, 2000)) for at in around for _ in range(8)]
    spread = [
        datetime(1971, 1, 1, tzinfo=UTC) + timedelta(microseconds=numbers.randrange(2 * 10**15)) for _ in range(40)
    ]
    return [*EDGES, *around, *near, *spread]


Found = dict[tuple[int, datetime], list[Start]]


def starts_by_spark(spark: SparkSession, times: list[datetime]) -> Found:
    frame = spark.createDataFrame([(n, at) for n, at in enumerate(times)], "n int, at timestamp").coalesce(1)
    parts = [
        windowed(window, frame).select(F.lit(number), "n", F.col("started").cast("timestamp").cast("string"))
        for number, window in enumerate(WINDOWS)
    ]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionAll(part)
    found: Found = {}
    for number, n, start in rows.collect():
        found.setdefault((number, times[n]), []).append(_start(WINDOWS[number], str(start)))
    return found


def _start(window: Window, text: str) -> Start:
    start = datetime.fromisoformat(text)
    return start.replace(tzinfo=UTC) if window.size.domain == "time" else start.date()


@pytest.fixture(scope="module")
def python() -> Found:
    found = {(n, at): window.starts(at) for n, window in enumerate(WINDOWS) for at in moments()}
    return {key: starts for key, starts in found.items() if starts}


def ordered(found: Found) -> Found:
    return {key: sorted(starts) for key, starts in found.items()}


def test_windows_of_the_test_are_declarable() -> None:
    assert [list(window.findings([])) for window in WINDOWS] == [[] for _ in WINDOWS]


def test_spark_and_python_give_the_same_windows(spark: SparkSession, python: Found) -> None:
    assert ordered(starts_by_spark(spark, moments())) == python


def test_duckdb_and_python_give_the_same_windows(python: Found) -> None:
    database = duckdb.connect()
    database.execute("set TimeZone = 'UTC'")
    database.register("silver", pa.table({"at": pa.array(moments(), pa.timestamp("us", tz="UTC"))}))
    for number, window in enumerate(WINDOWS):
        begin, end = (f"epoch_us({each('started')})" for each in (window.begin_sql, window.end_sql))
        sql = f'select "at", started, {begin}, {end} from ({windowed_sql(window, "silver")})'
        found: Found = {}
        for at, start, first, last in database.execute(sql).fetchall():
            found.setdefault((number, at.astimezone(UTC)), []).append(start)
            bounds = window.begin(start), window.end(start)
            assert [first, last] == [(bound - EPOCH) // MICROSECOND for bound in bounds], (window, start)
        assert ordered(found) == {key: starts for key, starts in python.items() if key[0] == number}, window


@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_condition_of_some_windows_holds_for_each_row_of_them(number: int, python: Found) -> None:
    window, database = WINDOWS[number], duckdb.connect()
    database.execute("set TimeZone = 'UTC'")
    rows = {at: starts for (declared, at), starts in python.items() if declared == number}
    database.register("silver", pa.table({"at": pa.array(list(rows), pa.timestamp("us", tz="UTC"))}))
    starts = sorted({start for each in rows.values() for start in each})
    excluded = 0
    for first, last in zip(starts, starts[len(starts) // 8 :], strict=False):
        condition = window.between_sql(first, last)
        meeting = database.execute(f'select "at" from silver where {condition}').fetchall()
        found = {at.astimezone(UTC) for (at,) in meeting}
        inside = {at for at, each in rows.items() if any(first <= start <= last for start in each)}
        assert inside <= found, (first, last)
        excluded += len(rows) - len(found)
    assert excluded > 0


@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_moments_lie_between_begin_and_end_of_their_windows(number: int, python: Found) -> None:
    window = WINDOWS[number]
    for (_, at), starts in ((key, starts) for key, starts in python.items() if key[0] == number):
        for start in starts:
            assert at <= window.end(start), (at, start)
            assert window.begin(start) <= at, (at, start)
        if 1 < at.year < 9999:
            assert len(starts) == window.count


def test_days_of_a_zone_have_the_hours_of_its_clocks() -> None:
    day = declared("1 day", time_zone="America/New_York")
    lengths = {on: day.end(on) - day.begin(on) for on in (date(2013, 3, 10), date(2013, 11, 3))}
    assert lengths == {date(2013, 3, 10): timedelta(hours=23), date(2013, 11, 3): timedelta(hours=25)}
    assert day.begin(date(2013, 7, 1)) == datetime(2013, 7, 1, 4, tzinfo=UTC)


def test_week_begins_on_monday_and_a_fiscal_month_on_its_day() -> None:
    at = datetime(2013, 5, 9, 12, tzinfo=UTC)
    assert declared("1 week").starts(at) == [date(2013, 5, 6)]
    assert declared("1 month", offset=DAYS_14).starts(at) == [date(2013, 4, 15)]
    assert declared("1 month", offset=DAYS_14).end(date(2013, 4, 15)) == datetime(2013, 5, 15, tzinfo=UTC)
