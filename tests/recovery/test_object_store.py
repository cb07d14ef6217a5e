"""Publications in a real object store: kills on the way there, the store away for a while, a foreign commit, another
owner, and the loss of the disk with everything but the broker."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from recovery_site import Driver, Site, wait_until
from stored_site import create_bucket, endpoint_of, running_store, store_variables, stored_settings

from include.ground.object_store import ObjectStore, find_store
from include.ground.paths import checkpoint_path, warehouse
from include.ground.settings import Settings
from include.read.fetch_dataset import fetch_dataset
from include.read.stored_publication import read_stored
from spark_jobs.tables.failpoints import Step

FAILED, REFUSED = 1, 2


@dataclass
class StoredSite:
    """A site whose drivers publish to a store, which is `process`."""

    site: Site
    process: subprocess.Popen[bytes]
    settings: Settings

    @property
    def variables(self) -> dict[str, str]:
        """The store's settings, for drivers and commands."""
        return store_variables(self.settings)

    def start(self, failpoint: str = "") -> Driver:
        """Start a driver that publishes to the store."""
        return self.site.start_driver(failpoint, **self.variables)

    @property
    def store(self) -> ObjectStore:
        """The store, for assertions."""
        found = find_store(self.settings)
        assert found is not None
        return found

    def stored(self) -> dict[str, Any]:
        """Return the store's publication; batch -1 for none."""
        found = read_stored(self.store, self.site.dataset)
        return dict(found.publication) if found else {"batch": -1}

    def assert_store_has_what_is_published(self) -> None:
        """Assert that a reader of the store sees the rows that readers here see."""
        here = self.site.publication()
        assert self.stored() == here
        options = dict(self.store.delta_options)
        for name, table in here["tables"].items():
            there = DeltaTable(f"{self.store.url}/{table['path']}", table["version"], options)
            own = DeltaTable(str(warehouse(self.settings) / table["path"]), table["version"])
            assert file_names(there) == file_names(own), name
            assert there.to_pyarrow_table().num_rows == own.to_pyarrow_table().num_rows, name

    def drain(self, driver: Driver) -> None:
        """End a driver at a batch boundary."""
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0

    def end_with_nothing_lost(self, driver: Driver) -> None:
        """Wait until everything is published, end the driver, and assert that here and in the store nothing is lost."""
        self.site.wait_published(driver)
        self.drain(driver)
        self.site.assert_nothing_lost()
        self.assert_store_has_what_is_published()

    def command(self, *words: str) -> str:
        """Run `headrace …`, which must succeed; return what it printed."""
        done = self.site.command(*words, **self.variables)
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def suspend(self) -> None:
        """Suspend the store: it accepts connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def stored_site(site: Site, tmp_path: Path) -> Iterator[StoredSite]:
    with running_store() as process:
        create_bucket(endpoint_of(process), "tables")
        own = {"state": site.settings.state, "datasets": site.settings.datasets}
        yield StoredSite(
            site, process, stored_settings(tmp_path, endpoint_of(process), "tables").model_copy(update=own)
        )
        site.kill_all()


def file_names(table: DeltaTable) -> list[str]:
    """Return the names of a version's files, which end with their checksums."""
    return sorted(Path(each).name for each in table.file_uris())


def lose_disk(place: StoredSite) -> None:
    """Remove tables, checkpoint, snapshots and ledger, as a new disk lacks them. The broker's folder stays."""
    settings, name = place.settings, place.site.dataset
    for path in (warehouse(settings) / name, checkpoint_path(settings, name), settings.state / "releases" / name):
        shutil.rmtree(path)
    for path in (*settings.state.glob("ledger.sqlite*"), *settings.state.glob(f"leases/{name}*")):
        path.unlink()


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_disk_that_is_lost_is_restored_and_the_stream_continues_once(stored_site: StoredSite) -> None:
    site = stored_site.site
    site.send(200)
    driver = stored_site.start()
    site.wait_published(driver)
    stored_site.drain(driver)
    # Killed when gold has the next batch, and the store has the publication before.
    site.send(200)
    killed = site.publication()["batch"] + 1
    assert stored_site.start(f"kill:{Step.GOLD_COMMITTED}:{killed}").wait() == -signal.SIGKILL
    assert stored_site.stored()["batch"] == killed - 1
    site.send(100)
    lose_disk(stored_site)
    refused = stored_site.start()
    assert refused.wait() == REFUSED
    assert f"headrace restore {site.dataset}" in refused.log_text()
    printed = stored_site.command("restore", site.dataset, "--yes")
    assert f"batch {killed - 1} of release" in printed
    assert "repaired" in printed
    stored_site.end_with_nothing_lost(stored_site.start())


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_kills_on_the_way_to_the_store_lose_nothing(stored_site: StoredSite) -> None:
    """One driver after the other is killed while it sends: the store is suspended, so that it cannot finish."""
    site = stored_site.site
    site.send(200)
    site.wait_published(driver := stored_site.start())
    for number in range(3):
        stored_site.suspend()
        site.send(100)
        wait_until(partial(has_unpublished_gold, site), "gold has more than is published", driver)
        time.sleep(0.2 * number)
        driver.kill()
        stored_site.resume()
        site.wait_published(driver := stored_site.start())
    stored_site.end_with_nothing_lost(driver)


def has_unpublished_gold(site: Site) -> bool:
    published = site.publication()["tables"]
    gold = {name: table for name, table in published.items() if name.startswith("gold.")}
    root = warehouse(site.settings)
    return all(DeltaTable(str(root / table["path"])).version() > table["version"] for table in gold.values())


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_store_that_is_away_halts_publications_and_not_bronze(stored_site: StoredSite) -> None:
    site = stored_site.site
    site.send(200)
    site.wait_published(driver := stored_site.start())
    before = site.publication()
    stored_site.suspend()
    site.send(200)
    status = site.wait_state("halted", driver)
    assert "object store" in status["reason"]
    site.send(200)
    wait_until(lambda: bronze_has_all(site), "bronze has all", driver)
    assert site.publication() == before
    stored_site.resume()
    stored_site.end_with_nothing_lost(driver)


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_driver_that_starts_while_the_store_is_away_waits_for_it(stored_site: StoredSite) -> None:
    site = stored_site.site
    site.send(200)
    stored_site.suspend()
    driver = stored_site.start()
    status = site.wait_state("waiting", driver)
    assert "waiting for the store: object store" in status["reason"]
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    driver = stored_site.start()
    site.wait_state("waiting", driver)
    stored_site.resume()
    stored_site.end_with_nothing_lost(driver)


def bronze_has_all(site: Site) -> bool:
    rows = DeltaTable(str(warehouse(site.settings) / site.dataset / "bronze")).to_pyarrow_table(columns=["offset"])
    return rows.num_rows >= len(site.sent)


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_foreign_commit_ends_the_driver_and_restore_removes_it(stored_site: StoredSite) -> None:
    site = stored_site.site
    site.send(200)
    site.wait_published(driver := stored_site.start())
    before = site.publication()
    address = f"{stored_site.store.url}/{before['tables'][f'silver.{site.dataset}']['path']}"
    foreign = DeltaTable(address, storage_options=dict(stored_site.store.delta_options))
    write_deltalake(foreign, foreign.to_pyarrow_table().slice(0, 1), mode="append")
    site.send(200)
    assert driver.wait() == FAILED
    assert "another writer has committed" in driver.log_text()
    assert site.publication() == before == stored_site.stored()
    stored_site.command("restore", site.dataset, "--yes")
    stored_site.end_with_nothing_lost(stored_site.start())


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_driver_whose_tables_were_taken_over_is_refused(stored_site: StoredSite, tmp_path: Path) -> None:
    site = stored_site.site
    site.send(200)
    site.wait_published(driver := stored_site.start())
    before = stored_site.stored()
    other = stored_site.settings.model_copy(update={"state": tmp_path / "other"})
    fetch_dataset(other, site.dataset, datetime.now(UTC))
    site.send(100)
    assert driver.wait() == FAILED
    assert "another state folder" in driver.log_text()
    assert stored_site.stored() == before == site.publication()
    assert stored_site.start().wait() == REFUSED
