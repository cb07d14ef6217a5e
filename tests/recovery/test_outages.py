"""One driver through outages: a failing transformation, a killed broker, SIGTERM."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator

import pytest
from recovery_site import Driver, Site, open_broker, wait_until

from include.paths import snapshot_path
from include.settings import Settings
from include.state.process_states import BROKER
from include.state.run_files import read_run_file, send, wait_gone

TROUBLE = re.compile(r"\bERROR\b|Traceback|Exception")


@pytest.fixture(scope="module")
def running_site(broker_settings: Settings) -> Iterator[Site]:
    """A dataset whose driver runs throughout this module."""
    site = Site(broker_settings, "outages")
    site.prepare()
    site.start_driver()
    yield site
    site.kill_all()


def running(site: Site) -> Driver:
    """Return the site's driver, restarted if the previous test ended it."""
    driver = site.drivers[-1] if site.drivers[-1].process.poll() is None else site.start_driver()
    site.wait_state("running", driver)
    return driver


@pytest.mark.timeout(600)
def test_failing_refine_does_not_stop_bronze(running_site: Site) -> None:
    driver = running(running_site)
    running_site.send()
    running_site.wait_published(driver)
    release = snapshot_path(running_site.settings, running_site.dataset, running_site.publication()["release"])
    (release / "broken").touch()
    before = running_site.status()["ingested_batch"]
    running_site.send()
    said = running_site.wait_state("halted", driver)
    assert said["reason"] == "the transformation is out of order"
    wait_until(lambda: running_site.status()["ingested_batch"] > before, "bronze has the batch", driver)
    running_site.send()
    wait_until(lambda: running_site.status()["ingested_batch"] > before + 1, "bronze has the next batch", driver)
    shown = json.loads(running_site.command("status", "--json").stdout)["datasets"][running_site.dataset]
    assert (shown["state"], shown["reason"]) == ("halted", "the transformation is out of order")
    assert not running_site.is_published()
    (release / "broken").unlink()
    running_site.wait_published(driver)
    running_site.wait_state("running", driver)
    running_site.assert_nothing_lost()


@pytest.mark.timeout(600)
def test_driver_waits_for_a_killed_broker(running_site: Site) -> None:
    driver = running(running_site)
    running_site.send()
    broker = read_run_file(running_site.settings, BROKER)
    assert broker is not None
    send(broker, signal.SIGKILL)
    assert wait_gone(broker, 20)
    said = running_site.wait_state("waiting", driver)
    assert "broker" in said["reason"]
    assert said["lag_seconds"] is None
    open_broker(running_site.settings)
    running_site.send()
    running_site.wait_published(driver)
    running_site.wait_state("running", driver)
    running_site.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_sigterm_drains_under_load_and_idle(running_site: Site) -> None:
    driver = running(running_site)
    enough = threading.Event()

    def sending() -> None:
        while not enough.is_set():
            running_site.send(40)

    feeding = threading.Thread(target=sending)
    before = running_site.status()["ingested_batch"]
    since = len(driver.log_text())
    feeding.start()
    try:
        wait_until(lambda: running_site.status()["ingested_batch"] > before + 1, "bronze goes on", driver)
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0
    finally:
        enough.set()
        feeding.join()
    assert running_site.status()["state"] == "stopped"
    assert not TROUBLE.search(driver.log_text()[since:]), driver.log_text()[since:]

    successor = running_site.start_driver()
    running_site.wait_published(successor)
    successor.send(signal.SIGTERM)
    assert successor.wait() == 0
    assert not TROUBLE.search(successor.log_text()), successor.log_text()
    running_site.assert_nothing_lost()
