"""Verified ranges: what a backfill recomputed and found equal, in files from which the ledger can be rebuilt."""

from __future__ import annotations

import json
from datetime import UTC

from include.errors import Terminal
from include.paths import verified_path
from include.planning.plan import Plan
from include.settings import Settings
from include.state.atomic_files import write_atomically


def write_verified(settings: Settings, plan: Plan, batch: int, read_at_ms: int) -> None:
    """Record that the events of the plan's range, recomputed at `batch`, equal the published ones.

    `read_at_ms` is when the publication was read: later patches are not verified by it. Raises Terminal if it has none.
    """
    wanted = plan.records
    if wanted.since is None or wanted.until is None:
        raise Terminal(f"plan {plan.id} has no range of time that could be verified", f"headrace plan show {plan.id}")
    verified = {
        "plan": plan.id,
        "batch": batch,
        "since": wanted.since.astimezone(UTC).isoformat(),
        "until": wanted.until.astimezone(UTC).isoformat(),
        "verified_at_ms": read_at_ms,
    }
    write_atomically(verified_path(settings, plan.dataset, plan.release, plan.id), json.dumps(verified))
