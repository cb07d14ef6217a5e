"""What the gold tables of `ad_events` must hold, from the records alone, in plain Python."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path

from workloads.oracle_rows import Expected, Row

ADS = Path(__file__).parent / "datasets" / "ad_events" / "reference" / "ads.csv"


def expected_ad_tables(records: Iterable[bytes]) -> Expected:
    """Return the rows of each gold table."""
    with ADS.open(encoding="utf-8", newline="") as file:
        campaigns = {row["ad_id"]: row["campaign_id"] for row in csv.DictReader(file)}
    events = [json.loads(record) for record in records]
    views = Counter[tuple[str, datetime]]()
    users, pages = defaultdict[str, set[str]](set), defaultdict[str, Counter[str]](Counter)
    days = defaultdict[tuple[date, str, str], list[dict[str, str]]](list)
    for event in sorted(events, key=lambda each: int(each["event_time"])):
        campaign, seconds = campaigns[event["ad_id"]], int(event["event_time"]) // 1000
        if event["event_type"] == "view":
            views[campaign, datetime.fromtimestamp(seconds - seconds % 10, UTC)] += 1
            users[campaign].add(event["user_id"])
            pages[campaign][event["page_id"]] += 1
        days[datetime.fromtimestamp(seconds, UTC).date(), event["user_id"], campaign].append(event)
    return {
        "campaign_views": [{"since": at, "campaign_id": c, "views": n} for (c, at), n in views.items()],
        "campaign_reach": [
            {"campaign_id": campaign, "users": len(found), "top_pages": _three(pages[campaign])}
            for campaign, found in users.items()
        ],
        "user_campaign_days": [_day(*key, found) for key, found in days.items()],
    }


def _three(pages: Counter[str]) -> list[dict[str, object]]:
    ranked = sorted(pages.items(), key=lambda item: (-item[1], item[0]))
    return [{"value": page, "count": count} for page, count in ranked[:3]]


def _day(day: date, user: str, campaign: str, events: list[dict[str, str]]) -> Row:
    kinds = Counter(event["event_type"] for event in events)
    return {
        "day": day,
        "user_id": user,
        "campaign_id": campaign,
        "views": kinds["view"],
        "clicks": kinds["click"],
        "events": len(events),
        "click_share": kinds["click"] / len(events),
        "last_page": events[-1]["page_id"],
    }
