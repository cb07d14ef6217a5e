"""A comparison as one self-contained page: no script, no other file, readable on a telephone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1c2430}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2.2rem;border-bottom:1px solid #d5dbe3}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #eceff3}
th:first-child,td:first-child{text-align:left}
.verdict{display:inline-block;padding:.2rem .7rem;border-radius:1rem;color:#fff}
.equal{background:#2b7a4b}.within{background:#8a6d1a}.needs{background:#a33a2c}code{background:#f3f5f8;padding:0 .2rem}
.held{background:#a33a2c}
.samples td,.samples th{text-align:left}.text{font-family:ui-monospace,monospace;font-size:.82rem}
.old{color:#a33a2c}.new{color:#2b7a4b}
svg{width:10rem;height:1rem}details{margin:.4rem 0}.wide{overflow-x:auto}
"""
HALF = 80.0


def page(plan: str, about: str, found: Mapping[str, Any]) -> str:
    """Return the page of a plan's comparison, given as `Comparison.as_json` has it; `about` says what it is about."""
    title = f"{plan}: {found['dataset']}, {about}"
    kind = str(found["verdict"]).split()[0]
    summary = (
        f"<p><span class='verdict {escape(kind)}'>{escape(str(found['verdict']))}</span> "
        f"both at bronze batch {found['batch']}; threshold {100 * found['threshold']:g} % of the keys</p>"
    )
    parts = [f"<h1>{escape(title)}</h1>", summary, _checks(found.get("checks", ())), _overview(found["tables"])]
    parts += [_table(table) for table in found["tables"] if not table["equal"] and table["presence"] == "both"]
    meta = "<meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    head = f"<head>{meta}<title>{escape(title)}</title><style>{STYLE}</style></head>"
    return f"<!doctype html><html lang='en'>{head}<body>{''.join(parts)}</body></html>"


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    """The contract's rules for whole tables; those that hold back first."""
    if not checks:
        return ""
    marks = {True: "kept", False: "<b class='old'>broken</b>", None: "not asked"}
    rows = [
        [escape(c["table"]), escape(c["rule"]), marks[c["is_kept"]], escape(c["action"]), escape(c["seen"])]
        for c in sorted(checks, key=lambda c: not c["blocks"])
    ]
    return _grid(["table", "rule", "", "action", "seen"], rows)


def _overview(tables: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"<b>{escape(t['name'])}</b>",
            "equal" if t["equal"] else t["presence"] if t["presence"] != "both" else f"{100 * t['share']:.2f} % differ",
            *(f"{t[name]:,}" for name in ("old_rows", "new_rows", "added", "missing", "changed")),
        ]
        for t in tables
    ]
    return _grid(["table", "", "rows before", "rows after", "keys added", "keys missing", "keys changed"], rows)


def _table(table: Mapping[str, Any]) -> str:
    keys = ", ".join(table["keys"])
    parts = [f"<h2>{escape(table['name'])}</h2><p>compared by <code>{escape(keys)}</code></p>"]
    columns = [f"new column <code>{escape(c)}</code>" for c in table["columns_added"]]
    columns += [f"lost column <code>{escape(c)}</code>" for c in table["columns_removed"]]
    columns += [f"<code>{escape(c)}</code>: {escape(a)} → {escape(b)}" for c, (a, b) in table["retyped"].items()]
    if columns:
        parts.append(f"<p>{'; '.join(columns)}</p>")
    if table["drift"]:
        parts.append(_drift(table["drift"]))
    parts += [_samples(kind, table[kind], rows) for kind, rows in table["samples"].items()]
    return "".join(parts)


def _drift(drifts: Sequence[Mapping[str, Any]]) -> str:
    moved = [d for d in drifts if d["old_sum"] != d["new_sum"] or d["old_nulls"] != d["new_nulls"]]
    percents = {d["column"]: _percent(d) for d in moved}
    largest = max((abs(p) for p in percents.values() if p is not None), default=0.0)
    rows = [
        [
            f"<code>{escape(d['column'])}</code>",
            _number(d["old_sum"]),
            _number(d["new_sum"]),
            "" if percents[d["column"]] is None else f"{percents[d['column']]:+.3g} %",
            _bar(percents[d["column"]], largest),
            f"{100 * d['old_nulls']:.2f} → {100 * d['new_nulls']:.2f} %",
        ]
        for d in moved
    ]
    if not rows:
        return "<p>no measure's sum moved</p>"
    return _grid(["measure", "sum before", "sum after", "change", "", "nulls"], rows)


def _percent(drift: Mapping[str, Any]) -> float | None:
    old, new = drift["old_sum"], drift["new_sum"]
    return None if old in (None, 0) or new is None else 100.0 * (new - old) / abs(old)


def _bar(percent: float | None, largest: float) -> str:
    """Return a bar to the left for less, to the right for more; the largest change fills its half."""
    if percent is None or largest == 0:
        return ""
    width = HALF * abs(percent) / largest
    left = HALF - width if percent < 0 else HALF
    colour = "#a33a2c" if percent < 0 else "#2b7a4b"
    middle = f"<line x1='{HALF:g}' x2='{HALF:g}' y1='0' y2='10' stroke='#9aa4b2'/>"
    bar = f"<rect x='{left:.1f}' y='2' width='{width:.1f}' height='6' fill='{colour}'/>"
    return f"<svg viewBox='0 0 {2 * HALF:g} 10' preserveAspectRatio='none'>{middle}{bar}</svg>"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.10g}"


def _samples(kind: str, count: int, samples: Sequence[Mapping[str, Any]]) -> str:
    rows = [[_row([sample["key"]], "text"), *_sides(sample["old"], sample["new"])] for sample in samples]
    head = f"<summary>{count:,} keys {escape(kind)}, the first {len(samples)}</summary>"
    return f"<details open>{head}<div class='wide samples'>{_grid(['key', 'before', 'after'], rows)}</div></details>"


def _sides(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Of one row that became another only what differs; of any other number of rows all."""
    if len(old) == len(new) == 1:
        moved = [name for name in old[0] if old[0][name] != new[0].get(name)]
        old, new = ([{name: row[name] for name in moved} for row in rows] for rows in (old, new))
    return _row(old, "text old"), _row(new, "text new")


def _row(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    lines = ("; ".join(f"{name}={value}" for name, value in row.items()) for row in rows)
    return f"<span class='{kind}'>{'<br>'.join(escape(line) for line in lines)}</span>"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
