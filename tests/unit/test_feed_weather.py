"""The weather of 2013 as events."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import polars as pl
import pytest
from error_codes import raises
from workloads.feeds import GENERATED

from include.ground.errors import Refused
from include.producers.command import FEEDS, find_feed
from include.producers.feed import InvalidEventRange, events
from include.producers.weather import MEASUREMENTS, WEATHER, observations, weather_events

FIELDS = ["event_id", "station", "observed_at", *MEASUREMENTS]


def test_every_observation_is_one_event_in_order() -> None:
    frame = weather_events()
    assert frame.height == 26_115
    assert frame["event_id"].n_unique() == frame.height
    assert frame.select("occurred_at", "key").equals(frame.select("occurred_at", "key").sort("occurred_at", "key"))
    assert frame["key"].cast(pl.String).value_counts().sort("key").rows() == [
        ("EWR", 8703),
        ("JFK", 8706),
        ("LGA", 8706),
    ]


def test_values_are_compact_and_numbers_have_two_decimals_at_most() -> None:
    import json

    nulls = dict.fromkeys(MEASUREMENTS, 0)
    for value, event_id in weather_events().select("value", "event_id").rows():
        event = json.loads(value, parse_float=Decimal, parse_int=Decimal)
        assert list(event) == FIELDS
        assert event["event_id"] == event_id == f"{event['station']}/{event['observed_at']}"
        assert b" " not in value
        for name in MEASUREMENTS:
            nulls[name] += event[name] is None
            assert event[name] is None or -2 <= event[name].as_tuple().exponent <= 0
    assert nulls == {name: observations()[name].null_count() for name in MEASUREMENTS}
    assert nulls["wind_gust"] == 20_778


def test_repeated_autumn_hour_is_two_hours_in_utc() -> None:
    night = events(WEATHER, datetime(2013, 11, 3, 5, tzinfo=UTC), datetime(2013, 11, 3, 7, tzinfo=UTC))
    assert sorted(night["event_id"])[:2] == ["EWR/2013-11-03T05:00:00Z", "EWR/2013-11-03T06:00:00Z"]
    assert night.height == 6


def test_repetitions_have_unique_ids_and_times() -> None:
    twice = events(WEATHER, repeat=2)
    assert twice["event_id"].n_unique() == twice.height == 2 * 26_115
    assert twice["occurred_at"].is_sorted()


def test_unknown_feed_is_refused_with_the_known_ones() -> None:
    for name, feed in FEEDS.items():
        assert feed.name == feed.topic == name
    assert weather_events().columns == ["key", "value", "occurred_at", "event_id"]
    with raises(Refused, "unknown-feed") as refused:
        find_feed("trains")
    assert refused.value.facts["known"] == (*FEEDS, *GENERATED)


def test_repeat_below_1_is_refused() -> None:
    with pytest.raises(InvalidEventRange):
        events(WEATHER, repeat=-1)
