"""Quality as pages: the report with a plot per rule, and the results of table rules. Templates: include/ground."""

from __future__ import annotations

from collections.abc import Sequence

from include.change.quality_report import QualityReport
from include.declare.contract_rules import RuleResult
from include.ground.render_template import render_html

WIDTH, HEIGHT, MOST_POINTS = 320.0, 48.0, 400


def report_page(report: QualityReport) -> str:
    """Return the page of a report."""
    lines = [(line, share_points(line.shares), max(line.shares, default=0.0)) for line in report.lines]
    title = f"{report.dataset}: quality {_range(report)}"
    return render_html("quality_report.html.j2", title=title, report=report, lines=lines, width=WIDTH, height=HEIGHT)


def checks_page(title: str, checks: Sequence[RuleResult]) -> str:
    """Return a page of results."""
    return render_html("quality_checks.html.j2", title=title, checks=checks)


def _range(report: QualityReport) -> str:
    times = [run.validated_at for run in report.runs]
    return "" if not times else f"from {min(times):%Y-%m-%d %H:%M:%S} to {max(times):%Y-%m-%d %H:%M:%S} UTC"


def share_points(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points (x, y) of a plot over the runs; the greatest share fills the height. Empty when all are 0."""
    points = downsampled(shares)
    highest = max(points, default=0.0)
    step = WIDTH / max(len(points) - 1, 1)
    return [(n * step, 46 - 40 * share / highest) for n, share in enumerate(points)] if highest else []


def downsampled(shares: Sequence[float]) -> list[float]:
    """Return at most MOST_POINTS shares: the greatest of neighbours, so that every peak is kept."""
    size = -(-len(shares) // MOST_POINTS) or 1
    return [max(shares[at : at + size]) for at in range(0, len(shares), size)]
