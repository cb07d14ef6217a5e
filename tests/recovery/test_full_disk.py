"""A full disk under the state folder: no record is lost, the status names it, and the driver continues later."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from recovery_site import Driver, Site, wait_until

from include.ground.paths import run_path
from include.ground.settings import Settings
from include.state.process_states import BROKER

SHARED_MEMORY = Path("/dev/shm")
FULL = "No space left on device"


SMALL = 256 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that a test can fill: tmpfs, mounted by root, or a container's small `/dev/shm`.

    Elsewhere an ordinary user runs the test by `in_own_namespace`.
    """
    if is_small(SHARED_MEMORY):
        place = Path(tempfile.mkdtemp(prefix="small disk ", dir=SHARED_MEMORY))
        yield place
        shutil.rmtree(place)
        return
    place = tmp_path / "small disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def is_small(folder: Path) -> bool:
    """Whether a folder's whole file system is small enough to be filled."""
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize <= SMALL


def in_own_namespace(request: pytest.FixtureRequest) -> None:
    """Run the requesting test again where this user may mount a file system (Linux user namespace)."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", request.node.nodeid]
    subprocess.run(["unshare", "--map-root-user", "--mount", *argv], cwd=request.config.rootpath, check=True)


@pytest.fixture
def cramped(broker_settings: Settings, small_disk: Path) -> Iterator[Site]:
    """A dataset whose state folder, all but the broker, lies on the small disk."""
    settings = broker_settings.model_copy(update={"state": small_disk / "state"})
    copy = run_path(settings, BROKER)
    copy.parent.mkdir(parents=True)
    shutil.copyfile(run_path(broker_settings, BROKER), copy)
    site = Site(settings, "cramped")
    site.prepare()
    yield site
    site.kill_all()


def fill(disk: Path) -> Path:
    """Fill the disk, also with blocks that a driver frees meanwhile; return the file."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(disk).f_bavail == 0
    return ballast


def wait_disk_full(site: Site, driver: Driver) -> None:
    wait_until(lambda: FULL in (site.status().get("reason") or ""), "the status names the full disk", driver)
    assert site.status()["state"] in ("waiting", "halted", "failed")


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_driver_survives_a_full_disk_loses_nothing_and_is_reported(request: pytest.FixtureRequest) -> None:
    if is_small(SHARED_MEMORY) or os.geteuid() == 0:
        fill_twice(request.getfixturevalue("cramped"), request.getfixturevalue("small_disk"))
    else:
        in_own_namespace(request)


def fill_twice(cramped: Site, small_disk: Path) -> None:
    """Fill the disk under a running driver, and again under one that is then killed."""
    driver = cramped.start_driver()
    cramped.send()
    cramped.wait_published(driver)

    ballast = fill(small_disk)
    cramped.send()
    wait_disk_full(cramped, driver)
    assert not cramped.is_published()
    ballast.unlink()
    cramped.wait_published(driver)
    cramped.wait_state("running", driver)

    ballast = fill(small_disk)
    cramped.send()
    wait_disk_full(cramped, driver)
    driver.send(signal.SIGKILL)
    driver.wait()
    ballast.unlink()
    successor = cramped.start_driver()
    cramped.wait_published(successor)
    cramped.assert_nothing_lost()
