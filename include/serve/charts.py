"""What pages draw: charts as shapes for `console/charts.html.j2` (adr-0001), badges, and values as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.declare.event_times import utc_text

GOOD, WARNING, BAD, IDLE = "good", "warning", "bad", "idle"


@dataclass(frozen=True)
class Badge:
    """A short text with a tone (good, warning, bad, idle) and the reason behind it."""

    text: str
    tone: str
    why: str = ""


WIDTH, HEIGHT = 320.0, 72.0
TOP, BOTTOM = 6.0, 66.0
MOST_SERIES = 7
OTHERS = "other"


@dataclass(frozen=True)
class HoverArea:
    """A column of a chart from `x`, `width` wide, and the text that pointing at it shows."""

    x: float
    width: float
    text: str


@dataclass(frozen=True)
class LineChart:
    """One value over time. `line` and `area` are SVG paths with a gap where the value is unknown.

    `dots`: values without neighbours. `highest` and `last` are labels; `rows`: label and value, for the table.
    """

    title: str
    line: str
    area: str
    dots: Sequence[tuple[float, float]]
    highest: str
    last: str
    first_label: str
    last_label: str
    hover: Sequence[HoverArea]
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Bar:
    """A part of a column: its series' number, and the rectangle."""

    series: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class BarChart:
    """Stacked columns. `legend`: series with its total, most first; `rows`: label and all values, for the table."""

    title: str
    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]]
    highest: str
    first_label: str
    last_label: str
    hover: Sequence[HoverArea]
    rows: Sequence[tuple[str, Sequence[str]]]


def line_chart(
    title: str, labels: Sequence[str], values: Sequence[float | None], shown: Callable[[float | None], str]
) -> LineChart:
    """Return the chart of values, one for each label; `shown` turns a value into text."""
    highest = max((value for value in values if value is not None), default=None)
    points = _points(values, highest or 1.0)
    parts = list(_parts(points))
    texts = [shown(value) for value in values]
    known = [text for value, text in zip(values, texts, strict=True) if value is not None]
    return LineChart(
        title=title,
        line=" ".join("M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in part) for part in parts if len(part) > 1),
        area=" ".join(_area(part) for part in parts if len(part) > 1),
        dots=[part[0] for part in parts if len(part) == 1],
        highest=shown(highest),
        last=known[-1] if known else shown(None),
        first_label=labels[0] if labels else "",
        last_label=labels[-1] if labels else "",
        hover=_hover(labels, texts),
        rows=list(zip(labels, texts, strict=True)),
    )


def _points(values: Sequence[float | None], highest: float) -> list[tuple[float, float] | None]:
    step = WIDTH / max(len(values) - 1, 1)
    return [
        None if value is None else (n * step, BOTTOM - (BOTTOM - TOP) * value / highest)
        for n, value in enumerate(values)
    ]


def _parts(points: Sequence[tuple[float, float] | None]) -> Iterator[list[tuple[float, float]]]:
    part: list[tuple[float, float]] = []
    for point in (*points, None):
        if point is not None:
            part.append(point)
        elif part:
            yield part
            part = []


def _area(part: Sequence[tuple[float, float]]) -> str:
    line = " L".join(f"{x:.1f},{y:.1f}" for x, y in part)
    return f"M{part[0][0]:.1f},{BOTTOM} L{line} L{part[-1][0]:.1f},{BOTTOM} Z"


def _hover(labels: Sequence[str], texts: Sequence[str]) -> list[HoverArea]:
    width = WIDTH / max(len(labels), 1)
    pairs = zip(labels, texts, strict=True)
    return [HoverArea(n * width, width, f"{label}: {text}") for n, (label, text) in enumerate(pairs)]


def bar_chart(
    title: str,
    labels: Sequence[str],
    counts: Sequence[Mapping[str, float]],
    shown: Callable[[float | None], str],
) -> BarChart:
    """Return stacked columns of counts by series, one column for each label; small series become one."""
    names = _series(counts)
    columns = [_column(each, names) for each in counts]
    highest = max((sum(column) for column in columns), default=0.0)
    totals = [sum(column[n] for column in columns) for n in range(len(names))]
    texts = [
        ", ".join(f"{name} {shown(value)}" for name, value in zip(names, column, strict=True) if value) or shown(0)
        for column in columns
    ]
    return BarChart(
        title=title,
        bars=list(_bars(columns, highest or 1.0)),
        legend=[(name, shown(total)) for name, total in zip(names, totals, strict=True)],
        highest=shown(highest),
        first_label=labels[0] if labels else "",
        last_label=labels[-1] if labels else "",
        hover=_hover(labels, texts),
        rows=[(label, [shown(v) for v in column]) for label, column in zip(labels, columns, strict=True)],
    )


def _series(counts: Sequence[Mapping[str, float]]) -> list[str]:
    totals: dict[str, float] = {}
    for each in counts:
        for name, value in each.items():
            totals[name] = totals.get(name, 0.0) + value
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return ordered if len(ordered) <= MOST_SERIES else [*ordered[: MOST_SERIES - 1], OTHERS]


def _column(counts: Mapping[str, float], names: Sequence[str]) -> list[float]:
    own = [counts.get(name, 0.0) for name in names]
    if names and names[-1] == OTHERS and OTHERS not in counts:
        own[-1] = sum(counts.values()) - sum(own)
    return own


def _bars(columns: Sequence[Sequence[float]], highest: float) -> Iterator[Bar]:
    width = WIDTH / max(len(columns), 1)
    gap = min(1.0, width / 5)
    for n, column in enumerate(columns):
        y = BOTTOM
        for series, value in enumerate(column):
            height = (BOTTOM - TOP) * value / highest
            y -= height
            if value:
                yield Bar(series, n * width + gap / 2, y, width - gap, max(height, 0.6))


UNKNOWN = "–"
STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def whole(value: float | None) -> str:
    """Return a whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a number in few characters: 950, 1.2k, 34M."""
    if value is None:
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return seconds as text of at most two units: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for (size, unit), (smaller, small_unit) in zip(STEPS, (*STEPS[1:], (1, "s")), strict=True):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{seconds:.0f} s"


def moment(value: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return UNKNOWN if value is None else utc_text(value)


def moment_of_ms(value: int | None) -> str:
    """Return a time that is given in milliseconds since 1970."""
    return UNKNOWN if value is None else moment(datetime.fromtimestamp(value / 1000, UTC))


def size(count: float | None) -> str:
    """Return bytes as text: 950 B, 1.2 kB, 34 MB."""
    if count is None:
        return UNKNOWN
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f} B"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) in percent, with three digits."""
    return UNKNOWN if share is None else f"{100 * share:.3g} %"


FILTERS: Mapping[str, Callable[[Any], str]] = {
    each.__name__: each for each in (whole, duration, moment, moment_of_ms, size, percent)
}
"""What templates format values with."""
