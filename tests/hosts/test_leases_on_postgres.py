"""Leases on a real PostgreSQL server: one holder, epochs, expiry by the server's clock, outages, fenced commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.ground import processes as process_place
from include.ground.app_ids import require_ownership
from include.ground.paths import lease_path
from include.ground.settings import CLONE, Settings
from include.state import lease_table
from include.state.lease import LeaseHeld, LeaseLost, LeaseRole, LeaseServerUnavailable, is_lease_free
from include.state.lease_table import DatabaseLease, held_leases, revoke_streams_elsewhere
from include.state.lease_table import take_database_lease as take
from infra.postgres.server import PostgresServer, postgres_server

pytestmark = pytest.mark.extended
SECONDS = 5.0
FLIGHTS = "leases/flights"
STREAM = LeaseRole.STREAM
# Takes the lease of flights, prints its epoch, and `lost` when it lost it.
HOLDER = """
import sys, time
from include.state.lease import LeaseRole
from include.state.lease_table import take_database_lease
from include.state.lease_table import LeaseHeld
from include.ground.settings import load_settings
try:
    lease = take_database_lease(load_settings(), "leases/flights", "flights", LeaseRole.STREAM)
except LeaseHeld:
    sys.exit(print("held"))
print(lease.epoch, flush=True)
until = time.monotonic() + float(sys.argv[1])
while lease.is_held() and time.monotonic() < until:
    time.sleep(0.02)
print("held to the end" if lease.is_held() else "lost", flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server for the tests of this file."""
    with postgres_server() as found:
        yield found


@pytest.fixture
def settings(tmp_path: Path, server: PostgresServer) -> Settings:
    """Settings of one host of several."""
    given = {"lease_url": server.url, "lease_seconds": SECONDS, "runner": "service", "kafka_bootstrap": "127.0.0.1:9"}
    return Settings(state=tmp_path / "a state").model_copy(update=given)


@pytest.fixture
def taken() -> Iterator[list[DatabaseLease]]:
    """Leases to release after a test."""
    leases: list[DatabaseLease] = []
    yield leases
    for lease in leases:
        lease.release()


def wait_for(holds: Callable[[], bool], within: float) -> float:
    """Wait until `holds`; return the seconds it took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() < begun + within
        time.sleep(0.05)
    return time.monotonic() - begun


def holder(settings: Settings, seconds: float = 60.0) -> subprocess.Popen[str]:
    """Start a process that wants the lease of flights for some seconds."""
    variables = {
        "HEADRACE_STATE": str(settings.state),
        "HEADRACE_LEASE_URL": settings.lease_url,
        "HEADRACE_LEASE_SECONDS": str(settings.lease_seconds),
        "HEADRACE_RUNNER": settings.runner,
        "HEADRACE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
    }
    command = [sys.executable, "-c", HOLDER, str(seconds)]
    return subprocess.Popen(command, cwd=CLONE, env=os.environ | variables, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_second_taker_is_refused_and_learns_who_holds_the_lease(settings: Settings, taken: list[DatabaseLease]) -> None:
    taken.append(take(settings, FLIGHTS, "flights", STREAM))
    who = rf"process {os.getpid()} on {process_place.host_name()} since .* \(epoch 1\)"
    with pytest.raises(LeaseHeld, match=who):
        take(settings, FLIGHTS, "flights", LeaseRole.JOB)
    assert not is_lease_free(settings, lease_path(settings, "flights"))
    assert is_lease_free(settings, lease_path(settings, "weather"))
    (row,) = held_leases(settings)
    assert (row.name, row.role, row.epoch, row.pid) == (FLIGHTS, "stream", 1, os.getpid())
    assert SECONDS - 2 < row.seconds_left <= SECONDS


def test_lease_outlives_its_seconds_by_renewals_and_epochs_grow(settings: Settings, taken: list[DatabaseLease]) -> None:
    first = take(settings, FLIGHTS, "flights", STREAM)
    time.sleep(SECONDS + 1)
    assert first.is_held()
    assert first.with_minimum_epoch(7).epoch == 7
    time.sleep(SECONDS + 1)
    assert first.is_held()
    first.release()
    taken.append(second := take(settings, FLIGHTS, "flights", STREAM))
    assert (second.epoch, first.is_held()) == (8, False)


def test_state_folders_in_one_database_have_leases_of_their_own(
    settings: Settings, taken: list[DatabaseLease], tmp_path: Path
) -> None:
    other = settings.model_copy(update={"state": tmp_path / "other"})
    taken += [take(settings, FLIGHTS, "flights", STREAM), take(other, FLIGHTS, "flights", STREAM)]
    assert [len(held_leases(each)) for each in (settings, other)] == [1, 1]


def test_lease_of_a_process_that_was_killed_here_is_taken_at_once(
    settings: Settings, taken: list[DatabaseLease]
) -> None:
    process = holder(settings)
    assert line_of(process) == "1"
    process.kill()
    process.wait()
    taken.append(take(settings, FLIGHTS, "flights", STREAM))
    assert taken[0].epoch == 2


def test_stopped_holder_has_lost_the_lease_when_it_comes_back(settings: Settings, taken: list[DatabaseLease]) -> None:
    process = holder(settings)
    assert line_of(process) == "1"
    process.send_signal(signal.SIGSTOP)
    try:
        waited = wait_for(lambda: is_lease_free(settings, lease_path(settings, "flights")), 2 * SECONDS)
        assert waited > SECONDS / 2
        taken.append(take(settings, FLIGHTS, "flights", STREAM))
        assert taken[0].epoch == 2
        process.send_signal(signal.SIGCONT)
        assert line_of(process) == "lost"
        time.sleep(SECONDS)
        assert taken[0].is_held()
    finally:
        process.kill()
        process.wait()


def test_holder_counts_its_lease_as_over_before_the_server_does(
    settings: Settings, server: PostgresServer, taken: list[DatabaseLease]
) -> None:
    taken.append(lease := take(settings, FLIGHTS, "flights", STREAM))
    require_ownership()
    server.stop()
    try:
        assert wait_for(lambda: not lease.is_held(), 2 * SECONDS) < SECONDS
        with pytest.raises(LeaseLost, match=f"flights: the lease {FLIGHTS}"):
            require_ownership()
        with pytest.raises(LeaseServerUnavailable, match="does not answer"):
            held_leases(settings)
    finally:
        server.start()
    # Nobody has taken it meanwhile: what was lost once stays lost.
    time.sleep(2 * SECONDS / lease_table.RENEWALS)
    assert not lease.is_held()


def test_short_outage_of_the_server_costs_no_lease(
    settings: Settings, server: PostgresServer, taken: list[DatabaseLease]
) -> None:
    taken.append(lease := take(settings, FLIGHTS, "flights", STREAM))
    server.stop()
    time.sleep(1)
    server.start()
    time.sleep(SECONDS)
    assert lease.is_held()


def test_clock_of_the_holder_does_not_matter(settings: Settings, taken: list[DatabaseLease]) -> None:
    """Expiry is counted by the server's clock; the holder counts seconds since its own boot."""
    begun, ahead = time.monotonic(), 3.2e7
    clock = [lambda: ahead + time.monotonic() - begun]
    taken.append(lease := take(settings, FLIGHTS, "flights", STREAM, clock[0]))
    time.sleep(SECONDS + 1)
    assert lease.is_held()
    assert 0 < held_leases(settings)[0].seconds_left <= SECONDS


def test_revoked_stream_of_another_host_is_lost_and_other_leases_stay(
    settings: Settings, taken: list[DatabaseLease], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken.append(stream := take(settings, FLIGHTS, "flights", STREAM))
    taken.append(job := take(settings, "leases/flights-abc", "a build", LeaseRole.JOB))
    monkeypatch.setattr(lease_table, "this_place", lambda: "another boot/1")
    taken.append(own := take(settings, "leases/weather", "weather", STREAM))
    revoke_streams_elsewhere(settings)
    wait_for(lambda: not stream.is_held(), SECONDS)
    wait_for(lambda: is_lease_free(settings, lease_path(settings, "flights")), 2 * SECONDS)
    assert [job.is_held(), own.is_held()] == [True, True]
    taken.append(again := take(settings, FLIGHTS, "flights", STREAM))
    assert again.epoch == 2


def test_of_many_takers_one_gets_the_lease(settings: Settings) -> None:
    takers = [holder(settings, 3.0) for _ in range(5)]
    answers = sorted(taker.communicate(timeout=60)[0].strip() for taker in takers)
    assert answers == ["1\nheld to the end", *["held"] * 4]


def test_server_that_does_not_answer_is_named_without_the_password(settings: Settings) -> None:
    wrong = settings.model_copy(update={"lease_url": "postgresql://someone:s3cret@127.0.0.1:9/leases"})
    with pytest.raises(LeaseServerUnavailable, match="127.0.0.1:9") as refused:
        take(wrong, FLIGHTS, "flights", STREAM)
    assert "s3cret" not in str(refused.value)
