"""Errors of taking and keeping a lease."""

from __future__ import annotations

from collections.abc import Mapping

from include.ground.errors import Transient


class LeaseHeld(Transient):
    """Another process holds the lease of what is `owned`; `holder` has its pid, epoch, start, and host if known."""

    def __init__(self, owned: str, holder: Mapping[str, object]) -> None:
        host = f" on {holder['host']}" if holder.get("host") else ""
        who = f"process {holder.get('pid')}{host} since {holder.get('since')} (epoch {holder.get('epoch')})"
        super().__init__(f"{owned} is owned by {who}; nothing was touched", "headrace status")
        self.owned = owned
        self.holder = holder


class LeaseLost(Transient):
    """The lease ended while this process worked under it: another process may own the tables."""

    def __init__(self, owned: str, location: str, why: str = "was removed or replaced") -> None:
        super().__init__(
            f"{owned}: the lease {location} {why}; this process commits nothing any more, nothing is lost",
            "headrace status, then headrace up",
        )
        self.owned, self.location = owned, location


class LeaseServerUnavailable(Transient):
    """The database of the leases does not answer or refuses: until it answers, no lease can be taken or renewed."""

    def __init__(self, server: str, why: str) -> None:
        super().__init__(
            f"the leases' database {server} does not answer: {why}",
            "start it, or correct HEADRACE_LEASE_URL; leases are then acquired again automatically",
        )
        self.server = server
