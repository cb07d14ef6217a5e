"""Two runner hosts, one state folder: the second one takes over; the first one, coming back, commits nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from namespaced_hosts import Host, Network, namespaced_network
from postgres_server import PostgresServer, postgres_server
from recovery_site import Site, wait_until

from include.leases.database_lease import held_leases
from include.paths import log_path, status_path
from include.settings import Settings
from include.state.process_states import stream_name
from infra.kafka.broker_cluster import start_broker_cluster

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]
DATASET = "meter"
SECONDS = 6.0
RUNNER, STREAM = "run/runner", f"leases/{DATASET}"


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """A network without hosts."""
    with namespaced_network() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[PostgresServer]:
    """A database that all hosts reach."""
    with postgres_server(tmp_path_factory.mktemp("hosts") / "server", network.address, network.range) as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, network: Network, server: PostgresServer) -> Iterator[Site]:
    """A dataset whose state folder both hosts have, and a Kafka that both reach."""
    root = tmp_path_factory.mktemp("shared")
    cluster = start_broker_cluster(
        root / "kafka", Settings(state=root / "state", broker_memory="256m"), 1, network.address
    )
    (root / "datasets").mkdir()
    given = {"lease_url": server.url, "lease_seconds": SECONDS, "runner": "service"}
    settings = Settings(
        state=root / "state", datasets=root / "datasets", driver_memory="1g", kafka_bootstrap=cluster.bootstrap
    ).model_copy(update=given)
    place = Site(settings, DATASET)
    try:
        place.prepare()
        yield place
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def hosts(network: Network, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Two hosts, each with its runner, as their services start them."""
    settings = site.settings
    variables = {
        "HEADRACE_LEASE_URL": settings.lease_url,
        "HEADRACE_LEASE_SECONDS": str(SECONDS),
        "HEADRACE_RUNNER": "service",
        "HEADRACE_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
    }
    found = [network.add_host(site.environment(variables)) for _ in range(2)]
    logs = tmp_path_factory.mktemp("logs")
    found[0].start_runner(logs)
    wait_until(lambda: holder(site, RUNNER) == "host1", "host1 supervises", within=60)
    found[1].start_runner(logs)
    try:
        yield found
    finally:
        for host in found:
            print(f"--- runner of {host.name}\n{host.log.read_text()}")
        print((log_path(settings, stream_name(DATASET))).read_text()[-6000:])


def holder(site: Site, name: str) -> str:
    """Return the host that holds a lease, "" for none."""
    return next((row.host for row in held_leases(site.settings) if row.name == name), "")


def status(host: Host) -> dict[str, Any]:
    found = json.loads(host.command("status", "--json"))
    assert isinstance(found, dict)
    return found


def published(site: Site) -> int:
    batch = site.publication()["batch"]
    assert isinstance(batch, int)
    return batch


@contextmanager
def producing(site: Site) -> Iterator[None]:
    """Send records all the time."""
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.3):
            site.send(50)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def taken_over(site: Site, host: Host) -> float:
    """Wait until a host supervises, owns the stream and has published; return the seconds."""
    begun, before = time.monotonic(), published(site)
    wait_until(lambda: holder(site, RUNNER) == host.name, f"{host.name} supervises", within=60)
    wait_until(lambda: holder(site, STREAM) == host.name, f"{host.name} owns the stream", within=120)
    wait_until(lambda: published(site) > before + 1, f"{host.name} publishes", within=120)
    return time.monotonic() - begun


def drivers_on(host: Host) -> int:
    """Return how many drivers run on a host."""
    found = 0
    for pid in host.processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        found += "spark_jobs.jobs.stream_job" in command
    return found


def settle(site: Site) -> None:
    """Wait until everything sent is published, then assert that nothing is lost or doubled."""
    wait_until(site.is_published, "everything is published", within=120)
    site.assert_nothing_lost()


def epoch(site: Site) -> int:
    text = status_path(site.settings, stream_name(DATASET)).read_text("utf-8")
    found = json.loads(text)["epoch"]
    assert isinstance(found, int)
    return found


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


def outage(site: Site, lost: Host, other: Host, begin: Callable[[], None], end: Callable[[], None], name: str) -> None:
    """Take a host out while records come in; the other one takes over, and the first one comes back."""
    with producing(site):
        before = epoch(site)
        begin()
        seconds = taken_over(site, other)
        assert epoch(site) > before
        end()
        wait_until(lambda: "the lease is lost" in lost.log.read_text(), f"{lost.name} supervises no more", within=60)
        wait_until(lambda: drivers_on(lost) == 0, f"no driver runs on {lost.name}", within=60)
        batch = published(site)
        wait_until(lambda: published(site) > batch + 3, f"{other.name} goes on", within=60)
        assert [holder(site, lease) for lease in (RUNNER, STREAM)] == [other.name, other.name]
    settle(site)
    print(f"{name}: {other.name} published {seconds:.1f} s after it, leases of {SECONDS:g} s")


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
    with producing(site):
        first.kill()
        seconds = taken_over(site, second)
    settle(site)
    print(f"killed: {second.name} published {seconds:.1f} s after it, leases of {SECONDS:g} s")
    second.command("down")
    wait_until(lambda: holder(site, STREAM) == "", "the stream is drained and its lease released", within=60)
