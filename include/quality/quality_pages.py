"""Quality as pages without scripts: the report with a plot a rule, and what whole tables answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from include.quality.quality_report import QualityReport, RuleSummary

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1c2430}
h1{font-size:1.4rem}table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #eceff3;vertical-align:middle}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2),.texts th,.texts td{text-align:left}
.broken{color:#a33a2c;font-weight:600}.kept{color:#2b7a4b}svg{width:20rem;height:3rem;display:block}
@media(max-width:48rem){svg{width:9rem}}
"""
WIDTH, HEIGHT, MOST_POINTS = 320.0, 48.0, 400


def report_page(report: QualityReport) -> str:
    """Return the page of a report."""
    head = ["rule", "", "records", "broken", "share", "wanted", "first", "share, run by run"]
    rows = "".join(_row(line) for line in report.lines)
    summary = f"{report.records:,} records in {len(report.runs):,} runs."
    return _document(f"{report.dataset}: quality {_range(report)}", summary, head, rows)


def checks_page(title: str, checks: Sequence[Mapping[str, Any]], links: Mapping[str, str]) -> str:
    """Return a page of what whole tables answered (`Check.as_json`), each table linked to `links` by its name."""
    kept = sum(bool(check["is_kept"]) for check in checks)
    rows = "".join(_answer(check, links.get(check["table"], "")) for check in checks)
    head = ["rule", "table", "expectation", "action", "", "seen"]
    return _document(title, f"{kept} of {len(checks)} rules are kept.", head, rows, "texts")


def _answer(check: Mapping[str, Any], link: str) -> str:
    table = escape(check["table"])
    mark = "kept" if check["is_kept"] else "broken"
    cells = [
        f"<b>{escape(check['rule'])}</b>",
        f"<a href='{escape(link)}'>{table}</a>" if link else table,
        escape(check["expectation"]),
        escape(check["action"]),
        f"<span class='{mark}'>{mark}</span>",
        escape(check["seen"]),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _document(title: str, summary: str, head: Sequence[str], rows: str, kind: str = "figures") -> str:
    cells = "".join(f"<th>{name}</th>" for name in head)
    table = f"<table class='{kind}'><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"
    body = f"<h1>{escape(title)}</h1><p>{summary}</p>{table}"
    meta = "<meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    style = f"<style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{meta}<title>{escape(title)}</title>{style}</head><body>{body}</body>"


def _range(report: QualityReport) -> str:
    times = [run.validated_at for run in report.runs]
    return "" if not times else f"from {min(times):%Y-%m-%d %H:%M:%S} to {max(times):%Y-%m-%d %H:%M:%S} UTC"


def _row(line: RuleSummary) -> str:
    first = "" if line.first is None else f"partition {line.first[0]}, offset {line.first[1]:,}"
    wanted = "" if line.mostly is None else f"≤ {100 * (1 - line.mostly):.4g} %"
    mark = "" if line.is_kept is None else "kept" if line.is_kept else "broken"
    cells = [
        f"<b>{escape(line.rule)}</b>",
        line.kind,
        f"{line.judged:,}",
        f"{line.broken:,}",
        f"<span class='{mark}'>{100 * line.share:.4g} %</span>",
        wanted,
        first,
        share_plot(line.shares),
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def share_plot(shares: Sequence[float]) -> str:
    """Return a line over the runs, from the left to the right; its highest point fills the height and is named."""
    points = downsampled(shares)
    highest = max(points, default=0.0)
    if highest == 0.0:
        flat = f"<line x1='0' x2='{WIDTH:g}' y1='46' y2='46' stroke='#9aa4b2'/>"
        return f"<svg viewBox='0 0 {WIDTH:g} {HEIGHT:g}'>{flat}</svg>"
    step = WIDTH / max(len(points) - 1, 1)
    path = " ".join(f"{n * step:.1f},{46 - 40 * share / highest:.1f}" for n, share in enumerate(points))
    dots = f"<circle cx='0' cy='{46 - 40 * points[0] / highest:.1f}' r='2' fill='#a33a2c'/>" if len(points) == 1 else ""
    line = f"<polyline points='{path}' fill='none' stroke='#a33a2c' stroke-width='1.5'/>{dots}"
    return f"<svg viewBox='0 0 {WIDTH:g} {HEIGHT:g}'><title>at most {100 * highest:.4g} %</title>{line}</svg>"


def downsampled(shares: Sequence[float]) -> list[float]:
    """Return at most MOST_POINTS shares: of neighbours the greatest, so that no peak is lost."""
    size = -(-len(shares) // MOST_POINTS) or 1
    return [max(shares[at : at + size]) for at in range(0, len(shares), size)]
