"""What a power cut leaves: the synced publication, and tables without their last commits, or with empty ones."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from recovery_site import Driver, Site

from include.clients.delta_log import LOG, commit_name, latest_version
from include.paths import warehouse

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
    refused = site.start_driver()
    assert refused.wait() == REFUSED
    assert "headrace repair" in refused.log_text()
    shown = site.command("repair", site.dataset, "--dry-run")
    assert (shown.returncode, lost.name in shown.stdout) == (DECLINED, True)
    repaired = site.command("repair", site.dataset, "--yes")
    assert repaired.returncode == 0, repaired.stderr
    assert not lost.exists()
    successor = site.start_driver()
    site.wait_state("running", successor)
    site.wait_published(successor)
    site.assert_nothing_lost()
