"""Tables that lie in an object store, written by Spark: a stream and kills, without a table on this host."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import test_release_plans as releases
from recovery_site import Driver, Site

from include.ground.object_store import find_store
from include.ground.paths import local_warehouse
from include.read.stored_publication import read_stored
from spark_jobs.tables.failpoints import Step

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


def end_with_nothing_lost(site: Site, driver: Driver) -> None:
    """Wait until everything is published, end the driver, and assert that nothing is lost and no table is here."""
    site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    site.assert_nothing_lost()
    there = find_store(site.settings)
    assert there is not None
    found = read_stored(there, site.dataset)
    assert found is not None
    assert found.publication == site.publication()
    folder = local_warehouse(site.settings) / site.dataset
    here = [path for path in folder.rglob("*") if path.suffix == ".parquet" or path.name == "_delta_log"]
    assert here == []


def test_a_stream_whose_tables_lie_in_a_store_is_audited(stored: Site) -> None:
    stored.send(200)
    driver = stored.start_driver()
    stored.wait_published(driver)
    stored.send(200)
    end_with_nothing_lost(stored, driver)
    audited = stored.command("audit", "--dataset", stored.dataset)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    counted = stored.command("query", f"select count(*) as n from bronze.{stored.dataset}", "--format", "json")
    assert counted.returncode == 0, counted.stdout + counted.stderr
    assert f'"n": {len(stored.sent)}' in counted.stdout.replace('"n":', '"n": ').replace("  ", " ")


@pytest.mark.parametrize(
    "step",
    [Step.BRONZE_WRITTEN, Step.BRONZE_COMMITTED, Step.SILVER_COMMITTED, Step.REJECTED_COMMITTED]
    + [Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED, Step.PUBLISHED],
)
def test_a_driver_that_is_killed_leaves_each_record_once(stored: Site, step: Step) -> None:
    stored.send(200)
    assert stored.start_driver(f"kill:{step}").wait() == -signal.SIGKILL
    stored.drivers[-1].kill()
    stored.send(100)
    end_with_nothing_lost(stored, stored.start_driver())


@pytest.mark.timeout(2400)
def test_a_release_is_built_promoted_and_rolled_back(stored: Site) -> None:
    releases.test_release_is_built_promoted_and_rolled_back_while_streaming(stored)


def test_an_owner_whose_tables_were_taken_over_commits_nothing(stored: Site, tmp_path: Path) -> None:
    stored.send(200)
    stored.wait_published(former := stored.start_driver())
    former.send(signal.SIGSTOP)
    elsewhere = stored.settings.model_copy(update={"state": tmp_path / "other", "kafka_bootstrap": stored.bootstrap})
    variables = {**stored.variables, "HEADRACE_KAFKA_BOOTSTRAP": stored.bootstrap}
    other = replace(stored, settings=elsewhere, variables=variables, drivers=[])
    try:
        restored = other.command("restore", other.dataset, "--yes")
        assert restored.returncode == 0, restored.stderr
        driver = other.start_driver()
        other.send(100)
        other.wait_published(driver)
        former.send(signal.SIGCONT)
        assert former.wait() != 0
        assert "another" in former.log_text()
        assert stored.command("audit", "--dataset", stored.dataset).returncode != 0
        end_with_nothing_lost(other, driver)
    finally:
        other.kill_all()


def test_a_store_that_is_away_is_waited_for(stored: Site, store: subprocess.Popen[bytes]) -> None:
    stored.send(200)
    stored.wait_published(driver := stored.start_driver())
    before = stored.publication()
    store.send_signal(signal.SIGSTOP)
    try:
        stored.send(200)
        stored.wait_state("waiting", driver, 600)
        assert stored.publication() == before
    finally:
        store.send_signal(signal.SIGCONT)
    end_with_nothing_lost(stored, driver)
