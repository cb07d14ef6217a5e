"""One driver through outages: a failing transformation, a killed broker, SIGTERM."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator

import pytest
from recovery_site import Driver, Site, open_broker, wait_until

from include.ground.delta_log import commits
from include.ground.kafka import admin, ensure_topic
from include.ground.paths import bronze_path, release_path
from include.ground.settings import Settings
from include.state.process_states import BROKER
from include.state.run_files import read_run_file

FAILED = 1
# DuckDB names a class "PythonExceptionHandling" in its report of leaks at exit.
TROUBLE = re.compile(r"\bERROR\b|Traceback|Exception(?!Handling)")


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
@pytest.mark.extended
def test_failing_refine_does_not_stop_bronze(running_site: Site) -> None:
    driver = running(running_site)
    running_site.send()
    running_site.wait_published(driver)
    release = release_path(running_site.settings, running_site.dataset, running_site.publication()["release"])
    staging = release / "_staging"
    shutil.rmtree(staging, ignore_errors=True)
    staging.touch()
    before = running_site.status()["ingested_batch"]
    running_site.send()
    status = running_site.wait_state("halted", driver)
    assert str(staging) in status["reason"]
    wait_until(lambda: running_site.status()["ingested_batch"] > before, "bronze has the batch", driver)
    running_site.send()
    wait_until(lambda: running_site.status()["ingested_batch"] > before + 1, "bronze has the next batch", driver)
    shown = json.loads(running_site.command("status", "--json").stdout)["datasets"][running_site.dataset]
    assert shown["state"] == "halted"
    assert str(staging) in shown["reason"]
    assert not running_site.is_published()
    staging.unlink()
    running_site.wait_published(driver)
    running_site.wait_state("running", driver)
    running_site.assert_nothing_lost()


@pytest.mark.timeout(600)
@pytest.mark.extended
def test_driver_waits_for_a_killed_broker(running_site: Site) -> None:
    driver = running(running_site)
    running_site.send()
    broker = read_run_file(running_site.settings, BROKER)
    assert broker is not None
    broker.send(signal.SIGKILL)
    assert broker.wait_gone(20)
    status = running_site.wait_state("waiting", driver)
    assert "broker" in status["reason"]
    assert status["lag_seconds"] is None
    open_broker(running_site.settings)
    running_site.send()
    running_site.wait_published(driver)
    running_site.wait_state("running", driver)
    running_site.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_topic_recreated_under_a_running_driver_is_refused(site: Site) -> None:
    """The new topic has more records than the old one had, so that Spark would continue in it."""
    driver = site.start_driver()
    site.send(40)
    site.wait_published(driver)
    ended = site.publication()["offsets"]
    client = admin(site.bootstrap)
    client.delete_topics([site.dataset])[site.dataset].result(30)
    wait_until(lambda: site.dataset not in client.list_topics(timeout=10).topics, "the topic is gone")
    ensure_topic(site.bootstrap, site.dataset, 2)
    site.send(400)
    assert driver.wait(120) == FAILED
    assert "was deleted and created again" in driver.log_text()
    assert (site.status()["state"], site.status()["terminal"]) == ("failed", True)
    assert "created again" in site.status()["reason"]
    offsets = [
        commit.metadata["offsets"] for commit in commits(bronze_path(site.settings, site.dataset)) if commit.metadata
    ]
    assert {p: span[1] for p, span in offsets[-1].items()} == ended


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_sigterm_drains_under_load_and_idle(running_site: Site) -> None:
    driver = running(running_site)
    before = running_site.status()["ingested_batch"]
    since = len(driver.log_text())
    with running_site.sending(pause=0):
        wait_until(lambda: running_site.status()["ingested_batch"] > before + 1, "bronze goes on", driver)
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0
    assert running_site.status()["state"] == "stopped"
    assert not TROUBLE.search(driver.log_text()[since:]), driver.log_text()[since:]

    successor = running_site.start_driver()
    running_site.wait_published(successor)
    successor.send(signal.SIGTERM)
    assert successor.wait() == 0
    assert not TROUBLE.search(successor.log_text()), successor.log_text()
    running_site.assert_nothing_lost()
