"""The console as a process: the runner starts it, restarts it at the same address, and ends it."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from stand_ins import StandIns, runner_with

from include.ground.paths import log_path
from include.ground.ports import free_ports, listener
from include.ground.settings import Settings
from include.observe.processes import observe_process, switched_on
from include.run import runner
from include.run.runner import start_optional
from include.state.process_states import AIRFLOW, CONSOLE, ProcessState
from include.state.run_files import RunFile, read_run_file, started_at, write_run_file


@pytest.fixture
def site(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A runner in this process that keeps a real console, with stand-ins for the rest."""
    (port,) = free_ports(1)
    with runner_with(two_datasets, monkeypatch, console=str(port)) as found:
        yield found


def works(site: StandIns) -> bool:
    return observe_process(site.settings, CONSOLE).state is ProcessState.RUNNING


def test_killed_console_is_restarted_at_the_same_address(site: StandIns) -> None:
    site.until(lambda: works(site), log_path(site.settings, CONSOLE).name, within=60)
    before = read_run_file(site.settings, CONSOLE)
    assert before is not None
    with urllib.request.urlopen(f"{before.extra['page']}/health") as answer:
        assert answer.read() == b"ok"
    assert observe_process(site.settings, CONSOLE).detail == before.extra["page"]
    before.send(signal.SIGKILL)
    site.until(lambda: not works(site), "it was killed")
    site.until(lambda: works(site), "it runs again", within=60)
    again = read_run_file(site.settings, CONSOLE)
    assert again is not None
    assert (again.pid != before.pid, again.extra["page"]) == (True, before.extra["page"])
    site.runner.stopping = True
    site.until(lambda: site.step() and not again.is_alive(), "it ends with the runner")
    assert read_run_file(site.settings, CONSOLE) is None


def test_console_on_a_taken_port_is_given_up_and_says_why(site: StandIns) -> None:
    with listener(int(site.settings.console)):
        site.until(lambda: observe_process(site.settings, CONSOLE).state is ProcessState.FAILED)
        assert f"port {site.settings.console} is in use" in observe_process(site.settings, CONSOLE).detail


def test_console_is_not_started_when_it_is_off(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    found = StandIns(two_datasets.model_copy(update={"console": "off"}))
    monkeypatch.setattr(runner, "start_broker", found.start_broker)
    monkeypatch.setattr(runner, "start_optional", lambda *_: pytest.fail("it was started"))
    for _ in range(3):
        found.step()
    found.end()
    assert observe_process(found.settings, CONSOLE).state is ProcessState.STOPPED


def test_free_port_is_used_again(two_datasets: Settings) -> None:
    runs = []
    for _ in range(2):
        run = start_optional(two_datasets, CONSOLE)
        runs.append(run)
        run.send(signal.SIGKILL)
    assert runs[0].extra["page"] == runs[1].extra["page"]


@pytest.mark.parametrize(("api_url", "is_on"), [("", True), ("http://console:8081", False)])
def test_console_runs_with_airflow_unless_its_api_is_elsewhere(settings: Settings, api_url: str, is_on: bool) -> None:
    given = settings.model_copy(update={"console": "off", "api_url": api_url})
    assert switched_on(given)[CONSOLE] is False
    write_run_file(given, RunFile(AIRFLOW, os.getpid(), started_at(os.getpid()), [], {}))
    assert switched_on(given)[CONSOLE] is is_on
