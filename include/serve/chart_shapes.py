"""Charts as shapes: coordinates, labels and tooltips that `console/charts.html.j2` draws as SVG (adr-0001)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    kind: str = "line"


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
    kind: str = "bars"


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
    """Yield the runs of points without a gap."""
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
