"""Arithmetic on event times at the ends of the calendar."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest

from include.change.plan_parameters import format_range
from include.declare.dataset import declared_dataset
from include.declare.event_times import FIRST, LAST, after, before, utc_text, watermarks
from include.declare.windows import Window, parsed_size
from include.ground.settings import Settings
from include.serve.charts import moment
from include.serve.work import complete_days
from spark_jobs.backends.local.identities import _may_share
from spark_jobs.tables.data_files import DataFile, _stats

EARLY, LATE = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)
WEEK = timedelta(days=7)


def test_arithmetic_stops_at_the_ends_of_the_calendar() -> None:
    assert (before(EARLY, WEEK), after(LATE, WEEK)) == (FIRST, LAST)
    assert (before(LATE, WEEK), after(EARLY, WEEK)) == (LATE - WEEK, EARLY + WEEK)


def test_watermark_of_year_one_is_the_earliest_time() -> None:
    (reached,) = watermarks([(0, json.dumps({"0": EARLY.isoformat()}))], WEEK)
    assert reached.after == FIRST
    assert list(complete_days(None, FIRST)) == []


def test_complete_days_begin_in_year_one() -> None:
    assert list(complete_days(None, datetime(1, 1, 3, 5, tzinfo=UTC))) == [date(1, 1, 1), date(1, 1, 2)]


@pytest.mark.parametrize("unit", ["hour", "day", "month"])
@pytest.mark.parametrize("moment", [EARLY, LATE])
def test_windows_at_the_ends_of_the_calendar_have_an_end(unit: str, moment: datetime) -> None:
    window = Window("at", parsed_size(f"1 {unit}"), "window")
    (start,) = window.starts(moment)
    assert moment < window.end(start) <= LAST


@pytest.mark.parametrize("moment", [EARLY, LATE])
def test_files_with_the_same_identity_are_found_at_the_ends_of_the_calendar(
    moment: datetime, settings: Settings
) -> None:
    bounds = {"occurred_at": moment, "event_id": "a"}
    file = DataFile("a.parquet", "0001-01", 1, 1, bounds, bounds)
    assert _may_share(file, bounds, bounds, declared_dataset(settings, "flights").pipeline)


@pytest.mark.parametrize(("at", "text"), [(FIRST, "0001-01-01 00:00:00"), (LAST, "9999-12-31 23:59:59")])
def test_years_have_four_digits_in_texts(at: datetime, text: str) -> None:
    assert utc_text(at) == text
    assert moment(at) == text
    assert format_range(at, at) == f"from {text[:-3]} to before {text[:-3]} UTC"


def test_years_have_four_digits_in_the_bounds_of_files() -> None:
    assert _stats({"at": FIRST}, timedelta()) == {"at": "0001-01-01T00:00:00.000Z"}
    late = datetime(999, 1, 2, 3, 4, 5, 678_001, tzinfo=UTC)
    assert _stats({"at": late}, timedelta(microseconds=999)) == {"at": "0999-01-02T03:04:05.679Z"}
