"""Status shows known values and names unknown ones; wait ends when everything is published or cannot be."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ledgered_stream import RELEASE, Stream
from rich.console import Console
from typer.testing import CliRunner

from include.cli import status as status_command
from include.cli.main import app
from include.declare.dataset import content_hash
from include.ground.delta_log import LOG, commit_name
from include.ground.kafka import BrokerUnreachable
from include.ground.paths import silver_path, status_path
from include.ground.settings import Settings, load_settings
from include.observe import progress
from include.observe.ledger_writer import open_writer, project_dataset
from include.observe.progress import CatchUpProgress, TopicExtent, observe_catch_up, observe_progress, offsets_behind
from include.serve.observer import LiveObserver
from include.state.process_states import (
    BROKER,
    RUNNER,
    ProcessRecord,
    ProcessState,
    ProcessStatus,
    RunnerRecord,
    runner_record_file,
)
from include.state.run_files import RunFile, started_at, write_run_file
from include.state.streams import request_stream

GONE = 2**22 - 1
FLIGHTS = "stream:flights"


class Broker:
    """Kafka's offsets as a test sets them; `ends` None: the broker does not answer."""

    def __init__(self) -> None:
        self.ends: Mapping[str, Mapping[int, int]] | None = {"flights": {0: 0, 1: 0}, "weather": {0: 0, 1: 0}}
        self.uncommitted: dict[int, int] = {}
        """Offsets of flights in open transactions, by partition."""

    def end(self, bootstrap: str, topic: str, timeout: float) -> dict[int, int]:
        if self.ends is None:
            raise BrokerUnreachable(bootstrap)
        return dict(self.ends[topic])

    def written(self, bootstrap: str, topic: str, timeout: float) -> dict[int, int]:
        uncommitted = self.uncommitted if topic == "flights" else {}
        return {p: end + uncommitted.get(p, 0) for p, end in self.end(bootstrap, topic, timeout).items()}

    def start(self, bootstrap: str, topic: str, timeout: float) -> dict[int, int]:
        return dict.fromkeys(self.end(bootstrap, topic, timeout), 0)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker that answers with the offsets it was given."""
    found = Broker()
    monkeypatch.setattr(progress, "bootstrap_servers", lambda settings: "127.0.0.1:9")
    monkeypatch.setattr(progress, "readable_end_offsets", found.end)
    monkeypatch.setattr(progress, "log_end_offsets", found.written)
    monkeypatch.setattr(progress, "log_start_offsets", found.start)
    return found


@pytest.fixture
def headrace(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The command line on the test's state folder."""
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    monkeypatch.setattr(status_command, "POLL_SECONDS", 0.02)
    load_settings.cache_clear()
    return CliRunner()


def write_driver_status(settings: Settings, pid: int, **fields: object) -> None:
    """Write the status and the run file of the driver of flights."""
    born = started_at(pid) if pid == os.getpid() else 1.0
    write_run_file(settings, RunFile(FLIGHTS, pid, born, ["driver"]))
    driver_status = {"state": "running", "reason": None, "pid": pid, "at": datetime.now(UTC).isoformat()} | fields
    status_path(settings, FLIGHTS).write_text(json.dumps(driver_status))


def projected_stream(settings: Settings, batches: int) -> Stream:
    """Return a stream whose batches were projected into the ledger."""
    stream = Stream(settings)
    stream.run(0, batches - 1)
    project_dataset(open_writer(settings), settings, "flights")
    return stream


def test_progress_has_rows_batches_rates_and_lag(settings: Settings, broker: Broker) -> None:
    projected_stream(settings, 2)
    broker.ends = {"flights": {0: 30, 1: 22}, "weather": {}}
    rates = {"ingest": 800.0, "refine": 700.5}
    write_driver_status(settings, os.getpid(), ingested_batch=3, refined_batch=1, rates=rates, lag_seconds=1.5)
    flights, weather = observe_progress(settings).datasets
    assert flights.process.state is ProcessState.RUNNING
    assert (flights.batches.ingested, flights.batches.refined, flights.batches.published) == (3, 1, 1)
    assert flights.rates == rates
    assert (flights.lag.offsets, flights.lag.seconds) == (8, 1.5)
    rows = {"kafka": 52, "bronze": 40, "silver": 34, "rejected": 6, "gold.carrier_hours": 101, "gold.route_days": 101}
    assert list(flights.rows.items()) == list(rows.items())
    assert flights.rejected == {"type": 4, "null": 2, "duplicate": 2}
    assert (weather.lag.offsets, weather.batches.ingested, weather.rows["bronze"]) == (0, None, 0)


def test_status_shows_when_the_folder_differs_from_the_published_release(settings: Settings, broker: Broker) -> None:
    Stream(settings, release=content_hash(settings.datasets / "flights")).run(0, 0)
    flights, weather = observe_progress(settings).datasets
    assert (flights.folder_differs, weather.folder_differs) == (False, None)
    Stream(settings, release=RELEASE).publish(0)
    assert observe_progress(settings).datasets[0].folder_differs is True


def test_missing_broker_and_ledger_leave_gaps_and_notes(settings: Settings, broker: Broker) -> None:
    Stream(settings).run(0, 0)
    broker.ends = None
    observed = observe_progress(settings)
    flights = observed.datasets[0]
    assert (flights.lag.offsets, flights.rows["kafka"], flights.rows["bronze"]) == (None, None, None)
    assert flights.batches.published == 0
    assert len(observed.notes) == 3
    assert any("has no snapshot" in note for note in observed.notes), "so its watermark is not known"
    assert any("no Kafka broker answers" in note for note in observed.notes)
    assert any("no ledger exists" in note for note in observed.notes)


def test_crashed_driver_has_no_rate_and_no_lag(settings: Settings, broker: Broker) -> None:
    broker.ends = {"flights": {0: 5}, "weather": {}}
    write_driver_status(settings, GONE, rates={"ingest": 9.0, "refine": 9.0}, lag_seconds=2.0, ingested_batch=-1)
    flights = observe_progress(settings).datasets[0]
    assert flights.process.state is ProcessState.CRASHED
    assert flights.rates == {"ingest": 0.0, "refine": 0.0}
    assert (flights.lag.offsets, flights.lag.seconds, flights.batches.ingested) == (5, None, None)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_unreadable_status_file_hides_nothing_else(settings: Settings, broker: Broker, text: str) -> None:
    projected_stream(settings, 1)
    write_driver_status(settings, os.getpid())
    status_path(settings, FLIGHTS).write_text(text)
    flights = observe_progress(settings).datasets[0]
    assert (flights.batches.ingested, flights.rows["bronze"]) == (0, 20)


def test_status_as_json_has_processes_and_datasets(settings: Settings, broker: Broker, headrace: CliRunner) -> None:
    projected_stream(settings, 1)
    write_driver_status(settings, GONE)
    result = headrace.invoke(app, ["status", "--json"])
    fields = json.loads(result.stdout)
    assert result.exit_code == 0
    states = {process["name"]: (process["pid"], process["state"]) for process in fields["processes"]}
    stopped = (None, "stopped")
    others = dict.fromkeys(("runner", BROKER, "stream:weather", "stream:weather_delays"), stopped)
    assert states == {FLIGHTS: (None, "crashed"), **others}
    behind = {"silver.flights": None, "silver.weather": None}
    assert fields["derived"]["weather_delays"]["behind"] == behind
    flights = fields["datasets"]["flights"]
    assert flights["state"] == "crashed"
    assert flights["batches"] == {"ingested": 0, "refined": 0, "published": 0}
    assert flights["rejected"] == {"type": 2, "null": 1, "duplicate": 1}


def test_crash_is_shown_in_red_and_fails_only_with_check(
    settings: Settings, broker: Broker, headrace: CliRunner
) -> None:
    write_driver_status(settings, GONE)
    console = Console(force_terminal=True, width=100)
    with console.capture() as capture:
        console.print(status_command.progress_table(observe_progress(settings)))
    assert "\x1b[1;31mcrashed" in capture.get()
    assert headrace.invoke(app, ["status"]).exit_code == 0
    assert headrace.invoke(app, ["status", "--check"]).exit_code == 1


@pytest.mark.parametrize("state", ProcessState)
def test_check_fails_unless_each_process_runs_or_sleeps(
    settings: Settings, headrace: CliRunner, monkeypatch: pytest.MonkeyPatch, state: ProcessState
) -> None:
    observed = replace(
        observe_progress(settings),
        processes=(ProcessStatus(RUNNER, 1, ProcessState.RUNNING), ProcessStatus(FLIGHTS, None, state)),
    )
    monkeypatch.setattr(status_command, "observe_progress", lambda settings, ledger: observed)
    expected = 0 if state in {ProcessState.RUNNING, ProcessState.ASLEEP} else 1
    assert headrace.invoke(app, ["status", "--check"]).exit_code == expected


def test_nothing_is_unknown_before_the_first_stream(settings: Settings) -> None:
    assert observe_progress(settings).notes == ()
    assert LiveObserver(settings).observe().notes == ()


def test_datasets_that_were_never_started_are_only_named(
    settings: Settings, broker: Broker, headrace: CliRunner
) -> None:
    projected_stream(settings, 1)
    shown = headrace.invoke(app, ["status"], env={"COLUMNS": "200"}).stdout
    assert "never started: weather, weather_delays   (headrace up weather)" in shown
    assert ("bronze.flights" in shown, "bronze.weather" in shown, "stream:weather" in shown) == (True, False, False)
    broker.ends = {"flights": {0: 5}, "weather": {0: 7}}
    assert "kafka.weather" in headrace.invoke(app, ["status"], env={"COLUMNS": "200"}).stdout, "its topic has records"


def test_runner_report_on_a_process_is_shown(settings: Settings, broker: Broker, headrace: CliRunner) -> None:
    since = request_stream(settings, "flights", "a test").since
    at = datetime(2026, 1, 2, 12, tzinfo=UTC)
    process_record = ProcessRecord(since, restarts=3, failures=2, last_error="no space left", next_try=at)
    record = RunnerRecord(ProcessState.RUNNING.label, "", os.getpid(), datetime.now(UTC), {FLIGHTS: process_record})
    write_run_file(settings, RunFile(RUNNER, os.getpid(), started_at(os.getpid()), ["runner"]))
    runner_record_file(settings).write(record)
    fields = {
        process["name"]: process
        for process in json.loads(headrace.invoke(app, ["status", "--json"]).stdout)["processes"]
    }
    assert fields[RUNNER]["state"] == "running"
    assert fields[FLIGHTS] == {
        "name": FLIGHTS,
        "pid": None,
        "state": "pending",
        "detail": "no space left; tried again at 12:00:00 UTC",
        "restarts": 3,
        "last_error": "no space left",
        "next_try": "2026-01-02T12:00:00Z",
    }
    given_up = replace(process_record, failures=5, next_try=None, given_up=True)
    runner_record_file(settings).write(replace(record, processes={FLIGHTS: given_up}))
    shown = headrace.invoke(app, ["status"], env={"COLUMNS": "200"}).stdout
    assert "failed" in shown
    assert "no space left (5 times in a row)" in shown
    assert headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0"]).exit_code == 0, "nothing is missing"
    broker.ends = {"flights": {0: 5}, "weather": {}}
    waited = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "60"])
    assert (waited.exit_code, "stream:flights is failed: no space left" in waited.output) == (1, True)


def test_offsets_behind_count_from_the_first_retained_offset(settings: Settings) -> None:
    extent = TopicExtent({0: 100, 1: 0, 2: 7}, {0: 150, 1: 11, 2: 7})
    assert offsets_behind(extent, None) == {0: 50, 1: 11}
    assert extent.offsets == 61
    assert offsets_behind(extent, Stream(settings).publication(0)) == {0: 139}


def test_wait_ends_when_everything_is_published(settings: Settings, broker: Broker, headrace: CliRunner) -> None:
    Stream(settings).run(0, 1)
    broker.ends = {"flights": {0: 22, 1: 22}, "weather": {0: 0, 1: 0}}
    result = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0"])
    assert (result.exit_code, "caught up" in result.output) == (0, True)


def test_wait_names_the_missing_offsets_at_the_timeout(settings: Settings, broker: Broker, headrace: CliRunner) -> None:
    Stream(settings).run(0, 0)
    write_driver_status(settings, os.getpid())
    broker.ends = {"flights": {0: 11, 1: 1012}, "weather": {0: 0}}
    write_run_file(settings, RunFile(BROKER, os.getpid(), started_at(os.getpid()), ["broker"], {"port": 1}))
    result = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0.1"])
    assert result.exit_code == 1
    assert "not caught up after 0.1 s" in result.output
    assert "flights: 1,001 offsets behind (partition 1: 1,001)" in result.output


def test_open_transaction_is_no_caught_up_stream(settings: Settings, broker: Broker, headrace: CliRunner) -> None:
    Stream(settings).run(0, 0)
    write_driver_status(settings, os.getpid(), left_to_spark={"too many rows": 2})
    broker.ends, broker.uncommitted = {"flights": {0: 11, 1: 11}, "weather": {0: 0}}, {1: 550}
    write_run_file(settings, RunFile(BROKER, os.getpid(), started_at(os.getpid()), ["broker"], {"port": 1}))
    lag = observe_progress(settings).datasets[0].lag
    assert (lag.offsets, lag.seconds, lag.uncommitted) == (0, None, 550)
    waited = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0.1"])
    assert waited.exit_code == 1
    assert "flights: 550 offsets in an open transaction (partition 1: 550)" in waited.output
    shown = json.loads(headrace.invoke(app, ["status", "--json"]).output)
    assert shown["datasets"]["flights"]["lag"] == {"offsets": 0, "seconds": None, "in_open_transactions": 550}
    assert shown["datasets"]["flights"]["left_to_spark"] == {"too many rows": 2}
    broker.uncommitted = {}
    assert headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0"]).exit_code == 0


def test_published_records_that_kafka_or_a_table_lost_are_not_caught_up(
    settings: Settings, broker: Broker, headrace: CliRunner
) -> None:
    Stream(settings).run(0, 1)
    broker.ends = {"flights": {0: 22, 1: 11}, "weather": {0: 0, 1: 0}}
    waited = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0"])
    assert waited.exit_code == 1
    assert "partition 1 is published up to 22, Kafka has it up to 11" in waited.output
    broker.ends = {"flights": {0: 22, 1: 22}, "weather": {0: 0, 1: 0}}
    (silver_path(settings, "flights", RELEASE) / LOG / commit_name(1)).write_bytes(b"")
    waited = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0"])
    assert (waited.exit_code, "silver.flights cannot be read" in waited.output) == (1, True)


def test_wait_ends_at_once_when_the_stream_has_failed(settings: Settings, broker: Broker, headrace: CliRunner) -> None:
    write_run_file(settings, RunFile(BROKER, os.getpid(), started_at(os.getpid()), ["broker"], {"port": 1}))
    write_driver_status(settings, GONE, state="failed", reason="the disk is full")
    broker.ends = {"flights": {0: 5}, "weather": {}}
    result = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "60"])
    assert result.exit_code == 1
    assert "stream:flights is failed: the disk is full" in result.output


def test_wait_succeeds_without_a_stream_when_nothing_is_missing(
    settings: Settings, broker: Broker, headrace: CliRunner
) -> None:
    Stream(settings).run(0, 0)
    broker.ends = {"flights": {0: 11, 1: 11}, "weather": {0: 3}}
    result = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "0", "--dataset", "flights"])
    assert result.exit_code == 0


def test_wait_without_a_broker_ends_at_once(settings: Settings, headrace: CliRunner) -> None:
    result = headrace.invoke(app, ["wait", "--caught-up", "--timeout", "60"])
    assert (result.exit_code, "broker is stopped" in result.output) == (1, True)
    assert observe_catch_up(settings, []).caught_up is False


def test_wait_needs_more_than_one_observation(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer continues between two observations: only two equal end offsets in a row count."""
    looks = [CatchUpProgress({}, {"flights": {0: end}}, (), None) for end in (5, 9, 9)]
    monkeypatch.setattr(status_command, "observe_catch_up", lambda settings, datasets: looks.pop(0))
    monkeypatch.setattr(status_command, "POLL_SECONDS", 0.0)
    assert status_command.await_caught_up(settings, [], 5.0) < 5.0
    assert looks == []


def test_wait_requires_a_condition(headrace: CliRunner) -> None:
    assert headrace.invoke(app, ["wait"]).exit_code == 2


def test_watch_prints_a_json_line_per_observation(
    headrace: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    observed = observe_progress(load_settings())
    looks = [observed, observed]

    def look() -> progress.Progress:
        if not looks:
            raise KeyboardInterrupt
        return looks.pop()

    printed: list[str] = []
    monkeypatch.setattr(status_command.typer, "echo", printed.append)
    status_command.watch_status(look, as_json=True)
    assert [list(json.loads(line)) for line in printed] == [
        ["at", "processes", "datasets", "derived", "leases", "notes"]
    ] * 2


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_wait_refuses_an_invalid_timeout(settings: Settings, headrace: CliRunner, value: str) -> None:
    waited = headrace.invoke(app, ["wait", "--caught-up", "--timeout", value])
    assert (waited.exit_code, "--timeout" in waited.output) == (2, True)
