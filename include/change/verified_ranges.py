"""Verified ranges: what a backfill recomputed and found equal, in files from which the ledger can be rebuilt."""

from __future__ import annotations

from datetime import UTC

from include.ground.errors import Terminal
from include.ground.paths import verified_path
from include.ground.settings import Settings
from include.plans.plan import Plan
from include.state.release_files import VerifiedRange, verified_file


def write_verified(settings: Settings, plan: Plan, batch: int, read_at_ms: int) -> None:
    """Record that the events of the plan's range, recomputed at `batch`, equal the published ones.

    `read_at_ms` is when the publication was read: later patches are not verified by it. Raises Terminal if it has none.
    """
    slice_ = plan.records
    if slice_.since is None or slice_.until is None:
        raise Terminal(f"plan {plan.id} has no range of time that could be verified", f"headrace plan show {plan.id}")
    since, until = slice_.since.astimezone(UTC), slice_.until.astimezone(UTC)
    path = verified_path(settings, plan.dataset, plan.release, plan.id)
    verified_file(path).write(VerifiedRange(plan.id, batch, since, until, read_at_ms))
