"""Two runner hosts whose state folders are their own: tables lie in an object store, leases in PostgreSQL.

A host is stopped, cut off, and switched off with its disk; the other one goes on from what the store and Kafka have.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from namespaced_hosts import Host, namespaced_network
from recovery_site import Site, wait_until
from stored_site import create_bucket, endpoint_of, running_store, store_variables, stored_settings
from two_hosts import DATASET, RUNNER, SECONDS, STREAM, drivers_on, holder, published, service_environment, shared_site

from include.ground.java import LOCK, read_jar_list
from include.ground.paths import local_warehouse
from include.ground.settings import CLONE
from infra.jars.fetch import cache_folder, fetch
from infra.postgres.server import postgres_server

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1500)]


@dataclass
class OwnHost:
    """A host, and its view of the dataset: its own state folder."""

    host: Host
    site: Site

    def owns_the_stream(self) -> bool:
        return [holder(self.site, lease) for lease in (RUNNER, STREAM)] == [self.host.name, self.host.name]

    def request_stream(self, logs: Path) -> str:
        """Start the runner and request the stream; return what the command says."""
        self.host.start_runner(logs)
        wait_until(lambda: "supervises" in self.host.log.read_text(), f"{self.host.name}'s runner works", within=60)
        return self.host.command("up", DATASET)

    def goes_on(self, after: int) -> float:
        """Wait until this host owns the stream and has published two batches after this one; return the seconds."""
        begun = time.monotonic()
        wait_until(self.owns_the_stream, f"{self.host.name} owns the stream", within=200)
        wait_until(lambda: published(self.site) > after + 1, f"{self.host.name} publishes", within=200)
        return time.monotonic() - begun

    def assert_balanced(self) -> None:
        """Assert that nothing is lost or doubled, that a command on the host agrees, and that its disk has no table."""
        wait_until(self.site.is_published, "everything is published", within=200)
        self.site.assert_nothing_lost()
        assert "balanced" in self.host.command("audit", "--dataset", DATASET)
        folder = local_warehouse(self.site.settings) / DATASET
        assert [each for each in folder.rglob("*") if each.suffix == ".parquet" or each.name == "_delta_log"] == []


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OwnHost]]:
    root = tmp_path_factory.mktemp("own disks")
    fetch(
        [each for each in read_jar_list(LOCK, hashed=True) if each.folder == "s3a"],
        CLONE / ".jars",
        cache_folder(os.environ),
    )
    with (
        namespaced_network() as network,
        postgres_server(network.address, network.range) as server,
        running_store(network.address) as store,
        shared_site(root, network, server) as first,
    ):
        create_bucket(endpoint_of(store), "tables")
        common = {**first.settings.model_dump(exclude_defaults=True), "lease_domain": "meters"}
        found = []
        for name in ("one", "two"):
            own = {**common, "state": root / name / "state"}
            settings = stored_settings(root / "store", endpoint_of(store), "tables", "s3a", **own)
            site = replace(first, settings=settings, backend="spark", variables=store_variables(settings), drivers=[])
            leases = {"LEASE_URL": settings.lease_url, "LEASE_SECONDS": SECONDS, "LEASE_DOMAIN": "meters"}
            more = {f"HEADRACE_{variable}": str(value) for variable, value in leases.items()}
            found.append(OwnHost(network.add_host(service_environment(site, more)), site))
        one, two = found
        assert "supervises" not in one.request_stream(root)
        one.site.send(200)
        wait_until(one.site.is_published, "the first records are published", within=200)
        assert "host1 supervises" in two.request_stream(root)
        try:
            yield found
        finally:
            for each in found:
                print(f"--- runner of {each.host.name}\n{each.host.log.read_text()}")


def outage(
    sender: Site, lost: OwnHost, other: OwnHost, begin: Callable[[], None], end: Callable[[], None], name: str
) -> None:
    """Take a host out while records come in: the other one goes on, and the first one, coming back, commits nothing."""
    with sender.sending():
        begin()
        seconds = other.goes_on(published(lost.site))
        end()
        wait_until(lambda: "the lease is lost" in lost.host.log.read_text(), f"{lost.host.name} stands by", within=60)
        wait_until(lambda: drivers_on(lost.host) == 0, f"no driver runs on {lost.host.name}", within=60)
        assert f"{other.host.name} supervises" in lost.host.command("up", DATASET)
        batch = published(other.site)
        wait_until(lambda: published(other.site) > batch + 3, f"{other.host.name} goes on", within=120)
        assert other.owns_the_stream()
    other.assert_balanced()
    print(f"{name}: {other.host.name} published {seconds:.1f} s after it, leases of {SECONDS:g} s")


def test_host_that_was_stopped_commits_nothing(hosts: list[OwnHost]) -> None:
    one, two = hosts
    outage(one.site, one, two, one.host.stop, one.host.resume, "stopped")


def test_host_that_was_cut_off_commits_nothing(hosts: list[OwnHost]) -> None:
    one, two = hosts
    outage(one.site, two, one, two.host.cut_off, two.host.connect, "cut off")


def test_host_that_is_switched_off_is_replaced_without_its_disk(hosts: list[OwnHost], tmp_path: Path) -> None:
    one, two = hosts
    with one.site.sending():
        before = published(one.site)
        one.host.kill()
        shutil.rmtree(one.site.settings.state)
        seconds = two.goes_on(before)
    two.assert_balanced()
    print(f"switched off: {two.host.name} published {seconds:.1f} s after it, leases of {SECONDS:g} s")
    # A new machine takes the place of the lost one, with an empty disk.
    assert "host2 supervises" in one.request_stream(tmp_path)
    with one.site.sending():
        before = published(two.site)
        two.host.kill()
        one.goes_on(before)
    one.assert_balanced()
