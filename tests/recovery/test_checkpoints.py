"""A checkpoint that lost files is replaced by the driver; one without its generation by `headrace repair`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from recovery_site import Site

from include.ground.delta_log import commits
from include.ground.paths import bronze_path

REFUSED, DECLINED = 2, 1


def last(folder: Path) -> Path:
    return folder / str(max(int(path.name) for path in folder.iterdir() if path.name.isdigit()))


def without_content(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def without(path: Path) -> Path:
    path.unlink()
    return path


DAMAGES: list[Callable[[Path], Path]] = [
    lambda checkpoint: without_content(last(checkpoint / "offsets")),
    lambda checkpoint: without(checkpoint / "metadata"),
    lambda checkpoint: without(last(checkpoint / "offsets")),
]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_checkpoint_that_lost_files_is_replaced_by_the_driver(site: Site) -> None:
    driver = site.start_driver()
    site.send()
    site.wait_published(driver)
    for generation, damage in enumerate(DAMAGES, 1):
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0
        site.send()
        path = damage(site.checkpoint / str(generation))
        driver = site.start_driver()
        site.wait_published(driver)
        event = site.wait_state("running", driver)["event"]
        assert f"checkpoint replaced by generation {generation + 1}" in event
        assert str(path) in event
    assert site.command("repair", site.dataset).returncode == REFUSED
    written = {commit.app_id for commit in commits(bronze_path(site.settings, site.dataset)) if commit.app_id}
    assert written == {f"{site.dataset}/bronze/{number}" for number in range(1, len(DAMAGES) + 2)}
    site.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_damaged_checkpoint_is_refused_and_repaired(site: Site) -> None:
    driver = site.start_driver()
    site.send()
    site.wait_published(driver)
    whole = site.command("repair", site.dataset)
    assert (whole.returncode, f"owned by process {driver.process.pid}" in whole.stderr) == (REFUSED, True)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    site.send()

    path = without(site.checkpoint / "generation.json")
    refused = site.start_driver()
    assert refused.wait() == REFUSED
    assert str(path) in refused.log_text()
    assert f"headrace repair {site.dataset}" in refused.log_text()
    assert site.status()["state"] == "failed"

    dry_run = site.command("repair", site.dataset, "--dry-run")
    assert (dry_run.returncode, "generation.json" in dry_run.stdout, "generation 2" in dry_run.stdout) == (
        DECLINED,
        True,
        True,
    )
    assert not (site.checkpoint / "generation.json").exists()
    assert site.command("repair", site.dataset, "--yes").returncode == 0
    again = site.command("repair", site.dataset)
    assert (again.returncode, "nothing to repair" in again.stdout) == (0, True)
    successor = site.start_driver()
    site.wait_published(successor)
    written = {commit.app_id for commit in commits(bronze_path(site.settings, site.dataset)) if commit.app_id}
    assert written == {f"{site.dataset}/bronze/1", f"{site.dataset}/bronze/2"}
    assert (site.checkpoint / "1").is_dir()
    site.assert_nothing_lost()
