"""Tables that lie in an object store, written by Spark: a stream and kills, without a table on this host."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_site import Driver, Site
from stored_site import create_bucket, endpoint_of, running_store, store_variables, stored_settings

from include.ground.java import LOCK, read_jar_list
from include.ground.object_store import find_store
from include.ground.paths import local_warehouse
from include.ground.settings import CLONE
from include.read.stored_publication import read_stored
from infra.jars.fetch import cache_folder, fetch
from spark_jobs.tables.failpoints import Step

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    locked = [each for each in read_jar_list(LOCK, hashed=True) if each.folder == "s3a"]
    fetch(locked, CLONE / ".jars", cache_folder(os.environ))
    with running_store() as process:
        create_bucket(endpoint_of(process), "tables")
        yield endpoint_of(process)


@pytest.fixture
def stored(site: Site, endpoint: str, tmp_path: Path) -> Site:
    """A site whose tables lie in a store."""
    own = {"state": site.settings.state, "datasets": site.settings.datasets}
    site.settings = stored_settings(tmp_path, endpoint, "tables", "s3a", **own)
    site.backend, site.variables = "spark", store_variables(site.settings)
    return site


def end_with_nothing_lost(site: Site, driver: Driver) -> None:
    """Wait until everything is published, end the driver, and assert that nothing is lost and no table is here."""
    site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    site.assert_nothing_lost()
    store = find_store(site.settings)
    assert store is not None
    found = read_stored(store, site.dataset)
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
