"""A damaged or lost checkpoint: the driver refuses it and names the file, and `headrace repair` repairs it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from recovery_site import Site

from include.clients.delta_log import commits
from include.paths import bronze_path

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
    lambda checkpoint: without_content(last(checkpoint / "1" / "offsets")),
    lambda checkpoint: without(checkpoint / "1" / "metadata"),
    lambda checkpoint: without(last(checkpoint / "1" / "offsets")),
    lambda checkpoint: without(checkpoint / "generation.json"),
]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_damaged_checkpoint_is_refused_and_repaired(site: Site, tmp_path: Path) -> None:
    driver = site.start_driver()
    site.send()
    site.wait_published(driver)
    whole = site.command("repair", site.dataset)
    assert (whole.returncode, f"owned by process {driver.process.pid}" in whole.stderr) == (REFUSED, True)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    site.send()

    saved_checkpoint = tmp_path / "kept"
    shutil.copytree(site.checkpoint, saved_checkpoint)
    for damage in DAMAGES:
        shutil.rmtree(site.checkpoint)
        shutil.copytree(saved_checkpoint, site.checkpoint)
        path = damage(site.checkpoint)
        refused = site.start_driver()
        assert refused.wait() == REFUSED, path
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
