"""The flights of 2013 as events: counts, order, identity and times against the source."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import orjson
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.producers.feed import REPETITION, InvalidEventRange, events
from include.producers.flights import FLIGHTS, arrival, flight_events, flights, read_table

SHARED = ["event_id", "kind", "flight_id", "occurred_at", "scheduled_departure"]
SHARED += ["carrier", "flight", "origin", "dest", "tailnum", "distance"]
OWN = {
    "scheduled": [],
    "departed": ["departure_delay"],
    "arrived": ["arrival_delay", "air_time"],
    "cancelled": [],
}


@lru_cache(maxsize=1)
def frame() -> pl.DataFrame:
    return flight_events()


@lru_cache(maxsize=1)
def parsed() -> pl.DataFrame:
    strings = dict.fromkeys(SHARED, pl.String)
    numbers = dict.fromkeys(("flight", "distance", "departure_delay", "arrival_delay", "air_time"), pl.Int64)
    table = pl.read_ndjson(io.BytesIO(b"\n".join(frame()["value"])), schema=strings | numbers)
    times = [pl.col(name).str.to_datetime(time_zone="UTC") for name in ("occurred_at", "scheduled_departure")]
    return table.with_columns(times)


def test_event_counts_of_the_year_match_the_source() -> None:
    counts = dict(parsed()["kind"].value_counts().rows())
    assert counts == {"scheduled": 336_776, "departed": 328_521, "arrived": 328_063, "cancelled": 8_255}
    assert frame().height == 1_001_615
    scheduled = parsed().filter(pl.col("kind") == "scheduled")
    assert scheduled["tailnum"].null_count() == 2_512


def test_events_are_in_order_of_occurrence_then_id() -> None:
    keys = frame().select("occurred_at", "event_id")
    assert keys.equals(keys.sort("occurred_at", "event_id"))


def test_ids_and_keys_agree_with_the_values_and_are_unique() -> None:
    table = parsed()
    assert frame()["event_id"].n_unique() == frame().height
    assert table.filter(pl.col("kind") == "scheduled")["flight_id"].n_unique() == 336_776
    assert table["event_id"].equals(frame()["event_id"])
    assert (table["event_id"] == table["flight_id"] + "/" + table["kind"]).all()
    assert frame()["key"].cast(pl.String).equals(table["flight_id"].alias("key"))
    assert table["occurred_at"].dt.cast_time_unit("us").equals(frame()["occurred_at"])
    assert (table["flight_id"].str.head(17) == table["scheduled_departure"].dt.strftime("%Y-%m-%dT%H:%MZ")).all()


def test_values_are_compact_objects_with_the_fields_of_their_kind_in_order() -> None:
    for value in frame()["value"][::50]:
        event = orjson.loads(value)
        assert list(event) == SHARED + OWN[event["kind"]]
        assert orjson.dumps(event) == value


def test_missing_measurements_stay_null_and_the_others_are_those_of_the_source() -> None:
    arrived = parsed().filter(pl.col("kind") == "arrived")
    assert arrived["arrival_delay"].null_count() == arrived["air_time"].null_count() == 717
    source = flights()
    for field, column in (("departure_delay", "dep_delay"), ("arrival_delay", "arr_delay"), ("air_time", "air_time")):
        assert parsed()[field].sum() == source[column].sum()
        assert parsed()[field].count() == source[column].count()


def test_kinds_of_a_flight_follow_each_other() -> None:
    wide = parsed().pivot("kind", index=["flight_id", "scheduled_departure"], values="occurred_at")
    assert (wide["scheduled"] == wide["scheduled_departure"] - timedelta(hours=24)).all()
    assert (wide["arrived"] > wide["departed"]).all()
    assert (wide["cancelled"] == wide["scheduled_departure"]).all()
    assert wide["cancelled"].count() + wide["departed"].count() == wide.height


def test_arrival_follows_departure_by_at_least_the_air_time() -> None:
    flown = flights().filter(pl.col("arrived").is_not_null())
    took = (flown["arrived"] - flown["departed"]).dt.total_minutes()
    ground = took - flown["air_time"]
    assert ground.min() == 5
    assert ground.max() == 235
    assert took.max() == 1_225


def test_departure_shows_the_departure_time_on_new_yorks_clocks() -> None:
    left = flights().filter(pl.col("dep_time").is_not_null())
    local = left["departed"].dt.convert_time_zone("America/New_York")
    assert (local.dt.hour().cast(pl.Int32) * 100 + local.dt.minute() == left["dep_time"] % 2400).all()


def first_moment(departed: datetime, arr_time: int, zone: ZoneInfo) -> datetime:
    """Walk the clock minute by minute: slow, and nothing to get wrong."""
    moment = departed
    for _ in range(25 * 60):
        moment += timedelta(minutes=1)
        local = moment.astimezone(zone)
        if local.hour * 100 + local.minute == arr_time % 2400:
            return moment
    raise AssertionError((departed, arr_time, zone))


def test_arrival_is_the_first_moment_when_the_destinations_clocks_show_it() -> None:
    zones = dict(read_table("airports", {"faa": pl.String, "tzone": pl.String}).rows())
    zones |= dict.fromkeys(("BQN", "PSE", "SJU"), "America/Puerto_Rico") | {"STT": "America/St_Thomas"}
    flown = flights().filter(pl.col("arrived").is_not_null()).select("departed", "arr_time", "dest", "arrived")
    spring, autumn = datetime(2013, 3, 10, tzinfo=UTC), datetime(2013, 11, 3, tzinfo=UTC)
    near = [pl.col("departed").is_between(day, day + timedelta(hours=9)) for day in (spring, autumn)]
    sample = pl.concat([flown.sample(400, seed=3), flown.filter(near[0]), flown.filter(near[1])])
    sample = sample.filter(pl.col("arrived") != datetime(2013, 3, 10, 7, 3, tzinfo=UTC))
    for departed, arr_time, dest, arrived in sample.rows():
        assert arrived == first_moment(departed, arr_time, ZoneInfo(zones[dest])), (departed, dest)


@settings(max_examples=60, deadline=None)
@given(
    minutes=st.integers(0, 66 * 24 * 60),
    clock=st.integers(0, 24 * 60),
    zone=st.sampled_from(["America/New_York", "America/Phoenix", "Pacific/Honolulu"]),
)
def test_any_arrival_time_is_the_first_moment_after_departure(minutes: int, clock: int, zone: str) -> None:
    left = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    row = pl.DataFrame({"departed": [left], "arr_time": [clock // 60 * 100 + clock % 60]})
    found = row.select(at=arrival(pl.col("departed"), pl.col("arr_time"), zone))["at"][0]
    assert found == first_moment(left, row["arr_time"][0], ZoneInfo(zone))


def test_skipped_spring_time_uses_the_offset_before() -> None:
    skipped = flights().filter(pl.col("departed") == datetime(2013, 3, 10, 4, 6, tzinfo=UTC), pl.col("dest") == "PBI")
    assert skipped["arr_time"].to_list() == [203]
    assert skipped["arrived"].to_list() == [datetime(2013, 3, 10, 7, 3, tzinfo=UTC)]


def test_from_and_to_are_half_open() -> None:
    since, until = datetime(2013, 3, 1, tzinfo=UTC), datetime(2013, 3, 2, tzinfo=UTC)
    happened = frame()["occurred_at"]
    assert (happened == since).any()
    assert (happened == until).any()
    derived = replace(FLIGHTS, frame=lambda _: frame())
    found = events(derived, since, until)
    assert found["occurred_at"].min() == since
    assert found.height == ((happened >= since) & (happened < until)).sum()
    before, after = events(derived, until=since), events(derived, since=until)
    assert before.height + found.height + after.height == frame().height


def test_empty_range_is_refused() -> None:
    day = datetime(2013, 3, 1, tzinfo=UTC)
    with pytest.raises(InvalidEventRange):
        events(FLIGHTS, day, day)
    with pytest.raises(InvalidEventRange):
        events(FLIGHTS, repeat=0)


def test_repetitions_follow_each_other_with_unique_ids() -> None:
    again = flight_events(REPETITION)
    assert again["occurred_at"].min() > frame()["occurred_at"].max()
    assert again.join(frame(), on="event_id", how="semi").is_empty()
    moved = orjson.loads(again["value"][0])
    first = orjson.loads(frame()["value"][0])
    for field in ("occurred_at", "scheduled_departure"):
        assert datetime.fromisoformat(moved[field]) - datetime.fromisoformat(first[field]) == REPETITION
    assert moved["flight_id"] == "2014-01-07T10:15Z/UA1545/EWR"
