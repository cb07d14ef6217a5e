"""When a lease in PostgreSQL ends for its holder; `tests/hosts` shows on a real server that another one has it then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from include.ground.app_ids import require_ownership
from include.state.lease import LeaseLost
from include.state.lease_table import HELD_SHARE, DatabaseLease, LeaseTable

SECONDS = 600.0
NOBODY = "postgresql://127.0.0.1:9/leases"
"""Nothing listens there: no renewal arrives."""


class SettableClock:
    """Seconds since boot, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def lease(clock: SettableClock) -> Iterator[DatabaseLease]:
    """Return a lease that was taken at the clock's time and is not renewed."""
    taken = DatabaseLease(LeaseTable(NOBODY, "a state", SECONDS), "leases/flights", "flights", 3, clock(), clock)
    yield taken
    taken.release()


def test_lease_that_is_not_renewed_ends_for_its_holder_and_stays_lost(
    lease: DatabaseLease, clock: SettableClock
) -> None:
    clock.now += HELD_SHARE * SECONDS - 0.01
    assert lease.is_held()
    require_ownership()
    clock.now += 0.02
    assert not lease.is_held()
    with pytest.raises(LeaseLost, match="flights: the lease leases/flights"):
        require_ownership()
    clock.now -= 1.0
    assert not lease.is_held(), "another process may have held it since"


def test_released_lease_is_not_held_and_stops_no_commit(lease: DatabaseLease) -> None:
    lease.release()
    assert not lease.is_held(), "the next holder has it"
    require_ownership()
