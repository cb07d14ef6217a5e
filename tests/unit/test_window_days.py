"""A day to backfill, or to report as complete, is one by the calendars of the windows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from include.declare.time_zones import installed_zone
from include.declare.windows import Window, day_range, parsed_size
from include.serve.work import complete_days


def local_day(zone: str, hours: int = 0, size: str = "1 day") -> Window:
    return Window("at", parsed_size(size), "day", offset=timedelta(hours=hours), time_zone=installed_zone(zone))


NEW_YORK, TOKYO = local_day("America/New_York"), local_day("Asia/Tokyo")


@pytest.mark.parametrize(
    ("windows", "since", "until"),
    [
        ([], "2013-03-10T00:00", "2013-03-11T00:00"),
        ([local_day("UTC", size="1 hour")], "2013-03-10T00:00", "2013-03-11T00:00"),
        # Clocks go forward on this day.
        ([NEW_YORK], "2013-03-10T05:00", "2013-03-11T04:00"),
        ([local_day("America/New_York", 4)], "2013-03-10T08:00", "2013-03-11T08:00"),
        ([local_day("America/New_York", size="1 month"), TOKYO], "2013-03-09T15:00", "2013-03-11T04:00"),
        ([local_day("UTC"), local_day("UTC", 30, "1 week")], "2013-03-10T00:00", "2013-03-11T06:00"),
    ],
)
def test_a_day_to_backfill_is_one_by_the_calendars_of_the_windows(
    windows: list[Window], since: str, until: str
) -> None:
    found = day_range(windows, date(2013, 3, 10))
    assert found == (datetime.fromisoformat(f"{since}+00:00"), datetime.fromisoformat(f"{until}+00:00"))


def test_a_day_is_complete_when_it_is_over_in_every_zone() -> None:
    before, after = (datetime(2013, 3, 11, hour, tzinfo=UTC) for hour in (3, 4))
    saturday, sunday = date(2013, 3, 9), date(2013, 3, 10)
    assert list(complete_days(saturday, before, [NEW_YORK, TOKYO])) == []
    assert list(complete_days(saturday, after, [NEW_YORK, TOKYO])) == [sunday]
    # Silver has days of UTC.
    assert list(complete_days(saturday, datetime(2013, 3, 10, 23, tzinfo=UTC), [TOKYO])) == []
