"""Several datasets in one driver, through `headrace up`: each starts, fails, drains and is changed alone.

The tests share one state folder, in this order; each starts what it needs.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient
from recovery_site import TEMPLATE, Site, close_broker, copy_dataset, wait_until

from include.ground.kafka import BrokerUnreachable, ensure_topic
from include.ground.paths import lease_path
from include.ground.settings import Settings
from include.observe.processes import observe_stream
from include.state.lease import is_lease_free
from include.state.process_states import ProcessState, stream_name
from include.state.run_files import read_run_file

DRIVER = "driver:small_topics"
NOT_STARTED = 1


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A state folder that only `headrace` commands touch."""
    root = tmp_path_factory.mktemp("shared by datasets")
    found = Settings(state=root / "state", datasets=root / "datasets", driver_memory="1g")
    found.datasets.mkdir()
    yield found
    close_broker(found)


@pytest.fixture(scope="module")
def first(settings: Settings) -> Site:
    return site(settings, "first")


@pytest.fixture(scope="module")
def second(settings: Settings) -> Site:
    return site(settings, "second")


def site(settings: Settings, name: str, silver: str = "") -> Site:
    """Return a dataset of the shared driver; `silver` is put behind its code."""
    place = settings.datasets / name
    copy_dataset(TEMPLATE, place, name)
    with (place / "pipeline.yaml").open("a") as file:
        file.write("\ndriver: small_topics\n")
    with (place / "silver.py").open("a") as file:
        file.write(f"\n{silver}\n")
    return Site(settings, name)


def up(*sites: Site) -> subprocess.CompletedProcess[str]:
    return sites[0].command("up", *(each.dataset for each in sites))


def pid_of(site: Site, name: str = "") -> int:
    run = read_run_file(site.settings, name or stream_name(site.dataset))
    assert run is not None, name or site.dataset
    assert run.is_alive(), run
    return run.pid


def all_published(*sites: Site) -> None:
    for each in sites:
        wait_until(partial(is_published, each), f"{each.dataset} is published")


def is_published(site: Site) -> bool:
    """Whether everything is published; a topic that its driver has just created has no leader for a moment."""
    with suppress(BrokerUnreachable):
        return site.is_published()
    return False


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_datasets_come_go_and_fail_alone(settings: Settings, first: Site, second: Site) -> None:
    broken = site(settings, "broken", 'raise ValueError("no such table")')
    started = up(first, broken)
    assert (started.returncode, observe_stream(settings, "first").state) == (NOT_STARTED, ProcessState.RUNNING)
    failed = observe_stream(settings, "broken")
    assert (failed.state, failed.pid) == (ProcessState.FAILED, None)
    assert "no such table" in failed.detail
    assert is_lease_free(settings, lease_path(settings, "broken"))
    first.send()
    all_published(first)
    before = pid_of(first), pid_of(first, DRIVER)
    joined = up(second)
    assert joined.returncode == 0, joined.stdout + joined.stderr
    second.send()
    all_published(second)
    assert (pid_of(first), pid_of(second, DRIVER)) == before, "who comes later restarts nobody"
    assert f"in {DRIVER}" in second.command("status").stdout
    assert second.command("down", second.dataset).returncode == 0
    assert observe_stream(settings, "second").state is ProcessState.STOPPED
    second.send()
    first.send()
    all_published(first)
    assert (pid_of(first), pid_of(first, DRIVER)) == before
    assert not second.is_published()
    again = up(second)
    assert again.returncode == 0, again.stdout + again.stderr
    all_published(second)
    for each in (first, second):
        each.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_kill_of_the_driver_or_of_one_place_loses_nothing(first: Site, second: Site) -> None:
    assert up(first, second).returncode == 0
    with first.sending(), second.sending():
        for _ in range(2):
            places = pid_of(first), pid_of(second)
            os.kill(pid_of(first, DRIVER), signal.SIGKILL)
            for each, place in zip((first, second), places, strict=True):
                wait_until(partial(goes_on, each, place), f"{each.dataset} goes on")
        beside, place = (pid_of(second), pid_of(second, DRIVER)), pid_of(first)
        os.kill(place, signal.SIGKILL)
        wait_until(partial(goes_on, first, place), "the first goes on")
        assert (pid_of(second), pid_of(second, DRIVER)) == beside
    all_published(first, second)
    for each in (first, second):
        each.assert_nothing_lost()


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_release_and_preflight_concern_one_dataset(settings: Settings, first: Site, second: Site) -> None:
    assert up(first, second).returncode == 0
    beside = pid_of(second), pid_of(second, DRIVER)
    with (settings.datasets / "first" / "silver.py").open("a") as file:
        file.write("\n# another release\n")
    with first.sending(), second.sending():
        released = first.command("release", "run", "--dataset", "first", "--yes")
        assert released.returncode == 0, released.stdout + released.stderr
    all_published(first, second)
    for each in (first, second):
        each.assert_nothing_lost()
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    admin.delete_topics(["first"])["first"].result(30)
    wait_until(lambda: observe_stream(settings, "first").state is not ProcessState.RUNNING, "the first knows it")
    ensure_topic(first.bootstrap, "first", 2)
    wait_until(lambda: observe_stream(settings, "first").state is ProcessState.FAILED, "the first is given up")
    second.send()
    all_published(second)
    assert (pid_of(second), pid_of(second, DRIVER)) == beside
    second.assert_nothing_lost()


def goes_on(site: Site, before: int) -> bool:
    """Whether another process than `before` holds the place of a dataset that works."""
    found = observe_stream(site.settings, site.dataset)
    return found.pid not in (None, before) and found.state is ProcessState.RUNNING
