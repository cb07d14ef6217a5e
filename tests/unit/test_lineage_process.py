"""The process that sends OpenLineage events: started by the runner when a receiver is set, waiting while it is gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from ledgered_stream import Stream
from lineage_receiver import LineageReceiver
from stand_ins import StandIns, runner_with

from include.declare.dataset import snapshot_dataset
from include.ground.paths import log_path
from include.ground.settings import CLONE, Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.observe.processes import observe_process
from include.state.process_states import OPENLINEAGE, ProcessState
from include.state.run_files import read_run_file

GOLD = ("carrier_hours", "route_days", "flight_status", "worst_delays")


@pytest.fixture
def http() -> LineageReceiver:
    return LineageReceiver()


@pytest.fixture
def site(two_datasets: Settings, http: LineageReceiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    """A runner in this process that keeps a real sender, with stand-ins for the rest."""
    with (
        http.up(),
        runner_with(
            two_datasets, monkeypatch, console="off", openlineage_url=http.url, openlineage_seconds="0.1"
        ) as found,
    ):
        yield found


def state(site: StandIns) -> ProcessState:
    return observe_process(site.settings, OPENLINEAGE).state


def published(site: StandIns) -> Stream:
    """Publish the first batch of flights, whose snapshot is in the state folder."""
    declared = site.settings.model_copy(update={"datasets": CLONE / "include" / "datasets"})
    stream = Stream(site.settings, release=snapshot_dataset(declared, "flights").release, gold=GOLD)
    stream.run(0, 0)
    project_dataset(open_writer(site.settings), site.settings, "flights")
    return stream


def test_sender_waits_for_its_receiver_says_so_and_ends_with_the_runner(site: StandIns, http: LineageReceiver) -> None:
    http.codes += [503] * 1000
    published(site)
    site.until(lambda: state(site) is ProcessState.WAITING, log_path(site.settings, OPENLINEAGE).name, within=60)
    assert "HTTP 503" in observe_process(site.settings, OPENLINEAGE).detail
    http.codes.clear()
    site.until(lambda: state(site) is ProcessState.RUNNING, "events are accepted again")
    assert observe_process(site.settings, OPENLINEAGE).detail == http.url
    assert len(http.run_ids("flights.gold.route_days")) == 1
    run = read_run_file(site.settings, OPENLINEAGE)
    assert run is not None
    site.runner.stopping = True
    site.until(lambda: site.step() and not run.is_alive(), "it ends with the runner")
    assert read_run_file(site.settings, OPENLINEAGE) is None


def test_killed_sender_is_restarted_and_completes_the_run_that_it_had_begun(
    site: StandIns, http: LineageReceiver
) -> None:
    stream = published(site)
    site.until(lambda: bool(http.of("flights.gold.worst_delays")), "the first run is sent", within=60)
    http.codes += [201] * 3 + [503] * 1000
    stream.run(1, 1)
    project_dataset(open_writer(site.settings), site.settings, "flights")
    site.until(lambda: state(site) is ProcessState.WAITING, "it is in the middle of the second run")
    begun = http.run_ids("flights.ingest")
    run = read_run_file(site.settings, OPENLINEAGE)
    assert run is not None
    run.send(signal.SIGKILL)
    stream.run(2, 2)
    project_dataset(open_writer(site.settings), site.settings, "flights")
    http.codes.clear()
    site.until(lambda: len(http.run_ids("flights.gold.worst_delays")) == 3, "all runs are sent", within=60)
    assert http.run_ids("flights.ingest")[:2] == begun
    counts = {
        e["run"]["runId"]: e["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"]
        for e in http.of("flights.ingest")
    }
    assert list(counts.values()) == [20, 20, 20]


def test_sender_is_not_started_without_a_receiver(two_datasets: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with runner_with(two_datasets, monkeypatch, console="off") as site:
        for _ in range(3):
            site.step()
        assert state(site) is ProcessState.STOPPED
