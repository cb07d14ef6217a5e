"""Two drivers for one dataset: the second is refused while the first lives, asleep or not; and a sleeper that lost
its lease is refused by the tables."""

from __future__ import annotations

import os
import signal
import time

import pytest
from site_of_recovery import Driver, Site, await_that

from include.paths import lease_path
from spark_jobs.storage.failpoints import Step

REFUSED, FAILED = 2, 1


def put_to_sleep(driver: Driver, site: Site) -> None:
    """Send records, wait until the driver holds still at its failpoint, and stop its JVM too."""
    site.send()
    await_that(driver.is_stopped, "it holds still at its failpoint", driver)
    os.killpg(driver.process.pid, signal.SIGSTOP)


def wake(driver: Driver) -> None:
    os.killpg(driver.process.pid, signal.SIGCONT)


def refuse_second(site: Site, first: Driver) -> None:
    """A second driver ends with 2, names the first, and leaves its status alone."""
    before, asked = site.word(), time.monotonic()
    second = site.second_driver()
    assert second.ended(60) == REFUSED
    assert time.monotonic() - asked < 60
    assert f"owned by process {first.process.pid}" in second.said()
    after = site.word()
    assert (after["pid"], after["state"]) == (before["pid"], before["state"]) == (first.process.pid, "running")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [Step.SILVER_WRITTEN, Step.BRONZE_BEGUN])
def test_sleeping_owner(site: Site, step: Step) -> None:
    first = site.drive(f"stop:{step}")
    put_to_sleep(first, site)
    refuse_second(site, first)
    wake(first)
    site.await_published(first)
    refuse_second(site, first)

    put_to_sleep(first, site)
    for lease in lease_path(site.settings, site.dataset).parent.glob(f"{site.dataset}*.lock"):
        lease.unlink()
    successor = site.drive()
    site.send()
    site.await_published(successor)
    published = site.publication()
    wake(first)
    assert first.ended() == FAILED
    if step is Step.SILVER_WRITTEN:
        assert "another process owns this table now" in first.said()
    assert site.publication() == published
    assert site.word()["pid"] == successor.process.pid

    site.send()
    site.await_published(successor)
    site.await_state("running", successor)
    site.refuse_any_loss()
