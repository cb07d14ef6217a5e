"""The runner's promises with a real broker and real drivers: who dies with whom, who comes back, and how soon.

One state folder for all of them, in this order; each test brings up what it needs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from site_of_recovery import TEMPLATE, Site, await_that, close_broker, copy_dataset

from include.paths import bronze_path, log_path, run_path
from include.settings import CLONE, Settings
from include.state.process_states import BROKER, RUNNER, stream_name
from include.state.run_files import RunFile, is_alive, read_run_file, wait_gone

pytestmark = pytest.mark.extended

COMMITTING_WITHIN = 30.0
ORPHANS_GONE_WITHIN = 5.0
DATASET = "kept"
NOT_STARTED, REFUSED = 1, 2
# No JVM starts with this; what it does not know, Spark has it ignore.
NO_JVM = {"HEADRACE_DRIVER_JVM": "-XX:ReservedCodeCacheSize=1k", "HEADRACE_RESTART_SECONDS": "0.1"}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A dataset in a state folder of its own, which only `headrace` touches."""
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


def process_seen(site: Site, name: str) -> dict[str, Any]:
    found = json.loads(site.command("status", "--json").stdout)["processes"]
    return next(process for process in found if process["name"] == name)


def tries(site: Site) -> int:
    text = log_path(site.settings, RUNNER).read_text("utf-8")
    return text.count(f"{stream_name(site.dataset)}: started")


def bronze_commits(site: Site) -> int:
    return sum(1 for _ in (bronze_path(site.settings, site.dataset) / "_delta_log").glob("*.json"))


@contextmanager
def feed(site: Site) -> Iterator[None]:
    """Records come all the time, as far as there is a broker to take them."""
    enough = threading.Event()

    def send() -> None:
        while not enough.is_set():
            site.send(40)
            enough.wait(0.1)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def at_work(site: Site) -> None:
    """Bring it up and let it commit under a feed, so that what comes strikes it in the middle."""
    up(site)
    site.send()
    await_that(site.is_published, f"{site.dataset} is published")


@pytest.mark.timeout(600)
def test_a_driver_that_fails_at_once_five_times_is_failed_and_says_why(kept: Site) -> None:
    began = time.monotonic()
    refused = kept.command("up", kept.dataset, **NO_JVM)
    print(f"\ngiven up after {time.monotonic() - began:.1f} s, the broker's start included")
    assert refused.returncode == NOT_STARTED, refused.stdout
    assert "JAVA_GATEWAY_EXITED" in refused.stderr
    assert tries(kept) == 5
    stream = process_seen(kept, stream_name(kept.dataset))
    assert (stream["state"], stream["pid"], stream["restarts"]) == ("failed", None, 4)
    assert "JAVA_GATEWAY_EXITED" in stream["last_error"]
    assert "5 times in a row" in stream["detail"]
    assert "JAVA_GATEWAY_EXITED" in kept.command("status", COLUMNS="400").stdout
    waited = kept.command("wait", "--caught-up", "--timeout", "60")
    time.sleep(3)
    assert tries(kept) == 5, "it is left alone until it is wanted anew"
    assert kept.command("up", kept.dataset, **NO_JVM).returncode == NOT_STARTED
    assert tries(kept) == 10
    assert kept.command("down").returncode == 0
    assert waited.returncode == 0, "nothing was in Kafka: nothing to wait for"


@pytest.mark.timeout(600)
def test_a_killed_driver_commits_again_within_30_seconds_without_a_command(kept: Site) -> None:
    began = time.monotonic()
    up(kept)
    kept.send()
    await_that(lambda: bronze_commits(kept) > 1, "the first batch")
    # On a machine that is busy with other tests any start takes long; then no longer than the first one did.
    allowed = max(COMMITTING_WITHIN, time.monotonic() - began)
    first = driver_of(kept)
    with feed(kept):
        before = bronze_commits(kept)
        await_that(lambda: bronze_commits(kept) > before + 1, "bronze goes on")
        os.kill(first.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert wait_gone(first, 5)
        before = bronze_commits(kept)
        await_that(lambda: bronze_commits(kept) > before, "bronze goes on after the kill", within=120)
        seconds = time.monotonic() - killed
    print(f"\ncommitting again {seconds:.1f} s after kill -9 of the driver, of {allowed:.1f} s")
    assert seconds <= allowed
    assert driver_of(kept).pid != first.pid
    stream = process_seen(kept, stream_name(kept.dataset))
    assert (stream["restarts"], stream["last_error"]) == (1, "it was killed by SIGKILL")
    await_that(kept.is_published, "all is published")
    kept.refuse_any_loss()


@pytest.mark.timeout(600)
def test_a_second_runner_is_refused_and_names_the_first(kept: Site) -> None:
    up(kept)
    first, before = run_of(kept, RUNNER), run_path(kept.settings, RUNNER).read_bytes()
    second = subprocess.run(
        [sys.executable, "-m", "include.process_control.runner"],
        cwd=CLONE,
        env=kept.environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == REFUSED
    assert f"pid {first.pid} since" in second.stdout
    assert run_path(kept.settings, RUNNER).read_bytes() == before
    assert is_alive(first)


@pytest.mark.timeout(600)
def test_a_killed_broker_comes_back_without_a_command(kept: Site) -> None:
    at_work(kept)
    broker, driver = run_of(kept, BROKER), driver_of(kept)
    os.kill(broker.pid, signal.SIGKILL)
    killed = time.monotonic()
    await_that(lambda: process_seen(kept, BROKER)["state"] == "running", "the broker is back", within=120)
    print(f"\nthe broker answers {time.monotonic() - killed:.1f} s after its kill -9")
    assert run_of(kept, BROKER).pid != broker.pid
    kept.send()
    await_that(kept.is_published, "all is published")
    assert driver_of(kept) == driver, "the driver waited for the broker"
    kept.refuse_any_loss()


@pytest.mark.timeout(600)
def test_a_killed_runner_leaves_no_orphan_and_the_next_one_goes_on(kept: Site) -> None:
    at_work(kept)
    runner, broker, driver = run_of(kept, RUNNER), run_of(kept, BROKER), psutil.Process(driver_of(kept).pid)
    family = [driver, *driver.children(recursive=True)]
    assert any(process.name() == "java" for process in family)
    with feed(kept):
        before = bronze_commits(kept)
        await_that(lambda: bronze_commits(kept) > before, "bronze goes on")
        os.kill(runner.pid, signal.SIGKILL)
        killed = time.monotonic()
        await_that(lambda: not any(alive(process) for process in family), "all of the driver is gone", within=60)
        seconds = time.monotonic() - killed
        print(f"\nthe driver and its JVM are gone {seconds:.1f} s after kill -9 of the runner")
        assert seconds <= ORPHANS_GONE_WITHIN
    assert is_alive(broker), "producers do not depend on the runner's health"
    assert process_seen(kept, RUNNER)["state"] == "crashed"
    assert process_seen(kept, stream_name(kept.dataset))["state"] == "crashed"
    up(kept)
    assert run_of(kept, BROKER) == broker
    await_that(kept.is_published, "all is published")
    kept.refuse_any_loss()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(600)
def test_sigterm_drains_at_a_batch_boundary_and_what_is_wanted_stays_so(kept: Site) -> None:
    at_work(kept)
    runner, broker, driver = run_of(kept, RUNNER), run_of(kept, BROKER), driver_of(kept)
    with feed(kept):
        before = bronze_commits(kept)
        await_that(lambda: bronze_commits(kept) > before, "bronze goes on")
        # The feed ends first: there is nobody to take its records any more.
        runner_told = time.monotonic()
    os.kill(runner.pid, signal.SIGTERM)
    await_that(lambda: not any(is_alive(run) for run in (runner, broker, driver)), "all has ended", within=120)
    print(f"\nall has ended {time.monotonic() - runner_told:.1f} s after SIGTERM")
    said = kept.word()
    assert (said["state"], said["pid"]) == ("stopped", driver.pid)
    left = sorted(path.name for path in run_path(kept.settings, "x").parent.glob("*.json"))
    assert left == ["runner.status.json", f"stream-{kept.dataset}.status.json"]
    assert {process_seen(kept, name)["state"] for name in (RUNNER, BROKER, stream_name(kept.dataset))} == {"stopped"}
    up(kept)
    await_that(kept.is_published, "all is published")
    kept.refuse_any_loss()


@pytest.mark.timeout(600)
def test_a_damaged_checkpoint_is_tried_once_and_repaired(kept: Site) -> None:
    up(kept)
    assert kept.command("down", kept.dataset).returncode == 0
    assert is_alive(run_of(kept, RUNNER))
    assert is_alive(run_of(kept, BROKER))
    (kept.checkpoint / "generation.json").unlink()
    before = tries(kept)
    refused = kept.command("up", kept.dataset)
    assert refused.returncode == NOT_STARTED
    assert "generation.json" in refused.stderr
    assert tries(kept) == before + 1
    assert process_seen(kept, stream_name(kept.dataset))["state"] == "failed"
    repaired = kept.command("repair", kept.dataset, "--yes")
    assert repaired.returncode == 0, repaired.stderr
    at_work(kept)
    kept.refuse_any_loss()


@pytest.mark.timeout(600)
def test_down_ends_everything(kept: Site) -> None:
    up(kept)
    everything = [run_of(kept, RUNNER), run_of(kept, BROKER), driver_of(kept)]
    down = kept.command("down")
    assert down.returncode == 0, down.stderr
    assert not any(is_alive(run) for run in everything)
    assert not list(Path(kept.settings.state / "run").glob("*r.json"))
    assert "nothing was running" in kept.command("down").stdout
