"""Golden cases of gold: each kind of table after each batch, with files cut into pieces (adr-0007)."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from batch_snapshots import BatchSnapshots, TakeBatches
from small_events import EVENING, departed, flight_event
from small_release import Record

from spark_jobs.layers.gold_files import is_piece

MIDNIGHT = "2013-04-01T00:00:00Z"
LAST_MINUTE = "2013-03-31T23:59:59Z"
HISTORY = ["_first_batch", "_last_batch", "_revision"]


def worst(flight: int, delay: int, **fields: Any) -> Record:
    """Return a departure on July 4th, the day of the ranking cases."""
    return departed(flight, delay, scheduled="2013-07-04T12:00:00Z", carrier="B6", **fields)


def latest(kind: str, flight: int, at: str, **fields: Any) -> Record:
    """Return an event of a Delta flight, for the cases of `latest`."""
    return flight_event(kind, flight, at, scheduled="2013-09-09T09:00:00Z", carrier="DL", **fields)


BATCHES: list[list[Record]] = [
    [
        # An hour with two flights, one of them cancelled.
        flight_event("scheduled", 1),
        flight_event("scheduled", 2, tailnum=None),
        flight_event("cancelled", 2, tailnum=None),
        # Eleven delays on July 4th: one more than the ranking has.
        *[worst(number, 10 * number) for number in range(1, 12)],
        worst(1, 5, origin="JFK"),
        # The arrival comes before the events that precede it.
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
        # The worst delay at EWR, and an event at JFK that is no departure: the ranking at JFK stays.
        worst(21, 111, at="2013-07-06T00:00:00Z"),
        flight_event("scheduled", 1, scheduled="2013-07-04T12:00:00Z", carrier="B6", origin="JFK"),
    ],
]


@pytest.fixture(scope="module")
def snapshots(take_batches: TakeBatches) -> BatchSnapshots:
    taken = take_batches("flights", BATCHES, cut_gold=True)
    files = {t.table.spec.name: t.table.files() for t in taken.release.release.gold}
    assert all(is_piece(file) for found in files.values() for file in found)
    return taken


def carrier_hour(snapshots: BatchSnapshots, batch: int) -> dict[str, Any]:
    rows = (
        snapshots.after(batch, "gold.carrier_hours").filter(hour=at(EVENING[:13] + ":00:00Z"), carrier="UA").to_dicts()
    )
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
def test_additive_measures_accumulate_over_batches(snapshots: BatchSnapshots, batch: int) -> None:
    row = carrier_hour(snapshots, batch)
    names = ["scheduled", "departed", "cancelled", "delayed"]
    names += ["departure_delay_minutes", "worst_departure_delay", "tails"]
    assert tuple(row[name] for name in names) == CARRIER_HOUR[batch]


@pytest.mark.parametrize(("batch", "history"), [(0, (0, 0, 1)), (1, (0, 1, 2)), (2, (0, 2, 3))])
def test_additive_row_counts_its_revisions(snapshots: BatchSnapshots, batch: int, history: tuple[int, ...]) -> None:
    row = carrier_hour(snapshots, batch)
    assert tuple(row[name] for name in HISTORY) == history


def test_unchanged_row_keeps_its_revision(snapshots: BatchSnapshots) -> None:
    rows = snapshots.after(2, "gold.carrier_hours").filter(hour=at(MIDNIGHT)).select(HISTORY).rows()
    assert rows == [(1, 1, 1)]


def test_day_windows_end_at_midnight_utc(snapshots: BatchSnapshots) -> None:
    rows = (
        snapshots.after(1, "gold.carrier_hours").filter(carrier="UA").select("hour", "_month", "scheduled").sort("hour")
    )
    assert rows.rows() == [(at("2013-03-31T23:00:00Z"), "2013-03", 3), (at(MIDNIGHT), "2013-04", 1)]
    days = snapshots.after(1, "gold.route_days").filter(day=date(2013, 4, 1)).select("_month", "scheduled").rows()
    assert days == [("2013-04", 1)]


# batch → scheduled, departed, arrived, cancelled, air_minutes, arrival_delay_minutes, distance_miles
ROUTE_DAY = {
    0: (2, 0, 0, 1, None, None, None),
    1: (3, 1, 0, 1, None, None, 1400),
    2: (3, 3, 1, 1, None, -7, 4200),
}


@pytest.mark.parametrize("batch", ROUTE_DAY)
def test_sum_without_values_is_null(snapshots: BatchSnapshots, batch: int) -> None:
    rows = snapshots.after(batch, "gold.route_days").filter(day=date(2013, 3, 31), origin="EWR", dest="IAH")
    names = ["scheduled", "departed", "arrived", "cancelled"]
    names += ["air_minutes", "arrival_delay_minutes", "distance_miles"]
    assert rows.select(names).rows() == [ROUTE_DAY[batch]]


def test_additive_table_has_declared_columns_and_types(snapshots: BatchSnapshots) -> None:
    schema = snapshots.after(2, "gold.carrier_hours").schema
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
    assert str(snapshots.after(2, "gold.route_days").schema["day"]) == "Date"


# batch → flight → (status, since)
STATUS = {
    0: {1: ("arrived", "12:00"), 2: ("cancelled", "09:00"), 3: ("departed", "09:00"), 4: ("cancelled", "09:00")},
    1: {1: ("arrived", "12:00"), 2: ("cancelled", "09:00"), 3: ("arrived", "09:00"), 4: ("cancelled", "09:00")},
}


@pytest.mark.parametrize("batch", STATUS)
def test_latest_row_is_chosen_by_event_time_then_stage(snapshots: BatchSnapshots, batch: int) -> None:
    rows = snapshots.after(batch, "gold.flight_status").filter(carrier="DL").to_dicts()
    assert {row["flight"]: (row["status"], f"{row['since']:%H:%M}") for row in rows} == STATUS[batch]


def test_stages_order_the_events_of_a_second_as_a_flight_goes_on(snapshots: BatchSnapshots) -> None:
    found = dict(snapshots.release.silver().select("kind", "stage").unique().rows())
    assert sorted(found, key=lambda kind: found[kind]) == ["scheduled", "departed", "arrived", "cancelled"]
    assert len(set(found.values())) == len(found)


def test_latest_row_has_all_columns_of_newest_event(snapshots: BatchSnapshots) -> None:
    rows = {row["flight"]: row for row in snapshots.after(1, "gold.flight_status").filter(carrier="DL").to_dicts()}
    assert rows[3]["dest"] == "IAH"
    assert rows[1]["scheduled_departure"] == at("2013-09-09T09:00:00Z")


def test_latest_row_counts_its_revisions(snapshots: BatchSnapshots) -> None:
    rows = (
        snapshots.after(2, "gold.flight_status").filter(carrier="DL").sort("flight").select("flight", *HISTORY).rows()
    )
    assert rows == [(1, 0, 1, 2), (2, 0, 0, 1), (3, 0, 1, 2), (4, 0, 1, 2)]


# batch → flights at EWR on July 4th from rank 1 on; flights 20 and 11 tie, ordered by id.
RANKING = {
    0: [11, 10, 9, 8, 7, 6, 5, 4, 3, 2],
    1: [11, 20, 10, 9, 8, 7, 6, 5, 4, 3],
    2: [21, 11, 20, 10, 9, 8, 7, 6, 5, 4],
}


@pytest.mark.parametrize("batch", RANKING)
def test_late_record_changes_ranking(snapshots: BatchSnapshots, batch: int) -> None:
    rows = (
        snapshots.after(batch, "gold.worst_delays").filter(day=date(2013, 7, 4), origin="EWR").sort("rank").to_dicts()
    )
    assert [row["rank"] for row in rows] == list(range(1, 11))
    assert [int(row["flight_id"].split("/")[1][2:]) for row in rows] == RANKING[batch]


def test_query_rows_share_the_revision_of_their_grain(snapshots: BatchSnapshots) -> None:
    rows = snapshots.after(2, "gold.worst_delays").filter(day=date(2013, 7, 4))
    assert rows.filter(origin="EWR").select(HISTORY).unique().rows() == [(0, 2, 3)]
    assert rows.filter(origin="JFK").select(HISTORY).unique().rows() == [(0, 0, 1)]


def test_query_keeps_grains_of_other_days(snapshots: BatchSnapshots) -> None:
    rows = (
        snapshots.after(2, "gold.worst_delays").filter(day=date(2013, 7, 5)).select("rank", "departure_delay", *HISTORY)
    )
    assert rows.rows() == [(1, 500, 1, 1, 1)]
