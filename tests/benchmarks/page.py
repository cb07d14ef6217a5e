"""The result of a benchmark as one HTML page without links: a plot of each figure that matters, then all figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workloads.charts import BAR, WIDTH, Chart, ChartBar, ChartMark

from benchmarks.goals import goal_of
from benchmarks.result import PLATFORM, BenchResult, Measurement, invalid_runs
from benchmarks.spread import Key, Spread, spreads
from benchmarks.table import bound, machine_facts, shown
from include.ground.render_template import render_html

PLOTTED = (
    *("events/s", "CPU s/M, all", "CPU s/M, JVM", "CPU s/M, Python", "p50, s", "p95, s", "p99, s", "events/s held"),
    *("seconds", "records/s", "p95, times", "s a run, first", "s a run, last"),
)
COMPARED = ("events/s", "CPU s/M, all")
"""The figures by which the summary plot compares systems."""
MARGIN, LONGEST_BAR, HEADING = 330, 450, 60
OURS, OTHERS, DOT = "#2b7a4b", "#6b7a90", "#1c2430"


def as_page(result: BenchResult) -> str:
    """Return the page."""
    found = spreads(result.measurements)
    return render_html(
        "bench.html.j2",
        title=f"Headrace, measured on {result.at:%Y-%m-%d}",
        machine=machine_facts(result.machine),
        command=result.command,
        invalid=invalid_runs(result.measurements),
        charts=list(charts(found, result.measurements)),
        rows=list(_rows(found)),
    )


def as_plot(result: BenchResult, figures: Sequence[str] = COMPARED) -> str:
    """Return the charts of a few figures as one SVG image, for a document."""
    drawn, top = list[tuple[Chart, int]](), 0
    for chart in charts(spreads(result.measurements), result.measurements, figures):
        drawn.append((chart, top))
        top += chart.height + HEADING
    return render_html("bench.svg.j2", charts=drawn, width=WIDTH, height=top + BAR)


def charts(
    found: Mapping[Key, Mapping[str, Spread]], measurements: Sequence[Measurement], figures: Sequence[str] = PLOTTED
) -> Iterator[Chart]:
    """Yield for each dataset and mode a chart of each of the figures: a bar for each setting and system."""
    for dataset, mode in dict.fromkeys(key[:2] for key in found):
        keys = [key for key in found if key[:2] == (dataset, mode)]
        for figure in figures:
            if measured := [key for key in keys if figure in found[key]]:
                yield _chart(
                    f"{dataset} {mode}: {figure}", figure, {key: found[key][figure] for key in measured}, measurements
                )


def _chart(title: str, figure: str, bars: Mapping[Key, Spread], measurements: Sequence[Measurement]) -> Chart:
    highest = max(spread.high for spread in bars.values()) or 1.0
    places = {key: number * BAR for number, key in enumerate(bars)}
    return Chart(
        title,
        "",
        marks=[
            ChartMark(
                MARGIN + LONGEST_BAR * each.figures[figure] / highest,
                places[each.key] + 8,
                DOT,
                f"run {each.run}: {shown(each.figures[figure])}",
                3,
            )
            for each in measurements
            if each.key in places and not each.problems
        ],
        bars=[
            ChartBar(
                ", ".join(key[2:]),
                shown(spread.median),
                LONGEST_BAR * spread.median / highest,
                places[key],
                OURS if key[3] == PLATFORM else OTHERS,
            )
            for key, spread in bars.items()
        ],
        height=BAR * len(bars),
        margin=MARGIN,
    )


def _rows(found: Mapping[Key, Mapping[str, Spread]]) -> Iterator[tuple[str, ...]]:
    for key, figures in found.items():
        for name, spread in figures.items():
            goal = goal_of(key, name)
            cells = (shown(spread.median), shown(spread.low), shown(spread.high), bound(name, goal) if goal else "")
            yield (" ".join(key[:2]) + ", " + key[2], key[3], name, *cells)
