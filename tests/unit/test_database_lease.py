"""When a lease in PostgreSQL ends for its holder; `tests/hosts` shows on a real server that another one has it then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.ground.app_ids import require_ownership
from include.ground.processes import host_name, this_place
from include.ground.settings import Settings
from include.run import runner_lease
from include.run.runner_lease import supervising_host
from include.run.start_stop import ensure_runner
from include.state.lease import LeaseLost, LeaseRole
from include.state.lease_table import HELD_SHARE, DatabaseLease, LeaseRow, LeaseTable, lease_domain
from include.state.run_files import identity_of

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


def row(role: LeaseRole, host: str) -> LeaseRow:
    """Return a lease of this process."""
    identity = identity_of(os.getpid())
    return LeaseRow(
        "run", 1, role, os.getpid(), identity, this_place(), host, datetime(2026, 1, 1, tzinfo=UTC), False, 20.0
    )


def test_another_host_supervises_only_for_one_that_stands_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(state=tmp_path / "state").model_copy(update={"lease_domain": "meters", "runner": "service"})
    leases = {
        "": [],
        "crashed here": [row(LeaseRole.RUNNER, host_name()), row(LeaseRole.STANDBY, "host2")],
        "no service here": [row(LeaseRole.RUNNER, "host2")],
        "host2": [row(LeaseRole.RUNNER, "host2"), row(LeaseRole.STANDBY, host_name())],
    }
    for found in leases.values():
        monkeypatch.setattr(runner_lease, "held_leases", lambda _, found=found: found)
        assert supervising_host(settings) == ("host2" if found == leases["host2"] else "")
    said: list[str] = []
    assert not ensure_runner(settings, said.append)
    assert said == ["runner: host2 supervises; what is requested here starts when this host takes over"]


def test_hosts_share_leases_by_name_and_warehouse() -> None:
    hosts = [Settings().model_copy(update={"lease_domain": "meters", "warehouse": f"s3a://{each}"}) for each in "aab"]
    first, second, other = map(lease_domain, hosts)
    assert first == second != other
