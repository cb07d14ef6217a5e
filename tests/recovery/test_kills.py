"""SIGKILL after each numbered step, one driver after the other on the same tables, while the feed goes on."""

from __future__ import annotations

import json
import signal

import pytest
from readings import readings
from site_of_recovery import Site

from spark_jobs.storage.failpoints import Step

# One batch for each `send`, so that it is known which batch a driver dies in.
TOGETHER = json.dumps({"minOffsetsPerTrigger": str(len(readings(0, 200)))})
AT_START = (Step.LEASED, Step.EXAMINED)
# What is written and not committed is covered, step by step, by the parity test that dies inside one process.
AT_WORK = (
    Step.BRONZE_COMMITTED,
    Step.SILVER_COMMITTED,
    Step.REJECTED_COMMITTED,
    Step.GOLD_COMMITTED,
    Step.PUBLISHED,
)


def lose_last_commit(site: Site) -> None:
    """Spark's note that its last batch is done is gone."""
    commits = site.checkpoint / "1" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()


def test_driver_killed_between_silver_and_rejected_loses_nothing(site: Site) -> None:
    site.send(200)
    driver = site.drive(f"kill:{Step.SILVER_COMMITTED}:0")
    assert driver.ended() == -signal.SIGKILL
    successor = site.drive()
    site.await_published(successor)
    successor.send(signal.SIGTERM)
    assert successor.ended() == 0
    site.refuse_any_loss()


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_killed_after_each_step(site: Site) -> None:
    site.send(200)
    for step in AT_START:
        assert site.drive(f"kill:{step}").ended() == -signal.SIGKILL, step
    for step in AT_WORK:
        fresh = site.publication()["batch"] + (1 if site.is_published() else 2)
        driver = site.drive(f"kill:{step}:{fresh}", HEADRACE_KAFKA_OPTIONS=TOGETHER)
        # What the one before left undone is finished first; then new records bring this one to its step.
        site.await_published(driver)
        assert site.publication()["batch"] == fresh - 1, step
        site.send(200)
        assert driver.ended() == -signal.SIGKILL, step
    lose_last_commit(site)
    driver = site.drive()
    site.await_state("running", driver)
    site.send(200)
    site.await_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.ended() == 0
    site.refuse_any_loss()
