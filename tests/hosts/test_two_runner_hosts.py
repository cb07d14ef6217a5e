"""Two runner hosts, one state folder: the second one takes over; the first one, coming back, commits nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from namespaced_hosts import Host, Network, namespaced_network
from recovery_site import Site, wait_until
from two_hosts import (
    DATASET,
    RUNNER,
    SECONDS,
    STREAM,
    drivers_on,
    holder,
    outage,
    settle,
    shared_site,
    status,
    taken_over,
    two_hosts,
)

from include.state.lease_table import held_leases
from infra.postgres.server import PostgresServer, postgres_server

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """A network without hosts."""
    with namespaced_network() as found:
        yield found


@pytest.fixture(scope="module")
def server(network: Network) -> Iterator[PostgresServer]:
    """A database that all hosts reach."""
    with postgres_server(network.address, network.range) as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, network: Network, server: PostgresServer) -> Iterator[Site]:
    """A dataset whose state folder both hosts have."""
    with shared_site(tmp_path_factory.mktemp("shared"), network, server) as found:
        yield found


@pytest.fixture(scope="module")
def hosts(network: Network, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Two hosts, each with its runner."""
    with two_hosts(network, site, tmp_path_factory.mktemp("logs"), {}) as found:
        yield found


def test_second_runner_stands_by_and_status_names_who_holds_what(site: Site, hosts: list[Host]) -> None:
    first, second = hosts
    first.command("up", DATASET)
    site.send(200)
    wait_until(site.is_published, "the first records are published", within=120)
    for host in hosts:
        leases = {lease["name"]: (lease["role"], lease["host"]) for lease in status(host)["leases"]}
        assert leases[RUNNER] == ("runner", first.name)
        assert leases[STREAM] == ("stream", first.name)
        assert ("standby", second.name) in leases.values()
    assert "stream, pid" in second.command("status")
    assert drivers_on(second) == 0


def test_stopped_host_that_comes_back_commits_nothing(site: Site, hosts: list[Host]) -> None:
    first, second = hosts
    outage(site, first, second, first.stop, first.resume, "stopped")


def test_host_that_was_cut_off_commits_nothing_and_stands_by_again(site: Site, hosts: list[Host]) -> None:
    first, second = hosts
    outage(site, second, first, second.cut_off, second.connect, "cut off")
    wait_until(
        lambda: any(row.role == "standby" and row.host == second.name for row in held_leases(site.settings)),
        "the host that was cut off stands by",
        within=60,
    )


def test_killed_host_is_replaced(site: Site, hosts: list[Host]) -> None:
    first, second = hosts
    with site.sending():
        first.kill()
        seconds = taken_over(site, second)
    settle(site)
    print(f"killed: {second.name} published {seconds:.1f} s after it, leases of {SECONDS:g} s")
    second.command("down")
    wait_until(lambda: holder(site, STREAM) == "", "the stream is drained and its lease released", within=60)
