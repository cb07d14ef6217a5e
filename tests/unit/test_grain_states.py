"""States of grains: the watermark from the event times of the runs, and the state of each window."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.change.grains import as_refreshed, derived_watermarks, rows_with_states, windows_of
from include.declare.event_times import Watermark, watermarks
from include.declare.gold import AdditiveGold
from include.declare.time_zones import installed_zone
from include.declare.windows import Session, Window, parsed_size
from include.observe.ledger_reader import Verification

HOURS = AdditiveGold("sales_hours", "", Window("sold_at", parsed_size("1 hour"), "hour"), ("shop",), ())


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, 1, hour, minute, tzinfo=UTC)


def event_times(**hours: int) -> str:
    return json.dumps({name.removeprefix("p"): at(hour).isoformat() for name, hour in hours.items()})


def test_watermark_is_the_slowest_partition_minus_the_lateness() -> None:
    runs = [(0, event_times(p0=10)), (2, event_times(p1=6)), (3, event_times(p1=12)), (4, "{}")]
    found = list(watermarks(runs, timedelta(hours=1)))
    # A partition without records cannot hold the watermark back, and once it is there it cannot move it back.
    assert [b.after for b in found] == [at(9), at(9), at(9), at(9)]
    assert [b.before for b in found] == [None, at(9), at(9), at(9)]
    assert list(watermarks([(0, event_times(p0=10, p1=6)), (1, event_times(p1=12))], timedelta(hours=1)))[
        -1
    ].after == at(9)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 23)), max_size=20))
def test_watermark_never_moves_back(events: list[tuple[str, int]]) -> None:
    runs = [(n, json.dumps({part: at(hour).isoformat()})) for n, (part, hour) in enumerate(events)]
    reached = [b.after for b in watermarks(runs, timedelta(hours=2)) if b.after is not None]
    assert reached == sorted(reached)


def row(hour: int, batch: int, shop: str = "north") -> dict[str, object]:
    return {"hour": at(hour), "shop": shop, "_last_batch": batch}


@pytest.mark.parametrize(
    ("rows", "verified", "states"),
    [
        # Ends at the watermark: closed; a minute after it would be open.
        ([row(8, 0)], [], [(8, "closed", 1)]),
        ([row(9, 0)], [], [(9, "open", 1)]),
        # Batch 2 came when the watermark was at five already.
        ([row(4, 2), row(5, 2), row(4, 0, "south")], [], [(4, "closed", 1), (4, "corrected", 1), (5, "closed", 1)]),
        ([row(4, 2)], [Verification("p", at(4), at(5), 2)], [(4, "verified", 1)]),
        # Verified before its last change, or only half of it: not verified.
        ([row(4, 2)], [Verification("p", at(4), at(5), 1)], [(4, "corrected", 1)]),
        ([row(4, 2)], [Verification("p", at(4, 30), at(5), 2)], [(4, "corrected", 1)]),
    ],
)
def test_grain_states_follow_watermark_changes_and_verifications(
    rows: list[dict[str, object]], verified: list[Verification], states: list[tuple[int, str, int]]
) -> None:
    known = [Watermark(0, None, at(5)), Watermark(2, at(5), at(9))]
    found = windows_of(HOURS, pl.DataFrame(rows).to_arrow(), known, verified)
    assert [(w.start.hour, w.state.value, w.grains) for w in found] == states


LOCAL_DAYS = AdditiveGold(
    "sales_days", "", Window("sold_at", parsed_size("1 day"), "day", time_zone=installed_zone("America/Sao_Paulo")), ()
)
WEEKS = AdditiveGold("sales_weeks", "", Window("sold_at", parsed_size("1 week"), "day"), ())


def of_day(first: int, batch: int, days: float = 1) -> Verification:
    """A verification of whole days (UTC) of March from a day on."""
    since = datetime(2026, 3, first, tzinfo=UTC)
    return Verification(f"p{first}", since, since + timedelta(days=days), batch)


@pytest.mark.parametrize(
    ("gold", "verified", "state"),
    [
        # Monday, 2 March in Sao Paulo: from 3:00 UTC to 3:00 on the next day.
        (LOCAL_DAYS, [of_day(2, 5)], "closed"),
        (LOCAL_DAYS, [of_day(2, 5), of_day(3, 5)], "verified"),
        (LOCAL_DAYS, [of_day(3, 9), of_day(2, 5)], "verified"),
        (LOCAL_DAYS, [of_day(2, 5), of_day(4, 5)], "closed"),
        # A correction by batch 5 came after the verification of one half.
        (LOCAL_DAYS, [of_day(2, 4), of_day(3, 9)], "closed"),
        (LOCAL_DAYS, [of_day(2, 4), of_day(2, 6), of_day(3, 9)], "verified"),
        # Overlapping ranges, of which the longer one is old.
        (LOCAL_DAYS, [of_day(1, 4, 5), of_day(2, 5, 0.5), of_day(2, 6, 1.5)], "verified"),
        (LOCAL_DAYS, [of_day(1, 5, 2), of_day(2, 6, 0.5)], "closed"),
        (WEEKS, [of_day(day, day + 3) for day in (5, 3, 2, 4, 8, 7, 6)], "verified"),
        (WEEKS, [of_day(day, day + 3) for day in (5, 3, 2, 8, 7, 6)], "closed"),
        (WEEKS, [of_day(day, 9 if day != 4 else 4) for day in range(2, 9)], "closed"),
        (WEEKS, [of_day(2, 5, 7)], "verified"),
    ],
)
def test_adjacent_verified_ranges_verify_a_grain_together(
    gold: AdditiveGold, verified: list[Verification], state: str
) -> None:
    rows = pl.DataFrame([{"day": date(2026, 3, 2), "_last_batch": 5}])
    known = [Watermark(0, None, datetime(2026, 3, 2, tzinfo=UTC)), Watermark(5, None, datetime(2026, 4, 1, tzinfo=UTC))]
    found = windows_of(gold, rows.to_arrow(), known, verified)
    assert [(w.state.value, w.grains) for w in found] == [(state, 1)]


SESSIONS = AdditiveGold("visits", "", None, ("shop",), (), Session("sold_at", timedelta(hours=1), "since", "until"))


def test_session_is_open_while_a_row_at_the_watermark_could_join_it() -> None:
    rows = [
        {"shop": shop, "since": at(since), "until": until, "_last_batch": batch, "sales": 1}
        for shop, since, until, batch in (
            ("joined", 7, at(8), 0), ("closed", 6, at(7, 59), 0), ("corrected", 2, at(3), 2), ("late", 1, at(4, 1), 2)
        )
    ]  # fmt: skip
    known = [Watermark(0, None, at(5)), Watermark(2, at(5), at(9))]
    found = rows_with_states(SESSIONS, pl.DataFrame(rows).to_arrow(), known, [])
    states = {row["shop"]: row["_state"] for row in found.to_pylist()}
    assert states == {"joined": "open", "closed": "closed", "corrected": "corrected", "late": "closed"}


def test_rows_of_an_open_window_are_early_and_those_of_a_closed_one_on_time() -> None:
    rows = [row(9, 2), row(9, 0, "south"), row(8, 2), row(4, 2)]
    known = [Watermark(0, None, at(5)), Watermark(2, at(5), at(9))]
    found = rows_with_states(HOURS, pl.DataFrame(rows).to_arrow(), known, []).to_pylist()
    assert [(each["hour"].hour, each["shop"], each["_state"]) for each in found] == [
        (4, "north", "corrected"),
        (8, "north", "closed"),
        (9, "north", "open"),
        (9, "south", "open"),
    ]


def test_rows_that_waited_for_a_refresh_are_on_time_when_they_are_the_first_after_closing() -> None:
    known = [Watermark(n, at(n), at(n + 1)) for n in range(10)]
    # The refresh of batch 7 brought batches 3 to 7, the one of batch 2 those before: the watermark was at three then.
    runs = as_refreshed(known, [2, 7])
    assert runs == [Watermark(2, None, at(3)), Watermark(7, at(3), at(8))]
    rows = [row(1, 7), row(4, 7), row(7, 7), row(8, 7)]
    found = windows_of(HOURS, pl.DataFrame(rows).to_arrow(), runs, [])
    assert [(w.start.hour, w.state.value) for w in found] == [
        (1, "corrected"), (4, "closed"), (7, "closed"), (8, "open"),
    ]  # fmt: skip


def test_watermark_of_a_derived_run_is_the_least_of_its_sources_and_never_moves_back() -> None:
    below = {
        "silver.flights": [Watermark(0, None, at(3)), Watermark(2, at(3), at(8))],
        "silver.weather": [Watermark(0, None, None), Watermark(1, None, at(5))],
    }
    runs = {
        0: {"silver.flights": 1, "silver.weather": 0},
        2: {"silver.flights": 2, "silver.weather": 1},
        5: {"silver.flights": 0, "silver.weather": 1},
    }
    assert derived_watermarks(runs, below) == [
        Watermark(0, None, None),
        Watermark(2, None, at(5)),
        Watermark(5, at(5), at(5)),
    ]
