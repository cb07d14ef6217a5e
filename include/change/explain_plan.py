"""A plan in words: what it changes, what it reads from where, its predicted cost and its stages."""

from __future__ import annotations

from collections.abc import Iterator

from include.change.plan_stages import stage_lines
from include.plans.plan import Plan, PlanRecord

SPANS_SHOWN = 4


def explanation(record: PlanRecord) -> Iterator[str]:
    """Yield a plan as text lines, for the log of a dry run."""
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
