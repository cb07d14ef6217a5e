"""A dataset on two hosts that share a state folder, a Kafka and leases in PostgreSQL, and their observable state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from namespaced_hosts import Host, Network
from recovery_site import Site, wait_until

from include.ground.paths import log_path, status_path
from include.ground.settings import Settings
from include.state.lease_table import held_leases
from include.state.process_states import stream_name
from infra.kafka.broker_cluster import start_broker_cluster
from infra.postgres.server import PostgresServer

DATASET = "meter"
SECONDS = 6.0
RUNNER, STREAM = "run/runner", f"leases/{DATASET}"


@contextmanager
def shared_site(root: Path, network: Network, server: PostgresServer | None) -> Iterator[Site]:
    """Yield a dataset whose state folder all hosts have, and a Kafka that all reach; without a server: OS locks."""
    cluster = start_broker_cluster(root / "kafka", Settings(state=root / "state", profile="small"), 1, network.address)
    (root / "datasets").mkdir()
    given = {"lease_url": server.url if server else "", "lease_seconds": SECONDS, "runner": "service"}
    settings = Settings(
        state=root / "state", datasets=root / "datasets", driver_memory="1g", kafka_bootstrap=cluster.bootstrap
    ).model_copy(update=given)
    place = Site(settings, DATASET)
    try:
        place.prepare()
        yield place
    finally:
        cluster.end()


@contextmanager
def two_hosts(network: Network, site: Site, logs: Path, more: Mapping[str, str]) -> Iterator[list[Host]]:
    """Yield two hosts, each with its runner, as their services start them; `more`: their further settings."""
    leases = {"HEADRACE_LEASE_URL": site.settings.lease_url, "HEADRACE_LEASE_SECONDS": str(SECONDS)}
    found = [network.add_host(service_environment(site, {**leases, **more})) for _ in range(2)]
    found[0].start_runner(logs)
    wait_until(lambda: holder(site, RUNNER) == "host1", "host1 supervises", within=60)
    found[1].start_runner(logs)
    try:
        yield found
    finally:
        for host in found:
            print(f"--- runner of {host.name}\n{host.log.read_text()}")
        print(log_path(site.settings, stream_name(DATASET)).read_text()[-6000:])


def service_environment(site: Site, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of commands on a host whose runner is a service."""
    variables = {"HEADRACE_RUNNER": "service", "HEADRACE_KAFKA_BOOTSTRAP": site.settings.kafka_bootstrap}
    return site.environment({**variables, **more})


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


def outage(site: Site, lost: Host, other: Host, begin: Callable[[], None], end: Callable[[], None], name: str) -> None:
    """Take a host out while records come in; the other one takes over, and the first one comes back."""
    with site.sending():
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
