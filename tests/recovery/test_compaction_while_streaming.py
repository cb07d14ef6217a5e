"""Compaction by a running stream, and by a job that is killed half way: no row is lost or duplicated."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest
from recovery_site import Site

from include.plans.journal import record_result, save_plan
from include.plans.plan import REPLAY, Cancelled, Plan, Prediction
from include.read.publication import read_publication
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.tables.delta_table import Table

pytestmark = pytest.mark.extended

LEFT_ALONE, REFUSED = 1, 2
# More small files than a partition must have to be compacted.
BATCHES = 9


def maintained(site: Site) -> dict[str, Any]:
    done = site.command("maintain", "--dataset", site.dataset, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {table["table"]: table for table in json.loads(done.stdout)["tables"]}
    return found


@pytest.mark.timeout(600)
def test_compaction_loses_nothing_while_streaming_and_after_kills(site: Site) -> None:
    on_request = {"HEADRACE_COMPACTION_FILES": "0"}
    driver = site.start_driver(**on_request)
    for _ in range(BATCHES):
        site.send(20)
        site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0

    # The job is killed between the new file and its commit: readers see no change.
    before = read_publication(site.settings, site.dataset)
    failpoint = {"HEADRACE_FAILPOINT": "kill:compact.files-written"}
    killed = site.command("maintain", "--dataset", site.dataset, **failpoint)
    assert (killed.returncode, "ended with -9" in killed.stdout) == (LEFT_ALONE, True), killed.stderr
    assert read_publication(site.settings, site.dataset) == before
    site.assert_nothing_lost()
    assert any(table["now"] < table["files"] for table in maintained(site).values())
    site.assert_nothing_lost()

    # An open plan reads table versions: its tables are not compacted.
    driver = site.start_driver(**on_request)
    release = before.release
    plan = Plan(
        f"replay-{site.dataset}-1", REPLAY, site.dataset, release, release, before.published_at, "ann", 0.0, [],
        Prediction(1, 1, 1, 1, 1.0, 1.0),
    )  # fmt: skip
    save_plan(site.settings, plan)
    left = site.command("maintain", "--dataset", site.dataset)
    assert (left.returncode, plan.id in left.stdout) == (LEFT_ALONE, True)
    record_result(site.settings, plan.id, Cancelled(), "ann")

    # The stream compacts between two runs, and continues with the compacted files.
    site.send(20)
    site.wait_published(driver)
    for _ in range(BATCHES):
        site.send(20)
        site.wait_published(driver)
    again = maintained(site)
    assert any(table["now"] < table["files"] for table in again.values())
    assert driver.process.poll() is None
    rebuilt = site.command("repair", site.dataset, "--identities")
    assert (rebuilt.returncode, "identities indexed" in rebuilt.stdout) == (0, True), rebuilt.stderr
    site.send(20)
    site.wait_published(driver)
    site.assert_nothing_lost()
    site.assert_ledger_right()


def has_compacted_bronze(site: Site) -> bool:
    bronze = Table(bronze_spec(site.settings, site.dataset))
    return any(file.last_batch > file.first_batch for file in bronze.files())


@pytest.mark.timeout(600)
def test_driver_killed_during_automatic_compaction_loses_nothing(site: Site) -> None:
    often = {"HEADRACE_COMPACTION_FILES": "2"}
    driver = site.start_driver("kill:compact.files-written", **often)
    for _ in range(BATCHES):
        site.send(20)
        if driver.process.poll() is not None:
            break
        time.sleep(1)
    assert driver.wait() == -signal.SIGKILL
    driver = site.start_driver(**often)
    site.send(20)
    site.wait_published(driver)
    # Bronze is compacted after the other tables, and not during a drain.
    end = time.monotonic() + 60
    while not has_compacted_bronze(site) and time.monotonic() < end:
        time.sleep(0.2)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    assert has_compacted_bronze(site)
    site.assert_nothing_lost()
    site.assert_ledger_right()
