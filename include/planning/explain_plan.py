"""A plan in words: what it changes, what it reads where, its predicted cost, its stages; and its comparison, short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from include.planning.plan import Plan, PlanRecord
from include.planning.plan_stages import stage_lines

SPANS_SHOWN = 4
SAMPLES_SHOWN = 3


def explanation(record: PlanRecord) -> Iterator[str]:
    """Yield the lines of `headrace plan explain`."""
    plan = record.plan
    yield f"{plan.id}  {record.stage}: {plan.dataset}, {plan.about}"
    yield from (f"  {change.kind:12} {change.table}: {change.why}" for change in plan.changes)
    yield from cost(plan)
    yield from stage_lines(record)


def cost(plan: Plan) -> Iterator[str]:
    """Yield what a plan reads from where, and its predicted cost."""
    yield from (f"  from {source}: {records}" for source, records in sources(plan).items())
    size = plan.predicted
    yield (
        f"  reads {size.records:,} records ({size.bytes / 1e6:,.1f} MB, {size.files:,} files) and computes about "
        f"{size.gold_rows:,} gold rows: {size.seconds:,.0f} s at {size.rate:,.0f} records/s, "
        "without the job's start and warm-up"
    )


def sources(plan: Plan) -> dict[str, str]:
    """Return, by source, which offsets of which partition a slice reads there."""
    found: dict[str, list[str]] = {}
    for span in plan.slice.spans if plan.slice else ():
        text = f"partition {span.partition} offsets {span.start:,} to {span.end - 1:,}"
        found.setdefault(span.source, []).append(text)
    return {source: _shortened(parts) for source, parts in found.items()}


def _shortened(parts: list[str]) -> str:
    more = f"; {len(parts) - SPANS_SHOWN} more" if len(parts) > SPANS_SHOWN else ""
    return "; ".join(parts[:SPANS_SHOWN]) + more


def comparison_in_markdown(found: Mapping[str, Any]) -> str:
    """Return a comparison, given as `Comparison.as_json` has it, as Markdown: a table, and of each change a sample."""
    columns = ("old_rows", "new_rows", "added", "missing", "changed")
    threshold = f"threshold {found['threshold']:.2%} of the keys"
    lines = [
        f"**{found['verdict']}**, both at bronze batch {found['batch']}; {threshold}",
        "",
        "| table | | rows before | rows after | keys added | keys missing | keys changed |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for table in found["tables"]:
        share = f"{table['share']:.2%}" if table["presence"] == "both" else table["presence"]
        mark = "equal" if table["equal"] else share
        counts = " | ".join(f"{table[name]:,}" for name in columns)
        lines.append(f"| {literal(table['name'])} | {mark} | {counts} |")
    lines += [line for table in found["tables"] for line in _moved(table)]
    lines += _checked(found.get("checks", ()))
    return "\n".join(lines)


def _moved(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sums that moved and the first keys of each kind of change."""
    drifts = [d for d in table["drift"] if d["old_sum"] != d["new_sum"]]
    if table["samples"] or drifts:
        yield ""
    for d in drifts:
        yield f"- {literal(table['name'])}: sum of {literal(d['column'])} {d['old_sum']} → {d['new_sum']}"
    for kind, samples in table["samples"].items():
        for sample in samples[:SAMPLES_SHOWN]:
            key = ", ".join(f"{name}={value}" for name, value in sample["key"].items())
            yield f"- {literal(table['name'])}, {kind}: {literal(key)}"


def _checked(checks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the built tables answered to the contract's rules, those that are not kept first."""
    marks = {True: "kept", False: "**broken**", None: "not asked"}
    if checks:
        yield ""
    for check in sorted(checks, key=lambda check: check["is_kept"] is True):
        rule = f"{literal(check['table'])}: rule {literal(check['rule'])} ({check['action']})"
        yield f"- {rule} {marks[check['is_kept']]}, seen {literal(check['seen'])}"


def literal(text: object) -> str:
    """Return a value as Markdown that shows it as it is: no markup, link or table of its own."""
    plain = str(text).replace("`", "'").replace("|", "¦").replace("\n", " ")
    return f"`{plain[:200]}`"
