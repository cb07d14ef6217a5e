"""Three real brokers with three copies of each record: one is killed under load, then all restart one after another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_site import Driver, Site, wait_until

from include.ground.kafka import describe_topic, topic_concerns
from include.ground.settings import Settings
from infra.kafka.broker_cluster import BrokerCluster, ClusterBroker, start_broker_cluster

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]
DATASET = "meter"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    """Three brokers, always ended."""
    found = start_broker_cluster(tmp_path / "kafka", Settings(state=tmp_path / "state", profile="small"))
    yield found
    found.end()


@pytest.fixture
def replicated(tmp_path: Path, cluster: BrokerCluster) -> Iterator[Site]:
    """A dataset whose topic is on the three brokers."""
    (tmp_path / "datasets").mkdir()
    settings = Settings(
        state=tmp_path / "state",
        datasets=tmp_path / "datasets",
        driver_memory="1g",
        kafka_bootstrap=cluster.bootstrap,
    )
    place = Site(settings, DATASET)
    place.prepare()
    yield place
    place.kill_all()


def leader(site: Site, cluster: BrokerCluster) -> ClusterBroker:
    """Return the broker that leads the topic's first partition."""
    number = describe_topic(site.bootstrap, DATASET).partitions[0].leader.id
    return cluster.brokers[number - 1]


def are_all_copies_in_sync(site: Site) -> bool:
    return all(len(part.isr) == 3 for part in describe_topic(site.bootstrap, DATASET).partitions)


def wait_for_batches(site: Site, driver: Driver, more: int) -> float:
    """Wait until some more batches are published; return the seconds."""
    begun, before = time.monotonic(), site.publication()["batch"]
    wait_until(lambda: site.publication()["batch"] >= before + more, f"{more} batches more", driver, 120)
    return time.monotonic() - begun


def test_loss_of_a_broker_and_a_rolling_restart_lose_nothing(replicated: Site, cluster: BrokerCluster) -> None:
    site = replicated
    assert topic_concerns(site.bootstrap, DATASET) == []
    driver = site.start_driver(HEADRACE_KAFKA_BOOTSTRAP=cluster.bootstrap)
    with site.sending():
        wait_for_batches(site, driver, 3)
        lost = leader(site, cluster)
        cluster.kill(lost)
        print(f"the leader was killed: two more batches after {wait_for_batches(site, driver, 2):.1f} s")
        assert leader(site, cluster) is not lost
        cluster.start(lost)
        cluster.await_ready()
        wait_until(lambda: are_all_copies_in_sync(site), "the copies are in sync again", driver, 120)
        for broker in cluster.brokers:
            cluster.restart(broker)
            wait_until(lambda: are_all_copies_in_sync(site), "the copies are in sync again", driver, 120)
            wait_for_batches(site, driver, 1)
    site.wait_published(driver, 120)
    assert driver.process.poll() is None
    site.assert_nothing_lost()
