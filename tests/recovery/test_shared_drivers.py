"""Several datasets in one driver, through `headrace up`: each starts, fails, drains and is changed alone.

The tests share one state folder, in this order; each starts what it needs.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from recovery_site import TEMPLATE, Site, close_broker, copy_dataset, wait_until

from include.ground.paths import lease_path
from include.ground.settings import Settings
from include.observe.processes import observe_stream
from include.state.lease import is_lease_free
from include.state.process_states import ProcessState, stream_name
from include.state.run_files import is_alive, read_run_file

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


def site(settings: Settings, name: str, silver: str = "") -> Site:
    """Return a dataset of the shared driver, declared at the first call; `silver` is put before its code."""
    place = settings.datasets / name
    if not place.exists():
        copy_dataset(TEMPLATE, place, name)
        with (place / "pipeline.yaml").open("a") as file:
            file.write("\ndriver: small_topics\n")
    if silver:
        code = place / "silver.py"
        code.write_text(f"{code.read_text('utf-8')}\n{silver}\n")
    return Site(settings, name)


def up(*sites: Site) -> subprocess.CompletedProcess[str]:
    return sites[0].command("up", *(each.dataset for each in sites))


def pid_of(site: Site, name: str = "") -> int:
    run = read_run_file(site.settings, name or stream_name(site.dataset))
    assert run is not None, name or site.dataset
    assert is_alive(run), run
    return run.pid


def all_published(*sites: Site) -> None:
    for each in sites:
        wait_until(each.is_published, f"{each.dataset} is published")


@pytest.mark.timeout(600)
def test_datasets_come_go_and_fail_alone(settings: Settings) -> None:
    first, second, broken = (site(settings, name) for name in ("first", "second", "broken"))
    site(settings, "broken", 'raise ValueError("no such table")')
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
def test_kill_of_the_driver_or_of_one_place_loses_nothing(settings: Settings) -> None:
    first, second = site(settings, "first"), site(settings, "second")
    first.sent_count = second.sent_count = 10_000
    assert up(first, second).returncode == 0
    with first.sending(), second.sending():
        for _ in range(2):
            places, driver = (pid_of(first), pid_of(second)), pid_of(first, DRIVER)
            os.kill(driver, signal.SIGKILL)
            wait_until(lambda: goes_on(first, places[0]) and goes_on(second, places[1]), "both go on")  # noqa: B023
        beside, driver, place = pid_of(second), pid_of(first, DRIVER), pid_of(first)
        os.kill(place, signal.SIGKILL)
        wait_until(lambda: goes_on(first, place), "the first goes on")
        assert (pid_of(second), pid_of(second, DRIVER)) == (beside, driver)
    all_published(first, second)


def goes_on(site: Site, before: int) -> bool:
    """Whether another process than `before` holds the place of a dataset that works."""
    found = observe_stream(site.settings, site.dataset)
    return found.pid not in (None, before) and found.state is ProcessState.RUNNING
