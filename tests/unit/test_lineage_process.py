"""The process that sends OpenLineage events: the runner starts it when a receiver is set, and ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lineage_receiver import LineageReceiver
from stand_ins import StandIns, runner_with

from include.paths import log_path
from include.settings import Settings
from include.state.process_states import OPENLINEAGE, ProcessState
from include.state.run_files import is_alive, read_run_file
from include.status.process_status import observe_openlineage


@pytest.fixture
def site(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A runner in this process that keeps a real sender, with stand-ins for the rest."""
    http = LineageReceiver()
    with (
        http.up(),
        runner_with(two_datasets, monkeypatch, console="off", openlineage_url=http.url) as found,
    ):
        yield found


def test_sender_runs_names_its_receiver_and_ends_with_the_runner(site: StandIns) -> None:
    def works() -> bool:
        return observe_openlineage(site.settings).state is ProcessState.RUNNING

    site.until(works, log_path(site.settings, OPENLINEAGE).name, within=60)
    run = read_run_file(site.settings, OPENLINEAGE)
    assert run is not None
    assert observe_openlineage(site.settings).detail == site.settings.openlineage_url
    site.runner.stopping = True
    site.until(lambda: site.step() and not is_alive(run), "it ends with the runner")
    assert read_run_file(site.settings, OPENLINEAGE) is None


def test_sender_is_not_started_without_a_receiver(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with runner_with(two_datasets, monkeypatch, console="off") as site:
        for _ in range(3):
            site.step()
        assert observe_openlineage(site.settings).state is ProcessState.STOPPED
