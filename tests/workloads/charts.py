"""Charts of published gold: searches of a term with its spikes and dips, and the hashtags of ten minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

Rows = Sequence[dict[str, Any]]
WIDTH, HEIGHT, BAR = 900, 240, 24
WEEK = timedelta(weeks=1)
COLOURS = {"spike": "#a33a2c", "dip": "#1f5fa8"}


@dataclass(frozen=True)
class ChartLine:
    """A line through `points`, as SVG has them."""

    points: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class ChartMark:
    """A dot with a tool tip."""

    x: float
    y: float
    colour: str
    words: str
    radius: float = 5


@dataclass(frozen=True)
class ChartBar:
    """A horizontal bar with its name and count."""

    name: str
    count: int | str
    width: float
    y: int
    colour: str = "#2b7a4b"


@dataclass(frozen=True)
class Chart:
    """A chart for `chart.html.j2`, in its own coordinates."""

    title: str
    words: str
    lines: Sequence[ChartLine] = ()
    marks: Sequence[ChartMark] = ()
    bars: Sequence[ChartBar] = ()
    width: int = WIDTH
    height: int = HEIGHT
    margin: int = 120
    """Where bars begin, after their names."""


def anomaly_chart(term_hours: Rows) -> Chart:
    """Return the last week of the term with the most flags: observed, expected, and the flagged hours."""
    flags = Counter(row["term"] for row in term_hours if row["kind"])
    term = min(flags, key=lambda each: (-flags[each], each)) if flags else term_hours[0]["term"]
    rows = sorted((row for row in term_hours if row["term"] == term), key=lambda row: row["hour"])
    last: datetime = rows[-1]["hour"]
    rows = [row for row in rows if row["hour"] > last - WEEK]
    highest = max(max(row["observed"], row["expected"] or 0) for row in rows)
    places = [(WIDTH * n / len(rows), _height(row["observed"], highest), row) for n, row in enumerate(rows)]
    usual = " ".join(f"{x:.1f},{_height(row['expected'] or 0, highest):.1f}" for x, _, row in places)
    observed = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    marks = [
        ChartMark(x, y, COLOURS[row["kind"]], f"{row['kind']} at {row['hour']:%Y-%m-%d %H:%M}: {row['observed']}")
        for x, y, row in places
        if row["kind"]
    ]
    words = "Searches by hour; dashed: expected from earlier weeks; red: spikes, blue: dips."
    return Chart(
        f"Searches for “{term}”", words, [ChartLine(usual, "#9aa4b2", True), ChartLine(observed, "#1c2430")], marks
    )


def top_chart(hashtag_trends: Rows) -> Chart:
    """Return the hashtags of the window with the most uses."""
    uses = Counter[datetime]()
    for row in hashtag_trends:
        uses[row["since"]] += row["uses"]
    since = min(uses, key=lambda each: (-uses[each], each))
    rows = sorted((row for row in hashtag_trends if row["since"] == since), key=lambda row: row["rank"])
    most = rows[0]["uses"]
    bars = [ChartBar(row["tag"], row["uses"], 600 * row["uses"] / most, n * BAR) for n, row in enumerate(rows)]
    title = f"Hashtags of the ten minutes from {since:%Y-%m-%d %H:%M} UTC"
    return Chart(title, "The busiest of the sliding windows.", bars=bars, height=BAR * len(bars))


def _height(value: float, highest: float) -> float:
    return HEIGHT - 8 - (HEIGHT - 16) * value / highest
