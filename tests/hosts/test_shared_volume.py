"""Two containers on one volume, without a lease server: what one of them knows and does of the other's processes.

The tests go on from each other, in this order. Each command runs in a process namespace of its own, next to a process
that has the pid of the other container's driver.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from namespaced_hosts import Host, Network, namespaced_network
from recovery_site import Site, wait_until
from two_hosts import DATASET, drivers_on, published, service_environment, settle, shared_site

from include.run.child_process import driver_command
from include.state.process_states import RUNNER, stream_name
from include.state.run_files import EXPIRY, read_run_file
from include.state.streams import request_stream

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]
FOLDER = Path(__file__).parent
CLI = (sys.executable, "-m", "include.cli.main")
STREAM = stream_name(DATASET)
RUN = f"stream__{DATASET}/manual__1"
REFUSED = 2


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """A network without hosts."""
    with namespaced_network() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, network: Network) -> Iterator[Site]:
    """A dataset whose state folder both containers have."""
    with shared_site(tmp_path_factory.mktemp("volume"), network, None) as found:
        yield found


@pytest.fixture(scope="module")
def containers(network: Network, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """Two containers; the first one has a runner."""
    # Importing Airflow writes its configuration.
    airflow = {"AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))}
    found = [network.add_host(service_environment(site, airflow)) for _ in range(2)]
    found[0].start_runner(tmp_path_factory.mktemp("logs"))
    yield found
    for host in found:
        print(f"--- runner of {host.name}\n{host.log.read_text() if host.log.is_file() else ''}")


def pid_of(site: Site, name: str) -> int:
    """Return the pid that a process has in its own container."""
    run = read_run_file(site.settings, name)
    assert run is not None, name
    return run.pid


def with_same_pid(pid: int, *words: str) -> list[str]:
    """Return a command that runs next to another process with this pid, and fails when that is signalled."""
    return [sys.executable, str(FOLDER / "same_pid.py"), str(pid), *words]


def processes(host: Host, pid: int) -> dict[str, dict[str, Any]]:
    """Return what `headrace status` on a host says of the processes, next to one with this pid."""
    done = host.run(*with_same_pid(pid, *CLI, "status", "--json"))
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["processes"]}


def watched(site: Site, grace: float, *what: str) -> list[str]:
    """Return the command that waits for the stream as the triggerer of Airflow does."""
    since = request_stream(site.settings, DATASET, RUN).since.isoformat()
    return [sys.executable, str(FOLDER / "watched_stream.py"), DATASET, RUN, since, str(grace), *what]


def test_stream_requested_in_a_container_is_started_by_the_runner_of_another(
    site: Site, containers: list[Host]
) -> None:
    first, second = containers
    wait_until(lambda: read_run_file(site.settings, RUNNER) is not None, "the runner works", within=60)
    second.command("up", DATASET)
    site.send(200)
    wait_until(site.is_published, "the first records are published", within=120)
    assert (drivers_on(first), drivers_on(second)) == (1, 0)
    driver = pid_of(site, STREAM)
    found = processes(second, driver)
    assert (found[STREAM]["state"], found[STREAM]["pid"]) == ("running", driver)
    assert (found[RUNNER]["state"], found[RUNNER]["pid"]) == ("running", pid_of(site, RUNNER))


def test_locks_and_leases_of_one_container_exclude_the_other(site: Site, containers: list[Host]) -> None:
    first, second = containers
    before = read_run_file(site.settings, STREAM)
    runner = second.run(sys.executable, "-m", "include.run.runner")
    assert runner.returncode == REFUSED, runner.stdout + runner.stderr
    assert f"has another runner, pid {pid_of(site, RUNNER)} on {first.name}" in runner.stdout + runner.stderr
    driver = second.run(*driver_command(DATASET))
    assert driver.returncode == REFUSED, driver.stdout + driver.stderr
    assert read_run_file(site.settings, STREAM) == before
    batch = published(site)
    site.send(50)
    wait_until(lambda: published(site) > batch, "the owner goes on", within=60)


def test_down_in_a_container_signals_no_process_of_another(site: Site, containers: list[Host]) -> None:
    first, second = containers
    driver = pid_of(site, STREAM)
    down = second.run(*with_same_pid(driver, *CLI, "down"), HEADRACE_RUNNER="own")
    assert down.returncode == REFUSED, down.stdout + down.stderr
    assert f"is a process of {first.name}, another container or host; it was not signalled" in down.stderr
    wait_until(lambda: drivers_on(first) == 0, "its runner drains the stream that was released", within=60)
    assert processes(second, driver)[RUNNER]["state"] == "running"
    settle(site)


def test_silent_container_is_lost_for_the_others_and_ends_the_wait_of_the_triggerer(
    site: Site, containers: list[Host]
) -> None:
    first, second = containers
    waiting = watched(site, 5.0)
    wait_until(lambda: drivers_on(first) == 1, "the stream that the triggerer waits for is started", within=60)
    site.send(50)
    wait_until(site.is_published, "the records are published", within=120)
    driver = pid_of(site, STREAM)
    first.stop()
    try:
        event = json.loads(second.run(*with_same_pid(driver, *waiting)).stdout.splitlines()[-1])
        assert event["outcome"] == "breached"
        assert "is lost" in event["why"]
        found = processes(second, driver)
        assert (found[STREAM]["state"], found[STREAM]["pid"]) == ("lost", None)
        assert f"no heartbeat from {first.name}" in found[STREAM]["detail"]
    finally:
        first.resume()
    wait_until(lambda: processes(second, driver)[STREAM]["state"] == "running", "it is back", within=60)


def test_next_container_takes_over_at_once_from_a_killed_one(site: Site, containers: list[Host]) -> None:
    first, second = containers
    driver = pid_of(site, STREAM)
    with site.sending():
        first.kill()
        second.start_runner(first.log.parent)
        wait_until(lambda: drivers_on(second) == 1, "the next one has started a driver", within=EXPIRY - 10)
        batch = published(site)
        wait_until(lambda: published(site) > batch + 1, "the next one publishes", within=120)
    assert f"{STREAM}: forgotten, it was pid {driver} on {first.name}" in second.log.read_text()
    settle(site)


def test_run_that_a_person_stops_is_drained_by_the_container_with_the_driver(
    site: Site, containers: list[Host]
) -> None:
    second = containers[1]
    done = second.run(*watched(site, 60.0, "release"))
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: drivers_on(second) == 0, "the stream is drained", within=60)
    settle(site)
