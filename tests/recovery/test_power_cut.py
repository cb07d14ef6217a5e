"""What a power cut leaves: the synced publication, and tables without their last commits, or with empty ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from recovery_site import Driver, Site, open_broker

from include.ground.delta_log import LOG, commit_name, latest_version
from include.ground.paths import bronze_path, publication_path, warehouse
from include.state.process_states import BROKER
from include.state.release_files import active_releases_file
from include.state.run_files import read_run_file

REFUSED, DECLINED = 2, 1


def stop(site: Site, driver: Driver) -> list[Path]:
    """Drain the driver; return the paths of the release's tables, silver first."""
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    root = warehouse(site.settings)
    paths = [root / table["path"] for name, table in site.publication()["tables"].items() if "bronze" not in name]
    return sorted(paths, key=lambda path: path.name != "silver")


def last_commit(table: Path) -> Path:
    return table / LOG / commit_name(latest_version(table))


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_lost_commits_are_refined_again(site: Site) -> None:
    driver = site.start_driver()
    for _ in range(3):
        site.send(60)
        site.wait_published(driver)
    tables, published = stop(site, driver), site.publication()["batch"]

    for table in tables:
        last_commit(table).unlink()
    driver = site.start_driver()
    site.wait_state("running", driver)
    site.wait_published(driver)
    assert f"rolled back from batch {published}" in driver.log_text()
    assert "rolled back" in site.status()["event"]
    site.assert_nothing_lost()

    tables = stop(site, driver)
    lost = last_commit(tables[0])
    lost.write_bytes(b"")
    shown = site.command("repair", site.dataset, "--dry-run")
    assert (shown.returncode, lost.name in shown.stdout) == (DECLINED, True)
    damages: list[Callable[[], object]] = [
        lambda: None,
        lambda: [last_commit(tables[-1]).unlink() for _ in range(2)],
        lambda: last_commit(bronze_path(site.settings, site.dataset)).write_bytes(b""),
    ]
    for damage in damages:
        damage()
        successor = site.start_driver()
        site.wait_state("running", successor)
        assert "rolled back" in site.status()["event"]
        site.wait_published(successor)
        site.assert_nothing_lost()
        tables = stop(site, successor)
    site.assert_ledger_right()


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_driver_follows_kafka_that_lost_records_and_got_others(site: Site) -> None:
    """The broker loses what it had not flushed; producers use the offsets again before the driver starts."""
    driver = site.start_driver()
    site.send(60)
    site.wait_published(driver)
    logs = sorted((site.settings.state / "kafka" / "data").glob(f"{site.dataset}-*/*0.log"))
    assert len(logs) == 2
    sizes, kept = [log.stat().st_size for log in logs], len(site.sent)
    site.send(60)
    site.wait_published(driver)
    stop(site, driver)
    broker = read_run_file(site.settings, BROKER)
    assert broker is not None
    broker.send(signal.SIGKILL)
    assert broker.wait_gone(20)
    for log, size in zip(logs, sizes, strict=True):
        os.truncate(log, size)
    open_broker(site.settings)
    del site.sent[kept:]
    site.send(200)
    driver = site.start_driver(HEADRACE_DURABILITY="power")
    site.wait_state("running", driver)
    assert "rolled back" in site.status()["event"]
    site.wait_published(driver)
    site.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_damaged_publication_is_replaced_by_the_same_release(site: Site) -> None:
    """The remedy must not publish the folder, which has other code by then."""
    driver = site.start_driver()
    site.send(60)
    site.wait_published(driver)
    stop(site, driver)
    published, path = site.publication(), publication_path(site.settings, site.dataset)
    with (site.settings.datasets / site.dataset / "silver.py").open("a", encoding="utf-8") as code:
        code.write("\n# Not approved.\n")
    path.write_text("x", encoding="utf-8")
    refused = site.start_driver()
    assert refused.wait() == REFUSED
    assert f'rm "{path}"' in refused.log_text()
    path.unlink()
    successor = site.start_driver()
    site.wait_state("running", successor)
    again = site.publication()
    assert (again["release"], again["batch"]) == (published["release"], published["batch"])
    stop(site, successor)
    assert active_releases_file(site.settings, site.dataset).read() is None
    stop(site, site_running(site))
    assert active_releases_file(site.settings, site.dataset).read() == [published["release"]]


def site_running(site: Site) -> Driver:
    """Return a new driver that runs."""
    driver = site.start_driver()
    site.wait_state("running", driver)
    return driver
