"""Oracles over a few records whose gold is written by hand; charts; the comparison finds each difference."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from workloads.auction_oracle import expected_auction_tables
from workloads.charts import anomaly_chart, top_chart
from workloads.oracle_rows import differing_rows
from workloads.posts_oracle import expected_post_tables
from workloads.searches_oracle import expected_search_tables, flag_score

from include.ground.render_template import render_html

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def post(author: str, second: int, text: str) -> bytes:
    at = (NOON + timedelta(seconds=second)).isoformat()
    return json.dumps({"author": author, "posted_at": at, "text": text}).encode()


def test_posts_are_counted_by_hour_and_minute_and_split_at_pauses() -> None:
    found = expected_post_tables([post("a", 0, "one two #x"), post("a", 300, "one"), post("a", 601, "#x #y")])
    assert {(row["word"], row["uses"]) for row in found["word_hours"]} == {("one", 2), ("two", 1)}
    assert [(row["posts"], row["words"]) for row in found["author_sessions"]] == [(2, 3), (1, 0)]
    at_ten = [(r["rank"], r["tag"]) for r in found["hashtag_trends"] if r["since"] == NOON + timedelta(minutes=10)]
    assert at_ten == [(1, "#x"), (2, "#y")]
    assert len({row["since"] for row in found["hashtag_trends"]}) == 20


def searches(counts: list[int]) -> list[bytes]:
    """Return searches of a term in the same hour of successive weeks."""
    hours = [NOON + timedelta(weeks=week) for week in range(len(counts))]
    made = [
        (hour + timedelta(seconds=n), "tea") for hour, count in zip(hours, counts, strict=True) for n in range(count)
    ]
    return [json.dumps({"searched_at": at.isoformat(), "term": term}).encode() for at, term in made]


def test_hour_is_scored_against_the_same_hour_of_earlier_weeks() -> None:
    rows = expected_search_tables(searches([24, 26, 90, 2]))["term_hours"]
    assert [(row["expected"], row["kind"]) for row in rows] == [
        (None, None),
        (24, None),
        (25, "spike"),
        (46.6667, "dip"),
    ]
    spike = ("tea", NOON + timedelta(weeks=2), "spike")
    score = flag_score(rows, [spike, ("tea", NOON, "dip")])
    assert (score.flagged, score.precision, score.recall) == (2, 0.5, 0.5)


def test_search_counts_for_each_prefix_in_six_windows() -> None:
    rows = expected_search_tables(searches([1]))["completions"]
    assert {row["prefix"] for row in rows} == {"t", "te", "tea"}
    assert len({row["since"] for row in rows}) == 6


def bid(number: int, auction: int, price: int, second: int) -> dict[str, Any]:
    at = (NOON + timedelta(seconds=second)).isoformat()
    return {"event_id": str(number), "event_type": 2, "date_time": at, "auction": auction, "bidder": 1, "price": price}


def test_winning_bid_is_the_highest_while_the_auction_is_open() -> None:
    opened = {
        "event_id": "0",
        "event_type": 1,
        "date_time": NOON.isoformat(),
        "auction": 7,
        "seller": 2,
        "category": 11,
    }
    opened |= {"expires": (NOON + timedelta(seconds=30)).isoformat(), "item_name": "x"}
    bids = [bid(1, 7, 5, 1), bid(2, 7, 9, 2), bid(3, 7, 9, 3), bid(4, 7, 50, 31), bid(5, 8, 70, 1)]
    found = expected_auction_tables([json.dumps(event).encode() for event in [opened, *bids]])
    assert [(row["auction"], row["price"], row["date_time"].second) for row in found["winning_bids"]] == [(7, 9, 2)]
    assert [row["bids"] for row in found["bidder_sessions"]] == [4, 1]
    assert sorted({row["auction"] for row in found["hot_auctions"]}) == [7, 8]


def test_missing_surplus_and_repeated_rows_differ() -> None:
    row, other = {"a": 1, "b": [{"c": 2}]}, {"a": 2, "b": []}
    assert differing_rows([row, other], [other, row]) == ([], [])
    assert differing_rows([row, row], [row, other]) == ([row | {"b": ((("c", 2),),)}], [other | {"b": ()}])


def test_page_draws_flagged_hours_and_the_top_tags() -> None:
    hours = expected_search_tables(searches([24, 26]))["term_hours"]
    spike = {**hours[1], "observed": 99, "kind": "spike"}
    tags = expected_post_tables([post("a", 0, "#x #x #<b>")])["hashtag_trends"]
    page = render_html(
        "workloads.html.j2", title="Workloads", charts=[anomaly_chart([hours[0], spike]), top_chart(tags)]
    )
    assert page.count("<circle") == 1
    assert "spike at 2026-03-09 12:00: 99" in page
    assert "#&lt;b&gt;" in page
    assert page.count("<rect") == 2
