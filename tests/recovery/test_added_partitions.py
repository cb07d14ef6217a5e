"""Partitions that a topic gets later are read from their first record, whenever they are added."""

from __future__ import annotations

import signal
from operator import attrgetter

import pytest
from confluent_kafka.admin import NewPartitions
from recovery_site import Driver, Site, wait_until

from include.ground.kafka import admin, log_end_offsets, partition_ids
from spark_jobs.tables.failpoints import Step

OF_ALL_PARTITIONS = attrgetter("value")
"""A key by which records reach each partition; a copy of a record has the same."""


def add_partitions(site: Site, total: int) -> None:
    """Let the topic have `total` partitions, and send records to each."""
    admin(site.bootstrap).create_partitions([NewPartitions(site.dataset, total)])[site.dataset].result(30)
    wait_until(lambda: len(partition_ids(site.bootstrap, site.dataset)) == total, f"{total} partitions", within=30)
    site.send(120, key=OF_ALL_PARTITIONS)
    assert min(log_end_offsets(site.bootstrap, site.dataset).values()) > 0


def drain(driver: Driver) -> None:
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_partitions_that_are_added_later_are_read_from_their_first_record(site: Site) -> None:
    assert site.start_driver(f"kill:{Step.PREFLIGHT_PASSED}").wait() == -signal.SIGKILL
    add_partitions(site, 3)  # before the first batch
    driver = site.start_driver()
    site.wait_published(driver)
    site.assert_nothing_lost()
    add_partitions(site, 5)  # while the stream runs
    site.wait_published(driver)
    site.assert_nothing_lost()
    drain(driver)
    add_partitions(site, 8)  # while it does not
    driver = site.start_driver()
    site.wait_published(driver)
    site.assert_nothing_lost()
    drain(driver)
