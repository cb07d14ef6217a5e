"""Two drivers for one dataset: the second is refused while the first lives, suspended or not; a suspended driver that
lost its lease is refused by the tables."""

from __future__ import annotations

import os
import signal
import time

import pytest
from recovery_site import Driver, Site, wait_until

from include.ground.paths import lease_path
from spark_jobs.tables.failpoints import Step

REFUSED, FAILED = 2, 1


def suspend_driver(driver: Driver, site: Site) -> None:
    """Send records, wait until the driver is suspended at its failpoint, and suspend its JVM too."""
    site.send()
    wait_until(driver.is_stopped, "the driver is suspended at its failpoint", driver)
    os.killpg(driver.process.pid, signal.SIGSTOP)


def resume_driver(driver: Driver) -> None:
    os.killpg(driver.process.pid, signal.SIGCONT)


def assert_second_is_refused(site: Site, first: Driver) -> None:
    """Assert that a second driver ends with 2, names the first, and does not touch its status."""
    before, started = site.status(), time.monotonic()
    second = site.start_second_driver()
    assert second.wait(60) == REFUSED
    assert time.monotonic() - started < 60
    assert f"owned by process {first.process.pid}" in second.log_text()
    after = site.status()
    assert (after["pid"], after["state"]) == (before["pid"], before["state"]) == (first.process.pid, "running")


@pytest.mark.timeout(900)
@pytest.mark.extended
@pytest.mark.parametrize("step", [Step.SILVER_WRITTEN, Step.BRONZE_STARTED])
def test_suspended_owner_is_refused(site: Site, step: Step) -> None:
    site.send()
    # Not at the first batch, which a driver reads while it starts.
    first = site.start_driver(f"stop:{step}:1")
    site.wait_published(first)
    site.wait_state("running", first)
    suspend_driver(first, site)
    assert_second_is_refused(site, first)
    resume_driver(first)
    site.wait_published(first)
    assert_second_is_refused(site, first)

    suspend_driver(first, site)
    for lease in lease_path(site.settings, site.dataset).parent.glob(f"{site.dataset}*.lock"):
        lease.unlink()
    successor = site.start_driver()
    site.send()
    site.wait_published(successor)
    published = site.publication()
    resume_driver(first)
    assert first.wait() == FAILED
    if step is Step.SILVER_WRITTEN:
        assert "another process owns this table now" in first.log_text()
    assert site.publication() == published
    assert site.status()["pid"] == successor.process.pid

    site.send()
    site.wait_published(successor)
    site.wait_state("running", successor)
    site.assert_nothing_lost()
