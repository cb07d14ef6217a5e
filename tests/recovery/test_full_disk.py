"""The disk under the state folder fills up: nothing is lost, the reason is told, and it goes on when there is room."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from site_of_recovery import Driver, Site, await_that

from include.paths import run_path
from include.settings import Settings
from include.state.process_states import BROKER

FULL = "No space left on device"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 MB (tmpfs, as root)."""
    place = tmp_path / "small disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def cramped(ground: Settings, small_disk: Path) -> Iterator[Site]:
    """A dataset whose state folder, all but the broker, lies on the small disk."""
    settings = ground.model_copy(update={"state": small_disk / "state"})
    copy = run_path(settings, BROKER)
    copy.parent.mkdir(parents=True)
    shutil.copyfile(run_path(ground, BROKER), copy)
    site = Site(settings, "cramped")
    site.prepare()
    yield site
    site.end()


def fill(disk: Path) -> Path:
    """Take all the room there is, also what a driver gives back meanwhile; return the file that has it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(disk).f_bavail == 0
    return ballast


def await_told(site: Site, driver: Driver) -> None:
    await_that(lambda: FULL in (site.word().get("reason") or ""), "the driver says that the disk is full", driver)
    assert site.word()["state"] in ("waiting", "halted", "failed")


@pytest.mark.timeout(600)
def test_full_disk(cramped: Site, small_disk: Path) -> None:
    driver = cramped.drive()
    cramped.send()
    cramped.await_published(driver)

    ballast = fill(small_disk)
    cramped.send()
    await_told(cramped, driver)
    assert not cramped.is_published()
    ballast.unlink()
    cramped.await_published(driver)
    cramped.await_state("running", driver)

    ballast = fill(small_disk)
    cramped.send()
    await_told(cramped, driver)
    driver.send(signal.SIGKILL)
    driver.ended()
    ballast.unlink()
    successor = cramped.drive()
    cramped.await_published(successor)
    cramped.refuse_any_loss()
