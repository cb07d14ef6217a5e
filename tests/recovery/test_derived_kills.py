"""SIGKILL of the driver of a derived dataset, at random moments and at each step, while both of its sources change."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from derived_days import declared_over, expected_rows, rows, wait_followed
from recovery_site import Site, repeated_commits

from include.ground.paths import warehouse
from spark_jobs.tables.failpoints import Step

STEPS = (Step.GOLD_WRITTEN, Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED, Step.PUBLISHED)


@pytest.mark.extended
@pytest.mark.timeout(1500)
def test_derived_driver_killed_at_any_moment_loses_and_doubles_nothing(site: Site) -> None:
    moments, derived = random.Random(7), declared_over(site, f"{site.dataset[:20]}_days")
    try:
        site.send(200)
        stream = site.start_driver()
        site.wait_published(stream)
        for _ in range(4):
            driver = derived.start_driver()
            for _ in range(moments.randrange(1, 5)):
                site.send(moments.randrange(50, 200))
                time.sleep(moments.uniform(0.2, 5.0))
            os.killpg(driver.process.pid, signal.SIGKILL)
            assert driver.wait() == -signal.SIGKILL
        for step in STEPS:
            site.wait_published(stream)
            driver = derived.start_driver()
            wait_followed(derived, driver)
            os.killpg(driver.process.pid, signal.SIGKILL)
            driver.wait()
            driver = derived.start_driver(f"kill:{step}:{derived.publication()['batch'] + 1}")
            site.send(100)
            assert driver.wait() == -signal.SIGKILL, step
            # What arrives before the restart is not part of the run that is repeated.
            site.send(100)
        site.wait_published(stream)
        driver = derived.start_driver()
        wait_followed(derived, driver)
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0
        assert rows(derived) == expected_rows(site)
        assert (wrong := repeated_commits(warehouse(derived.settings) / derived.dataset)) == "", wrong
        audited = derived.command("audit", "--dataset", derived.dataset)
        assert (audited.returncode, "balanced" in audited.stdout) == (0, True), audited.stdout + audited.stderr
        site.assert_nothing_lost()
    finally:
        derived.kill_all()
