"""Injected faults: a pure function of events, shares and seed that keeps every valid event."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
import orjson
import polars as pl
import pytest
from error_codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from include.ground.errors import Refused
from include.producers.command import FEEDS
from include.producers.faults import (
    RARE_KIND,
    RARE_ROUNDS,
    REORDER_PLACES,
    Shares,
    bad_records,
    field_text,
    inject_faults,
    with_field,
)
from include.producers.feed import events
from include.producers.flights import FLIGHTS
from include.producers.weather import WEATHER

DEMO = Shares(duplicates=0.005, late=0.01, reorder=0.02, corrupt=0.002)
REASONS = {
    "null_value", "empty", "not_object", "trailing_data", "malformed", "duplicate_key", "out_of_range", "type",
    "no_zone", "bad_ts", "future_ts", "bad_utf8", "control_char", "depth", "size", "missing_id", "wire_format",
    "required", "enum", "range",
}  # fmt: skip
EXAMPLE = (
    b'{"event_id":"2013-01-01T10:15Z/UA1545/EWR/departed","kind":"departed",'
    b'"flight_id":"2013-01-01T10:15Z/UA1545/EWR","occurred_at":"2013-01-01T10:17:00Z",'
    b'"scheduled_departure":"2013-01-01T10:15:00Z","carrier":"UA","flight":1545,"origin":"EWR","dest":"IAH",'
    b'"tailnum":null,"distance":1400,"departure_delay":2}'
)


@lru_cache(maxsize=1)
def weather() -> pl.DataFrame:
    return events(WEATHER)


def valid_events(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("reason").is_null())


def share() -> st.SearchStrategy[float]:
    return st.floats(0, 1, allow_nan=False).map(lambda x: x**3)


@settings(max_examples=25, deadline=None)
@given(
    shares=st.builds(Shares, share(), share(), share(), share()), seed=st.integers(0, 2**32), count=st.integers(0, 400)
)
def test_every_event_is_kept_once_and_fault_counts_match_the_shares(shares: Shares, seed: int, count: int) -> None:
    truth = weather().head(count)
    rows = inject_faults(truth, WEATHER, shares, seed)
    assert rows.equals(inject_faults(truth, WEATHER, shares, seed))
    texts = dict.fromkeys(("event_id", "fault", "kind", "reason"), pl.String)
    assert rows.schema == pl.Schema({"key": pl.Binary, "value": pl.Binary, **texts})
    kept = ("key", "value", "event_id")
    assert valid_events(rows).select(kept).sort("event_id").equals(truth.select(kept).sort("event_id"))
    counts = dict(rows["fault"].value_counts().rows())
    assert counts.get("duplicate", 0) + counts.get("conflict", 0) == round(count * shares.duplicates)
    assert counts.get("corrupt", 0) == round(count * shares.corrupt)
    assert counts.get("late", 0) == round(count * shares.late)
    assert counts.get("reorder", 0) <= round(count * shares.reorder)
    assert_copies_follow_their_originals(rows)


def assert_copies_follow_their_originals(rows: pl.DataFrame) -> None:
    rows = rows.with_row_index("place")
    copies = rows.filter(pl.col("reason") == "duplicate")
    both = copies.join(valid_events(rows), on="event_id", suffix="_first")
    assert both.height == copies.height
    assert (both["place"] > both["place_first"]).all()
    assert both["key"].equals(both["key_first"].alias("key"))
    same = both["value"] == both["value_first"]
    assert (same == (both["fault"] == "duplicate")).all()


def test_zero_shares_change_nothing() -> None:
    rows = inject_faults(weather(), WEATHER, Shares(), 1)
    assert rows.select("key", "value", "event_id").equals(weather().select("key", "value", "event_id"))
    assert rows["fault"].null_count() == rows.height


def test_seeds_change_faults_and_shares_are_independent() -> None:
    one, two = (inject_faults(weather(), WEATHER, DEMO, seed) for seed in (1, 2))
    assert not one.equals(two)
    fewer = inject_faults(weather(), WEATHER, Shares(late=DEMO.late, corrupt=DEMO.corrupt), 1)
    for fault in ("late", "corrupt"):
        ids = [set(rows.filter(pl.col("fault") == fault)["event_id"]) for rows in (one, fewer)]
        assert ids[0] == ids[1]


def test_late_events_come_up_to_48_hours_after_their_time() -> None:
    rows = inject_faults(weather(), WEATHER, Shares(late=0.05), 3).join(weather(), on="event_id", maintain_order="left")
    behind = rows["occurred_at"].cum_max() - rows["occurred_at"]
    late = rows["fault"].eq_missing("late")
    assert behind.filter(~late).max() == timedelta(0)
    assert behind.filter(late).max() <= timedelta(hours=48)
    assert behind.filter(late).median() > timedelta(hours=12)
    assert (behind.filter(late) > timedelta(0)).mean() > 0.98


def test_reordered_events_move_within_the_window() -> None:
    rows = inject_faults(weather(), WEATHER, Shares(reorder=0.05), 3)
    place = rows.with_row_index("to").join(weather().with_row_index("at"), on="event_id", maintain_order="left")
    moved = (place["to"].cast(pl.Int64) - place["at"].cast(pl.Int64)).abs()
    reordered = place["fault"].eq_missing("reorder")
    assert moved.filter(reordered).max() <= 2 * REORDER_PLACES
    assert (moved.filter(reordered) > 0).mean() > 0.9


def test_duplicates_are_immediate_near_or_far_and_some_conflict() -> None:
    rows = inject_faults(weather(), WEATHER, Shares(duplicates=0.1), 3)
    kinds = dict(rows["kind"].drop_nulls().value_counts().rows())
    assert set(kinds) == {"immediate", "near", "far", "other_payload"}
    assert kinds["other_payload"] == pytest.approx(261, abs=1)
    for value, event_id in rows.filter(pl.col("fault") == "conflict").select("value", "event_id").rows():
        event = orjson.loads(value)
        assert event["event_id"] == event_id
        assert datetime.fromisoformat(event["observed_at"]).second == 1
    at_once = rows["kind"].eq_missing("immediate")
    assert (rows["event_id"] == rows["event_id"].shift(1)).filter(at_once).mean() > 0.9


def test_every_kind_of_bad_record_occurs_and_the_large_one_is_rare() -> None:
    for feed in FEEDS.values():
        sample = (
            feed.frame(timedelta(0))
            if feed is WEATHER
            else pl.DataFrame({"value": [EXAMPLE] * 2000}).with_columns(
                key=pl.lit(b"k"), occurred_at=pl.lit(datetime(2013, 1, 1, tzinfo=UTC)), event_id=pl.lit("e")
            )
        )
        rows = inject_faults(sample.head(2000), feed, Shares(corrupt=0.2), 5).filter(pl.col("fault") == "corrupt")
        counts = dict(rows["kind"].value_counts().rows())
        assert set(counts) == {bad.kind for bad in bad_records(feed)}
        assert counts.pop(RARE_KIND) == RARE_ROUNDS
        assert max(counts.values()) - min(counts.values()) <= 1
        large = rows["value"].bin.size()
        assert (large > 1_048_576).sum() == RARE_ROUNDS
        assert large.max() < 1_200_000


def test_kinds_of_bad_record_cover_every_reason() -> None:
    for feed in FEEDS.values():
        kinds = bad_records(feed)
        assert len({bad.kind for bad in kinds}) == len(kinds) >= 30
        assert {bad.reason for bad in kinds} >= REASONS
    assert "pattern" in {bad.reason for bad in bad_records(FLIGHTS)}


def test_bad_record_violates_its_reason() -> None:
    made = {bad.kind: bad.make(EXAMPLE.decode()) for bad in bad_records(FLIGHTS)}
    assert EXAMPLE not in made.values()
    assert made["tombstone"] is None
    assert made["empty_value"] == b""
    parses = {}
    for bad in bad_records(FLIGHTS):
        try:
            parses[bad.kind] = orjson.loads(made[bad.kind] or b"")
        except orjson.JSONDecodeError:
            parses[bad.kind] = None
    broken = {
        bad.kind
        for bad in bad_records(FLIGHTS)
        if bad.reason in ("malformed", "trailing_data", "bad_utf8", "wire_format", "empty")
    }
    assert {kind for kind, event in parses.items() if event is None} == broken | {
        "tombstone", "json_null",
    }  # fmt: skip
    assert parses["in_array"] == [orjson.loads(EXAMPLE)]
    assert "event_id" not in parses["absent_id"]
    assert len(parses["absent_id"]) == len(orjson.loads(EXAMPLE)) - 1
    assert "occurred_at" not in parses["absent_time"]
    assert parses["null_id"]["event_id"] is None
    assert parses["time_without_zone"]["occurred_at"] == "2013-01-01T10:17:00"
    assert parses["date_only"]["occurred_at"] == "2013-01-01"
    assert parses["nul_in_id"]["event_id"].startswith("\x00")
    assert made["repeated_key"].count(b'"event_id"') == 2
    for wrong in FLIGHTS.wrong_values:
        assert f'"{wrong.field}":{wrong.literal}'.encode() in made[wrong.kind]


def test_with_field_replaces_or_adds_a_field() -> None:
    text = '{"a":"x,y","b":null,"c":-3}'
    assert with_field(text, "a", "7") == '{"a":7,"b":null,"c":-3}'
    assert with_field(text, "b", '"z"') == '{"a":"x,y","b":"z","c":-3}'
    assert with_field(text, "c", "4") == '{"a":"x,y","b":null,"c":4}'
    assert with_field(text, "d", "true") == '{"a":"x,y","b":null,"c":-3,"d":true}'
    assert [field_text(text, name) for name in "abcd"] == ['"x,y"', "null", "-3", ""]


@pytest.mark.parametrize("wrong", [-0.01, 1.01, float("nan"), float("inf")])
def test_share_outside_0_and_1_is_refused(wrong: float) -> None:
    with raises(Refused, "invalid-share") as refused:
        Shares(late=wrong)
    assert refused.value.facts["fault"] == "late"
    assert np.isnan(wrong) or refused.value.facts["share"] == wrong
