"""What a backfill did again and found equal: kept beside the tables, so that the ledger can be rebuilt from it."""

from __future__ import annotations

import json
from datetime import UTC

from include.errors import Terminal
from include.paths import verified_path
from include.planning.plan import Plan
from include.settings import Settings
from include.state.atomic_files import write_atomically


def write_verified(settings: Settings, plan: Plan, batch: int, read_at_ms: int) -> None:
    """Write down that the events of the plan's range were done again at `batch` and are what readers saw then.

    `read_at_ms` is when the publication was read: what was corrected later is not verified by it.
    """
    wanted = plan.slice
    if wanted is None or wanted.since is None or wanted.until is None:
        raise Terminal(f"plan {plan.id} has no range of time that could be verified", f"headrace plan show {plan.id}")
    said = {
        "plan": plan.id,
        "batch": batch,
        "since": wanted.since.astimezone(UTC).isoformat(),
        "until": wanted.until.astimezone(UTC).isoformat(),
        "verified_at_ms": read_at_ms,
    }
    write_atomically(verified_path(settings, plan.dataset, plan.release, plan.id), json.dumps(said))
