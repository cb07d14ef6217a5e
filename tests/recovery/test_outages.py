"""One driver through what can happen around it: a transformation out of order, a broker that dies, orders to stop."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Iterator

import pytest
from site_of_recovery import Driver, Site, await_that, open_broker

from include.paths import snapshot_path
from include.settings import Settings
from include.state.process_states import BROKER
from include.state.run_files import read_run_file, send, wait_gone

TROUBLE = re.compile(r"\bERROR\b|Traceback|Exception")


@pytest.fixture(scope="module")
def at_work(ground: Settings) -> Iterator[Site]:
    """A dataset whose driver runs, from one test of this module to the next."""
    site = Site(ground, "outages")
    site.prepare()
    site.drive()
    yield site
    site.end()


def running(site: Site) -> Driver:
    """Return the site's driver, started again when the last test ended it."""
    driver = site.drivers[-1] if site.drivers[-1].process.poll() is None else site.drive()
    site.await_state("running", driver)
    return driver


@pytest.mark.timeout(600)
def test_refine_out_of_order_does_not_stop_bronze(at_work: Site) -> None:
    driver = running(at_work)
    at_work.send()
    at_work.await_published(driver)
    release = snapshot_path(at_work.settings, at_work.dataset, at_work.publication()["release"])
    (release / "broken").touch()
    before = at_work.word()["ingested_batch"]
    at_work.send()
    said = at_work.await_state("halted", driver)
    assert said["reason"] == "the transformation is out of order"
    await_that(lambda: at_work.word()["ingested_batch"] > before, "bronze has the batch", driver)
    at_work.send()
    await_that(lambda: at_work.word()["ingested_batch"] > before + 1, "bronze has the next batch", driver)
    shown = json.loads(at_work.command("status", "--json").stdout)["datasets"][at_work.dataset]
    assert (shown["state"], shown["reason"]) == ("halted", "the transformation is out of order")
    assert not at_work.is_published()
    (release / "broken").unlink()
    at_work.await_published(driver)
    at_work.await_state("running", driver)
    at_work.refuse_any_loss()


@pytest.mark.timeout(600)
def test_broker_killed_and_brought_back(at_work: Site) -> None:
    driver = running(at_work)
    at_work.send()
    broker = read_run_file(at_work.settings, BROKER)
    assert broker is not None
    send(broker, signal.SIGKILL)
    assert wait_gone(broker, 20)
    said = at_work.await_state("waiting", driver)
    assert "broker" in said["reason"]
    assert said["lag_seconds"] is None
    open_broker(at_work.settings)
    at_work.send()
    at_work.await_published(driver)
    at_work.await_state("running", driver)
    at_work.refuse_any_loss()


@pytest.mark.timeout(600)
def test_told_to_stop_under_load_and_idle(at_work: Site) -> None:
    driver = running(at_work)
    enough = threading.Event()

    def feed() -> None:
        while not enough.is_set():
            at_work.send(40)

    feeding = threading.Thread(target=feed)
    before = at_work.word()["ingested_batch"]
    since = len(driver.said())
    feeding.start()
    try:
        await_that(lambda: at_work.word()["ingested_batch"] > before + 1, "bronze goes on", driver)
        driver.send(signal.SIGTERM)
        assert driver.ended() == 0
    finally:
        enough.set()
        feeding.join()
    assert at_work.word()["state"] == "stopped"
    assert not TROUBLE.search(driver.said()[since:]), driver.said()[since:]

    successor = at_work.drive()
    at_work.await_published(successor)
    successor.send(signal.SIGTERM)
    assert successor.ended() == 0
    assert not TROUBLE.search(successor.said()), successor.said()
    at_work.refuse_any_loss()
