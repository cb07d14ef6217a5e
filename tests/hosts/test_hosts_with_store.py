"""Two runner hosts that publish to an object store: one is lost in the middle of a publication, then one is cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from namespaced_hosts import Host, namespaced_network
from recovery_site import wait_until
from stored_site import create_bucket, endpoint_of, running_store, stored_settings
from test_object_store import StoredSite, has_unpublished_gold
from two_hosts import DATASET, outage, shared_site, two_hosts

from infra.postgres.server import postgres_server

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stored_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoredSite, list[Host]]]:
    """Two hosts with one state folder, and a store that both reach."""
    root = tmp_path_factory.mktemp("stored")
    with (
        namespaced_network() as network,
        postgres_server(network.address, network.range) as server,
        running_store(network.address) as process,
        shared_site(root, network, server) as site,
    ):
        create_bucket(endpoint_of(process), "tables")
        own = {"state": site.settings.state, "datasets": site.settings.datasets}
        settings = stored_settings(root / "store", endpoint_of(process), "tables").model_copy(update=own)
        stored = StoredSite(site, process, settings)
        with two_hosts(network, site, root, stored.variables) as hosts:
            hosts[0].command("up", DATASET)
            site.send(200)
            wait_until(site.is_published, "the first records are published", within=120)
            yield stored, hosts


def test_host_stopped_while_it_publishes_to_the_store_publishes_nothing_when_it_comes_back(
    stored_hosts: tuple[StoredSite, list[Host]],
) -> None:
    stored, (first, second) = stored_hosts

    def stop_while_publishing() -> None:
        stored.suspend()
        wait_until(lambda: has_unpublished_gold(stored.site), "gold has more than is published", within=60)
        first.stop()
        stored.resume()

    outage(stored.site, first, second, stop_while_publishing, first.resume, "stopped while it published")
    stored.assert_store_has_what_is_published()


def test_host_cut_off_from_leases_and_store_publishes_nothing_there(
    stored_hosts: tuple[StoredSite, list[Host]],
) -> None:
    stored, (first, second) = stored_hosts
    outage(stored.site, second, first, second.cut_off, second.connect, "cut off from the store")
    stored.assert_store_has_what_is_published()
