"""SIGKILL after each numbered step: one driver after the other on the same tables, while records come in."""

from __future__ import annotations

import json
import signal

import pytest
from readings import readings
from recovery_site import Site

from spark_jobs.tables.failpoints import Step

# One batch per `send`, so that the batch in which a driver dies is known.
TOGETHER = json.dumps({"minOffsetsPerTrigger": str(len(readings(0, 200)))})
AT_START = (Step.LEASED, Step.PREFLIGHT_PASSED)
# Steps between write and commit are covered by the parity test that simulates deaths in one process.
AT_WORK = (
    Step.BRONZE_COMMITTED,
    Step.SILVER_COMMITTED,
    Step.REJECTED_COMMITTED,
    Step.GOLD_COMMITTED,
    Step.PUBLISHED,
)


def lose_last_commit(site: Site) -> None:
    """Remove Spark's commit file of the last batch."""
    commits = site.checkpoint / "1" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()


@pytest.mark.parametrize("backend", ["local", pytest.param("spark", marks=pytest.mark.extended)])
def test_driver_killed_between_silver_and_rejected_loses_nothing(site: Site, backend: str) -> None:
    site.backend = backend
    site.send(200)
    driver = site.start_driver(f"kill:{Step.SILVER_COMMITTED}:0")
    assert driver.wait() == -signal.SIGKILL
    successor = site.start_driver()
    site.wait_published(successor)
    successor.send(signal.SIGTERM)
    assert successor.wait() == 0
    site.assert_nothing_lost()


@pytest.mark.extended
def test_driver_killed_while_the_next_run_is_validated_loses_nothing(site: Site) -> None:
    """Each batch is a run that is large enough to be validated ahead; the driver dies before the first is committed."""
    for _ in range(4):
        site.send(200)
    runs = {"HEADRACE_BATCH_RECORDS": "200", "HEADRACE_REFINE_RECORDS": "200"}
    driver = site.start_driver(f"kill:{Step.NEXT_VALIDATED}", **runs)
    assert driver.wait() == -signal.SIGKILL
    successor = site.start_driver(**runs)
    site.wait_published(successor)
    successor.send(signal.SIGTERM)
    assert successor.wait() == 0
    site.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["local", "spark"])
def test_driver_killed_after_each_step_loses_nothing(site: Site, backend: str) -> None:
    site.backend = backend
    site.send(200)
    for step in AT_START:
        assert site.start_driver(f"kill:{step}").wait() == -signal.SIGKILL, step
    for step in AT_WORK:
        fresh = site.publication()["batch"] + (1 if site.is_published() else 2)
        driver = site.start_driver(f"kill:{step}:{fresh}", HEADRACE_KAFKA_OPTIONS=TOGETHER)
        # It completes what its predecessor left; then new records bring it to its own step.
        site.wait_published(driver)
        assert site.publication()["batch"] == fresh - 1, step
        site.send(200)
        assert driver.wait() == -signal.SIGKILL, step
    lose_last_commit(site)
    driver = site.start_driver()
    site.wait_state("running", driver)
    site.send(200)
    site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    site.assert_nothing_lost()
