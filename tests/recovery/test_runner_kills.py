"""The runner's guarantees with a real broker and real drivers: what ends together, what restarts, and how soon.

The tests share one state folder, in this order; each starts what it needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from recovery_site import TEMPLATE, Site, close_broker, copy_dataset, wait_until

from include.ground.paths import bronze_path, log_path, run_path
from include.ground.settings import CLONE, Settings
from include.state.process_states import BROKER, RUNNER, stream_name
from include.state.run_files import RunFile, read_run_file

pytestmark = pytest.mark.extended

COMMITTING_WITHIN = 30.0
ORPHANS_GONE_WITHIN = 5.0
DATASET = "kept"
NOT_STARTED, REFUSED = 1, 2
# No JVM starts with this; what it does not know, Spark has it ignore.
NO_JVM = {"HEADRACE_DRIVER_JVM": "-XX:ReservedCodeCacheSize=1k"}


@pytest.fixture(scope="module")
def runner_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A dataset in its own state folder, which only `headrace` commands touch."""
    root = tmp_path_factory.mktemp("kept by a runner")
    settings = Settings(state=root / "state", datasets=root / "datasets", driver_memory="1g")
    copy_dataset(TEMPLATE, settings.datasets / DATASET, DATASET)
    yield Site(settings, DATASET)
    close_broker(settings)


def up(site: Site) -> None:
    done = site.command("up", site.dataset)
    assert done.returncode == 0, done.stdout + done.stderr


def run_of(site: Site, name: str) -> RunFile:
    run = read_run_file(site.settings, name)
    assert run is not None, name
    return run


def driver_of(site: Site) -> RunFile:
    return run_of(site, stream_name(site.dataset))


def process_status(site: Site, name: str) -> dict[str, Any]:
    found = json.loads(site.command("status", "--json").stdout)["processes"]
    return next(process for process in found if process["name"] == name)


def driver_starts(site: Site) -> int:
    text = log_path(site.settings, RUNNER).read_text("utf-8")
    return text.count(f"{stream_name(site.dataset)}: started")


def bronze_commits(site: Site) -> int:
    return sum(1 for _ in (bronze_path(site.settings, site.dataset) / "_delta_log").glob("*.json"))


def at_work(site: Site) -> None:
    """Start the stream, and wait until its first records are published."""
    up(site)
    site.send()
    wait_until(site.is_published, f"{site.dataset} is published")


@pytest.mark.timeout(600)
def test_driver_that_fails_five_times_is_given_up_with_its_reason(runner_site: Site) -> None:
    began = time.monotonic()
    refused = runner_site.command("up", runner_site.dataset, **NO_JVM)
    print(f"\ngiven up after {time.monotonic() - began:.1f} s, the broker's start included")
    assert refused.returncode == NOT_STARTED, refused.stdout
    assert "JAVA_GATEWAY_EXITED" in refused.stderr
    assert driver_starts(runner_site) == 5
    stream = process_status(runner_site, stream_name(runner_site.dataset))
    assert (stream["state"], stream["pid"], stream["restarts"]) == ("failed", None, 4)
    assert "JAVA_GATEWAY_EXITED" in stream["last_error"]
    assert "5 times in a row" in stream["detail"]
    assert "JAVA_GATEWAY_EXITED" in runner_site.command("status", COLUMNS="400").stdout
    waited = runner_site.command("wait", "--caught-up", "--timeout", "60")
    time.sleep(3)
    assert driver_starts(runner_site) == 5, "it is not started until it is requested again"
    assert runner_site.command("up", runner_site.dataset, **NO_JVM).returncode == NOT_STARTED
    assert driver_starts(runner_site) == 10
    assert runner_site.command("down").returncode == 0
    assert waited.returncode == 0, "nothing was in Kafka: nothing to wait for"


@pytest.mark.timeout(600)
def test_killed_driver_commits_again_within_30_seconds(runner_site: Site) -> None:
    began = time.monotonic()
    up(runner_site)
    runner_site.send()
    wait_until(lambda: bronze_commits(runner_site) > 1, "the first batch")
    # On a machine that is busy with other tests any start takes long; then no longer than the first one did.
    allowed = max(COMMITTING_WITHIN, time.monotonic() - began)
    first = driver_of(runner_site)
    with runner_site.sending():
        before = bronze_commits(runner_site)
        wait_until(lambda: bronze_commits(runner_site) > before + 1, "bronze goes on")
        os.kill(first.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert first.wait_gone(5)
        before = bronze_commits(runner_site)
        wait_until(lambda: bronze_commits(runner_site) > before, "bronze goes on after the kill", within=120)
        seconds = time.monotonic() - killed
    print(f"\ncommitting again {seconds:.1f} s after kill -9 of the driver, of {allowed:.1f} s")
    assert seconds <= allowed
    assert driver_of(runner_site).pid != first.pid
    stream = process_status(runner_site, stream_name(runner_site.dataset))
    assert (stream["restarts"], stream["last_error"]) == (1, "it was killed by SIGKILL")
    wait_until(runner_site.is_published, "all is published")
    runner_site.assert_nothing_lost()


@pytest.mark.timeout(600)
def test_second_runner_is_refused_and_names_the_first(runner_site: Site) -> None:
    up(runner_site)
    first, before = run_of(runner_site, RUNNER), run_path(runner_site.settings, RUNNER).read_bytes()
    second = subprocess.run(
        [sys.executable, "-m", "include.run.runner"],
        cwd=CLONE,
        env=runner_site.environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == REFUSED
    assert f"pid {first.pid} on {first.host} since" in second.stdout
    assert run_path(runner_site.settings, RUNNER).read_bytes() == before
    assert first.is_alive()


@pytest.mark.timeout(600)
def test_killed_broker_is_restarted(runner_site: Site) -> None:
    at_work(runner_site)
    broker, driver = run_of(runner_site, BROKER), driver_of(runner_site)
    os.kill(broker.pid, signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: process_status(runner_site, BROKER)["state"] == "running", "the broker is back", within=120)
    print(f"\nthe broker answers {time.monotonic() - killed:.1f} s after its kill -9")
    assert run_of(runner_site, BROKER).pid != broker.pid
    runner_site.send()
    wait_until(runner_site.is_published, "all is published")
    assert driver_of(runner_site) == driver, "the driver waited for the broker"
    runner_site.assert_nothing_lost()


@pytest.mark.timeout(600)
def test_killed_runner_leaves_no_orphans_and_the_next_one_continues(runner_site: Site) -> None:
    at_work(runner_site)
    runner, broker, driver = (
        run_of(runner_site, RUNNER),
        run_of(runner_site, BROKER),
        psutil.Process(driver_of(runner_site).pid),
    )
    family = [driver, *driver.children(recursive=True)]
    assert any(process.name() == "java" for process in family)
    with runner_site.sending():
        before = bronze_commits(runner_site)
        wait_until(lambda: bronze_commits(runner_site) > before, "bronze goes on")
        os.kill(runner.pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: not any(alive(process) for process in family), "all of the driver is gone", within=60)
        seconds = time.monotonic() - killed
        print(f"\nthe driver and its JVM are gone {seconds:.1f} s after kill -9 of the runner")
        assert seconds <= ORPHANS_GONE_WITHIN
    assert broker.is_alive(), "producers do not depend on the runner's health"
    assert process_status(runner_site, RUNNER)["state"] == "crashed"
    assert process_status(runner_site, stream_name(runner_site.dataset))["state"] == "crashed"
    up(runner_site)
    assert run_of(runner_site, BROKER) == broker
    wait_until(runner_site.is_published, "all is published")
    runner_site.assert_nothing_lost()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(600)
def test_sigterm_drains_at_a_batch_boundary_and_keeps_the_desired_state(runner_site: Site) -> None:
    at_work(runner_site)
    runner, broker, driver = run_of(runner_site, RUNNER), run_of(runner_site, BROKER), driver_of(runner_site)
    with runner_site.sending():
        before = bronze_commits(runner_site)
        wait_until(lambda: bronze_commits(runner_site) > before, "bronze goes on")
        # The feed ends first: there is nobody to take its records any more.
        runner_told = time.monotonic()
    os.kill(runner.pid, signal.SIGTERM)
    wait_until(lambda: not any(run.is_alive() for run in (runner, broker, driver)), "all has ended", within=120)
    print(f"\nall has ended {time.monotonic() - runner_told:.1f} s after SIGTERM")
    status = runner_site.status()
    assert (status["state"], status["pid"]) == ("stopped", driver.pid)
    left = sorted(path.name for path in run_path(runner_site.settings, "x").parent.glob("*.json"))
    assert left == ["runner.status.json", f"stream-{runner_site.dataset}.status.json"]
    assert {
        process_status(runner_site, name)["state"] for name in (RUNNER, BROKER, stream_name(runner_site.dataset))
    } == {"stopped"}
    up(runner_site)
    wait_until(runner_site.is_published, "all is published")
    runner_site.assert_nothing_lost()


@pytest.mark.timeout(600)
def test_damaged_checkpoint_is_not_retried_and_is_repaired(runner_site: Site) -> None:
    up(runner_site)
    assert runner_site.command("down", runner_site.dataset).returncode == 0
    assert run_of(runner_site, RUNNER).is_alive()
    assert run_of(runner_site, BROKER).is_alive()
    (runner_site.checkpoint / "generation.json").unlink()
    before = driver_starts(runner_site)
    refused = runner_site.command("up", runner_site.dataset)
    assert refused.returncode == NOT_STARTED
    assert "generation.json" in refused.stderr
    assert driver_starts(runner_site) == before + 1
    assert process_status(runner_site, stream_name(runner_site.dataset))["state"] == "failed"
    repaired = runner_site.command("repair", runner_site.dataset, "--yes")
    assert repaired.returncode == 0, repaired.stderr
    at_work(runner_site)
    runner_site.assert_nothing_lost()


@pytest.mark.timeout(600)
def test_down_ends_all_processes(runner_site: Site) -> None:
    up(runner_site)
    everything = [run_of(runner_site, RUNNER), run_of(runner_site, BROKER), driver_of(runner_site)]
    down = runner_site.command("down")
    assert down.returncode == 0, down.stderr
    assert not any(run.is_alive() for run in everything)
    assert not list(Path(runner_site.settings.state / "run").glob("*r.json"))
    assert "nothing was running" in runner_site.command("down").stdout


@pytest.mark.timeout(600)
def test_driver_whose_jvm_hangs_is_killed_and_restarted(runner_site: Site) -> None:
    """Its Python process still reports."""
    started = runner_site.command("up", runner_site.dataset, HEADRACE_STALL_SECONDS="45")
    assert started.returncode == 0, started.stdout + started.stderr
    runner_site.send()
    wait_until(runner_site.is_published, "all is published")
    hung = driver_of(runner_site)
    (jvm,) = (child for child in psutil.Process(hung.pid).children() if "java" in child.name())
    jvm.suspend()
    wait_until(lambda: driver_of(runner_site).pid != hung.pid, "another driver is started", within=180)
    stream = process_status(runner_site, stream_name(runner_site.dataset))
    assert "made no progress for" in stream["last_error"]
    assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE
    runner_site.send()
    wait_until(runner_site.is_published, "all is published")
    runner_site.assert_nothing_lost()
    assert runner_site.command("down").returncode == 0
