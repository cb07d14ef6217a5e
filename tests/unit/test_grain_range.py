"""Which grains of a derived table a range of event time means."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from include.declare.derived_dataset import DerivedGold
from include.declare.grain_range import GrainRange, grain_range, timed_query
from include.declare.measures import rounded_sql
from include.read.memory_database import memory_database

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("hour", TIME), ("day", pa.date32()), ("local", pa.timestamp("us")), ("origin", pa.string())])
SINCE, UNTIL = datetime(2013, 3, 2, 6, tzinfo=UTC), datetime(2013, 3, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("grain", "expected"),
    [
        (("origin", "hour"), GrainRange("hour", SINCE, UNTIL)),
        (("day", "hour"), GrainRange("hour", SINCE, UNTIL)),
        (("origin", "day"), GrainRange("day", date(2013, 3, 2), date(2013, 3, 4))),
        (("origin",), None),
        (("local", "origin"), None),
    ],
    ids=["its time", "time before day", "days of which a part lies in it", "no time", "a time without a zone"],
)
def test_range_is_of_the_first_time_or_else_day_of_the_grain(
    grain: tuple[str, ...], expected: GrainRange | None
) -> None:
    assert grain_range(grain, SCHEMA, SINCE, UNTIL) == expected


def test_day_is_that_of_utc() -> None:
    paris = timezone(timedelta(hours=1))
    found = grain_range(("day",), SCHEMA, datetime(2013, 3, 2, 1, tzinfo=paris), datetime(2013, 3, 3, tzinfo=paris))
    assert found == GrainRange("day", date(2013, 3, 2), date(2013, 3, 3))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [("0.1 + 0.2", "0.3", True), ("-0.0", "0.0", True), ("1.0000001", "1.0", False), ("1e300", "1.1e300", False)],
)
def test_doubles_are_compared_by_their_first_nine_digits(one: str, other: str, equal: bool) -> None:
    sql = f"select {rounded_sql('a')} = {rounded_sql('b')} from (select {one}::double as a, {other}::double as b)"
    assert memory_database().execute(sql).fetchone() == (equal,)


@pytest.mark.parametrize(
    ("grain", "touched_by", "expected"),
    [
        (("origin", "hour"), {"hour": "date_trunc('hour', sent_at)"}, ("hour", "time", 3_600_000_000)),
        (("hour",), {"hour": "sent_at"}, ("hour", "time", 1)),
        (("origin", "day"), {"day": "cast(sent_at as date)"}, ("day", "day", 1)),
        (("day",), {"day": "day"}, ("day", "day", 1)),
        (("day",), {"day": "cast(date_trunc('week', sent_at) as date)"}, ("day", "day", 8)),
        (("origin",), {"origin": "origin"}, None),
    ],
    ids=["an hour", "a moment", "a day", "a day of gold", "a week at most", "no time"],
)
def test_grain_lasts_as_long_as_its_rows_are_truncated_to(
    grain: tuple[str, ...], touched_by: dict[str, str], expected: tuple[str, str, int] | None
) -> None:
    found = timed_query(DerivedGold("sales", "select 1", grain, {"flights": touched_by, "weather": {}}), SCHEMA)
    window = found.window
    assert (window and (window.name, window.size.domain, window.size.length)) == expected
    assert found.keys == tuple(name for name in grain if expected is None or name != expected[0])
