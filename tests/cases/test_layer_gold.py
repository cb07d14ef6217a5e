"""Golden cases of gold: how each kind of table grows from batch to batch, to what one batch would have given."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from small_events import EVENING, departed, flight_event
from small_release import Record
from stories import Story, Tell

MIDNIGHT = "2013-04-01T00:00:00Z"
LAST_MINUTE = "2013-03-31T23:59:59Z"
HISTORY = ["_first_batch", "_last_batch", "_revision"]


def worst(flight: int, delay: int, **fields: Any) -> Record:
    """A departure of the day that only the ranking looks at."""
    return departed(flight, delay, scheduled="2013-07-04T12:00:00Z", carrier="B6", **fields)


def latest(kind: str, flight: int, at: str, **fields: Any) -> Record:
    """An event of a flight of whose life only the order is of interest."""
    return flight_event(kind, flight, at, scheduled="2013-09-09T09:00:00Z", carrier="DL", **fields)


STORY: list[list[Record]] = [
    [
        # An hour with two flights, one of them never to leave.
        flight_event("scheduled", 1),
        flight_event("scheduled", 2, tailnum=None),
        flight_event("cancelled", 2, tailnum=None),
        # 110 of July 4th, and ten more: one too many.
        *[worst(number, 10 * number) for number in range(1, 12)],
        worst(1, 5, origin="JFK"),
        # The arrival is told before all else.
        latest("arrived", 1, "2013-09-09T12:00:00Z", arrival_delay=3, air_time=100),
        latest("scheduled", 2, "2013-09-09T09:00:00Z"),
        latest("cancelled", 2, "2013-09-09T09:00:00Z"),
        latest("departed", 3, "2013-09-09T09:00:00Z", departure_delay=0, dest="ORD"),
        latest("cancelled", 4, "2013-09-09T09:00:00Z"),
    ],
    [
        departed(1, 15),
        flight_event("scheduled", 9, LAST_MINUTE, scheduled=LAST_MINUTE),
        flight_event("scheduled", 9, MIDNIGHT, scheduled=MIDNIGHT),
        worst(20, 110),
        worst(10, 500, scheduled_departure="2013-07-05T00:00:00Z", event_id="another day"),
        latest("departed", 1, "2013-09-09T09:30:00Z", departure_delay=30),
        latest("arrived", 3, "2013-09-09T09:00:00Z", arrival_delay=0, air_time=None),
        latest("scheduled", 4, "2013-09-09T09:00:00Z"),
    ],
    [
        departed(3, 16, tailnum="N1"),
        departed(4, -5, tailnum=None),
        flight_event("arrived", 3, "2013-04-01T03:00:00Z", arrival_delay=-7, air_time=None, tailnum="N1"),
        # Worse than all, and not a departure: neither touches the ranking at JFK.
        worst(21, 111, at="2013-07-06T00:00:00Z"),
        flight_event("scheduled", 1, scheduled="2013-07-04T12:00:00Z", carrier="B6", origin="JFK"),
    ],
]


@pytest.fixture(scope="module")
def story(tell: Tell) -> Story:
    return tell("flights", STORY)


def carrier_hour(story: Story, batch: int) -> dict[str, Any]:
    rows = story.after(batch, "gold.carrier_hours").filter(hour=at(EVENING[:13] + ":00:00Z"), carrier="UA").to_dicts()
    assert len(rows) == 1
    return rows[0]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


# batch → scheduled, departed, cancelled, delayed, departure_delay_minutes, worst_departure_delay, tails
CARRIER_HOUR = {
    0: (2, 0, 1, 0, None, None, 1),
    1: (3, 1, 1, 0, 15, 15, 2),
    2: (3, 3, 1, 1, 26, 16, 2),
}


@pytest.mark.parametrize("batch", CARRIER_HOUR)
def test_additive_measures_add_up(story: Story, batch: int) -> None:
    row = carrier_hour(story, batch)
    names = ["scheduled", "departed", "cancelled", "delayed"]
    names += ["departure_delay_minutes", "worst_departure_delay", "tails"]
    assert tuple(row[name] for name in names) == CARRIER_HOUR[batch]


@pytest.mark.parametrize(("batch", "history"), [(0, (0, 0, 1)), (1, (0, 1, 2)), (2, (0, 2, 3))])
def test_history_of_an_additive_row(story: Story, batch: int, history: tuple[int, ...]) -> None:
    row = carrier_hour(story, batch)
    assert tuple(row[name] for name in HISTORY) == history


def test_a_row_keeps_its_history_while_others_change(story: Story) -> None:
    rows = story.after(2, "gold.carrier_hours").filter(hour=at(MIDNIGHT)).select(HISTORY).rows()
    assert rows == [(1, 1, 1)]


def test_windows_end_at_midnight_utc(story: Story) -> None:
    rows = story.after(1, "gold.carrier_hours").filter(carrier="UA").select("hour", "_month", "scheduled").sort("hour")
    assert rows.rows() == [(at("2013-03-31T23:00:00Z"), "2013-03", 3), (at(MIDNIGHT), "2013-04", 1)]
    days = story.after(1, "gold.route_days").filter(day=date(2013, 4, 1)).select("_month", "scheduled").rows()
    assert days == [("2013-04", 1)]


# batch → scheduled, departed, arrived, cancelled, air_minutes, arrival_delay_minutes, distance_miles
ROUTE_DAY = {
    0: (2, 0, 0, 1, None, None, None),
    1: (3, 1, 0, 1, None, None, 1400),
    2: (3, 3, 1, 1, None, -7, 4200),
}


@pytest.mark.parametrize("batch", ROUTE_DAY)
def test_a_sum_of_nothing_is_null(story: Story, batch: int) -> None:
    rows = story.after(batch, "gold.route_days").filter(day=date(2013, 3, 31), origin="EWR", dest="IAH")
    names = ["scheduled", "departed", "arrived", "cancelled"]
    names += ["air_minutes", "arrival_delay_minutes", "distance_miles"]
    assert rows.select(names).rows() == [ROUTE_DAY[batch]]


def test_columns_and_types_of_additive(story: Story) -> None:
    schema = story.after(2, "gold.carrier_hours").schema
    declared = {name: str(kind) for name, kind in schema.items() if not name.startswith("_")}
    assert declared == {
        "hour": "Datetime(time_unit='us', time_zone='UTC')",
        "carrier": "String",
        "origin": "String",
        "scheduled": "Int64",
        "departed": "Int64",
        "cancelled": "Int64",
        "delayed": "Int64",
        "departure_delay_minutes": "Int64",
        "worst_departure_delay": "Int32",
        "tails": "Int64",
    }
    assert str(story.after(2, "gold.route_days").schema["day"]) == "Date"


# batch → flight → (status, since)
STATUS = {
    0: {1: ("arrived", "12:00"), 2: ("cancelled", "09:00"), 3: ("departed", "09:00"), 4: ("cancelled", "09:00")},
    1: {1: ("arrived", "12:00"), 2: ("cancelled", "09:00"), 3: ("arrived", "09:00"), 4: ("cancelled", "09:00")},
}


@pytest.mark.parametrize("batch", STATUS)
def test_latest_is_by_time_then_by_stage_and_never_by_arrival(story: Story, batch: int) -> None:
    rows = story.after(batch, "gold.flight_status").filter(carrier="DL").to_dicts()
    assert {row["flight"]: (row["status"], f"{row['since']:%H:%M}") for row in rows} == STATUS[batch]


def test_latest_takes_the_whole_row_of_the_newest(story: Story) -> None:
    rows = {row["flight"]: row for row in story.after(1, "gold.flight_status").filter(carrier="DL").to_dicts()}
    assert rows[3]["dest"] == "IAH"
    assert rows[1]["scheduled_departure"] == at("2013-09-09T09:00:00Z")


def test_history_of_a_latest_row(story: Story) -> None:
    rows = story.after(2, "gold.flight_status").filter(carrier="DL").sort("flight").select("flight", *HISTORY).rows()
    assert rows == [(1, 0, 1, 2), (2, 0, 0, 1), (3, 0, 1, 2), (4, 0, 1, 2)]


# batch → flights at EWR on July 4th from rank 1 on; flight 20 ties with 11, whose id comes first.
RANKING = {
    0: [11, 10, 9, 8, 7, 6, 5, 4, 3, 2],
    1: [11, 20, 10, 9, 8, 7, 6, 5, 4, 3],
    2: [21, 11, 20, 10, 9, 8, 7, 6, 5, 4],
}


@pytest.mark.parametrize("batch", RANKING)
def test_a_late_worse_delay_moves_the_others_down(story: Story, batch: int) -> None:
    rows = story.after(batch, "gold.worst_delays").filter(day=date(2013, 7, 4), origin="EWR").sort("rank").to_dicts()
    assert [row["rank"] for row in rows] == list(range(1, 11))
    assert [int(row["flight_id"].split("/")[1][2:]) for row in rows] == RANKING[batch]


def test_history_of_a_query_is_of_its_grain(story: Story) -> None:
    rows = story.after(2, "gold.worst_delays").filter(day=date(2013, 7, 4))
    assert rows.filter(origin="EWR").select(HISTORY).unique().rows() == [(0, 2, 3)]
    assert rows.filter(origin="JFK").select(HISTORY).unique().rows() == [(0, 0, 1)]


def test_a_query_leaves_other_days_alone(story: Story) -> None:
    rows = story.after(2, "gold.worst_delays").filter(day=date(2013, 7, 5)).select("rank", "departure_delay", *HISTORY)
    assert rows.rows() == [(1, 500, 1, 1, 1)]
