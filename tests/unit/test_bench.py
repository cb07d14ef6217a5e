"""The benchmarks: figures, targets, the temporary state folder, exit codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from include.bench import bench_command as cli
from include.bench import bench_events, bench_follower, bench_state
from include.bench.bench_events import EventSupply, SendCost
from include.bench.bench_follower import BenchFailed, ObservedPublication, PublicationFollower, seconds_per_million
from include.bench.bench_latency import Latency, quantiles, waiting_seconds
from include.bench.bench_machine import Machine
from include.bench.bench_report import Report, as_json, as_text
from include.bench.bench_state import running_stream, temporary_state
from include.bench.bench_throughput import Throughput, WarmUp, require_count
from include.bench.cpu_usage import used_between
from include.cli.main import app
from include.paths import publication_path, status_path
from include.reading.publication import Publication, publish
from include.settings import Settings, load_settings
from include.state.driver_status import LastRun
from include.state.process_states import ProcessState, ProcessStatus

AT = datetime(2026, 11, 21, tzinfo=UTC)


# --- temporary state ---------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "mine"))
    monkeypatch.setenv("HEADRACE_LEDGER_URL", "postgresql://me@there/ledger")
    monkeypatch.setenv("HEADRACE_KAFKA_PORT", "9092")
    monkeypatch.setenv("HEADRACE_DRIVER_CORES", "4")
    load_settings.cache_clear()
    yield tmp_path / "mine"
    load_settings.cache_clear()


def test_benchmark_state_is_temporary(environment: Path) -> None:
    with temporary_state(keep=False) as settings:
        assert settings.state.is_dir()
        assert settings.state != environment
        assert (settings.ledger_url, settings.kafka_port, settings.driver_cores) == ("", 0, 4)
        assert os.environ["HEADRACE_STATE"] == str(settings.state)
        assert "HEADRACE_LEDGER_URL" not in os.environ
    assert not settings.state.exists()
    assert load_settings().state == environment
    assert load_settings().kafka_port == 9092


def test_temporary_state_is_removed_after_a_failure_unless_keep(environment: Path) -> None:
    with pytest.raises(KeyboardInterrupt), temporary_state(keep=False) as settings:
        raise KeyboardInterrupt
    assert not settings.state.exists()
    with temporary_state(keep=True) as keeping:
        pass
    assert keeping.state.is_dir()
    keeping.state.rmdir()


def test_started_processes_are_stopped(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def up(*_: object) -> None:
        calls.append("up")
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_state, "up", up)
    monkeypatch.setattr(bench_state, "down", lambda *_: calls.append("down"))
    with pytest.raises(KeyboardInterrupt), running_stream(settings, print):
        pass
    assert calls == ["up", "down"]


# --- sent events -------------------------------------------------------------------------------------------------


def test_event_supply_continues_across_years_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        bench_events, "year", lambda number: pl.DataFrame({"n": range(100 * number, 100 * number + 100)})
    )
    source = EventSupply()
    first = [frame["n"].to_list() for frame in source.frames(150)]
    second = [frame["n"].to_list() for frame in source.frames(120)]
    assert [len(part) for part in (*first, *second)] == [100, 50, 50, 70]
    assert sum((*first, *second), []) == list(range(270))


def test_wrong_event_count_fails_the_benchmark(settings: Settings) -> None:
    require_count(settings, 10, {0: 5, 1: 5}, {0: 11, 1: 9})
    with pytest.raises(BenchFailed):
        require_count(settings, 10, {0: 5, 1: 5}, {0: 5, 1: 5})


# --- observed publications ---------------------------------------------------------------------------------------


def published(settings: Settings, batch: int, ends: dict[int, int]) -> None:
    publish(settings, Publication("flights", "r", batch, AT, ends, {}))


def test_each_publication_is_observed_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublicationFollower, "_read_status", lambda self: None)
    follower = PublicationFollower(settings)
    follower.poll()
    assert not follower.reached({0: 1})
    published(settings, 1, {0: 5, 1: 6})
    follower.poll()
    follower.poll()
    assert follower.reached({0: 5, 1: 6})
    assert not follower.reached({0: 5, 1: 7})
    published(settings, 2, {0: 5, 1: 7})
    follower.poll()
    assert [publication.ends for publication in follower.publications] == [{0: 5, 1: 6}, {0: 5, 1: 7}]
    assert follower.publications[0].at <= follower.publications[1].at


def write_run_status(settings: Settings, rows: int, seconds: float) -> None:
    path = status_path(settings, "stream:flights")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"last_batch": {"rows": rows, "seconds": seconds, "steps": {"silver": seconds}}}))


def test_each_run_is_recorded_once_and_runs_can_be_cleared(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_follower, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(
        bench_follower, "observe_processes", lambda *_: [ProcessStatus("broker", 1, ProcessState.RUNNING)]
    )
    follower = PublicationFollower(settings)
    for rows in (100, 100, 200, 200, 300):
        write_run_status(settings, rows, 1.0)
        follower.poll()
        if rows == 100:
            follower.runs.clear()
    assert [run.rows for run in follower.runs] == [200, 300]


def test_lost_or_stalled_stream_fails_the_benchmark(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [ProcessStatus("stream:flights", None, ProcessState.CRASHED, "pid 7 is gone")]
    monkeypatch.setattr(bench_follower, "observe_processes", lambda *_: lost)
    with pytest.raises(BenchFailed, match="pid 7 is gone"):
        PublicationFollower(settings).follow(lambda: False)
    lost.clear()
    monkeypatch.setattr(bench_follower, "STATUS_SECONDS", 0.0)
    monkeypatch.setattr(bench_follower, "STALLED_SECONDS", 0.05)
    with pytest.raises(BenchFailed, match="nothing was published"):
        PublicationFollower(settings).follow(lambda: False)
    assert not publication_path(settings, "flights").exists()


def test_steps_are_weighted_by_rows() -> None:
    runs = [LastRun(100_000, 3.0, {"silver": 2.0, "gold": 1.0}), LastRun(300_000, 3.0, {"silver": 2.0})]
    assert seconds_per_million(runs) == pytest.approx({"silver": 10.0, "gold": 2.5})
    assert seconds_per_million([]) == {}


def test_cpu_is_the_difference_of_two_measurements() -> None:
    before, after = {"broker": 3.0, "gone": 1.0}, {"broker": 4.5, "driver: JVM": 2.0}
    assert used_between(before, after) == {"broker": 1.5, "driver: JVM": 2.0}


# --- latency -----------------------------------------------------------------------------------------------------


def test_latency_ends_at_the_first_publication_with_the_record() -> None:
    records = pl.DataFrame(
        [(0, 10, 100.0), (0, 11, 100.0), (0, 12, 101.0), (1, 5, 100.5)],
        schema=["partition", "offset", "timestamp"],
        orient="row",
    )
    publications = [
        ObservedPublication(99.0, {0: 10, 1: 5}),
        ObservedPublication(102.0, {0: 12, 1: 5}),
        ObservedPublication(104.0, {0: 13, 1: 6}),
    ]
    assert sorted(waiting_seconds(records, publications)) == pytest.approx([2.0, 2.0, 3.0, 3.5])


def test_quantiles_are_not_interpolated() -> None:
    waited = np.array([float(n) for n in range(1, 101)])
    assert quantiles(waited) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert quantiles(np.array([1.0, 9.0]))["p50"] == 1.0


# --- report ------------------------------------------------------------------------------------------------------

MACHINE = Machine(2, 23.5, "Linux", "17.0.15", "3.11.7", "4.2.0", 0.1, {})
SENDING = SendCost(1000, 0.01, 0.004)
THROUGHPUT = Throughput(800_000, 10.0, 6.0, {"broker": 0.6, "driver: JVM": 9.0}, {"silver": 5.0}, 3, 700_000, SENDING)
LATENCY = Latency(2_000, 120, 240_000, 90, {"p50": 1.2, "p95": 3.0, "p99": 3.5, "max": 4.0}, 0.01)
REPORT = Report("again", MACHINE, AT, WarmUp(1000, 2.0, SENDING), THROUGHPUT, LATENCY, True)


def rendered(report: Report) -> str:
    out = StringIO()
    Console(file=out, width=80).print(as_text(report))
    return out.getvalue()


def test_report_shows_met_targets() -> None:
    assert rendered(REPORT).count("met") == 2
    assert "missed" not in rendered(REPORT)
    targets = as_json(REPORT)["targets"]
    assert targets == {
        "events_per_second": {"target": 80_000, "met": True},
        "p95_seconds": {"target": 3.0, "met": True},
    }


def test_report_shows_missed_targets() -> None:
    slow = replace(THROUGHPUT, seconds=10.1)
    late = replace(LATENCY, quantiles=LATENCY.quantiles | {"p95": 3.01})
    report = replace(REPORT, throughput=slow, latency=late)
    assert rendered(report).count("missed") == 2
    assert [target["met"] for target in as_json(report)["targets"].values()] == [False, False]


def test_unmeasured_part_has_no_figure_and_no_target() -> None:
    values = as_json(replace(REPORT, throughput=None))
    assert values["throughput"] is None
    assert list(values["targets"]) == ["p95_seconds"]
    json.dumps(values)


def test_another_rate_has_no_target() -> None:
    report = replace(REPORT, throughput=None, latency=replace(LATENCY, rate=100))
    assert "met" not in rendered(report)
    assert as_json(report)["targets"] == {}


def test_report_warns_of_busy_machine_and_unbalanced_audit() -> None:
    text = rendered(replace(REPORT, machine=replace(MACHINE, load=3.2), balanced=False))
    assert "the machine is busy" in text.replace("\n", " ")
    assert "NOT BALANCED" in text


@pytest.mark.parametrize(("balanced", "code"), [(True, 0), (False, 1)])
def test_bench_command_writes_json_and_fails_only_when_unbalanced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, balanced: bool, code: int
) -> None:
    monkeypatch.setattr(cli, "_measure", lambda *_: replace(REPORT, balanced=balanced))
    result = CliRunner().invoke(app, ["bench", "demo", "--json", str(tmp_path / "figures.json")])
    assert result.exit_code == code
    assert json.loads((tmp_path / "figures.json").read_text())["balanced"] is balanced


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    # A shell starts what runs in the background with Ctrl-C ignored, the tests too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number in numbers:
        signal.signal(number, before[number])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_exits_130_without_a_traceback(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    def interrupted(*_: object) -> Report:
        signal.raise_signal(number)
        raise AssertionError("still here")

    monkeypatch.setattr(cli, "_measure", interrupted)
    result = CliRunner().invoke(app, ["bench", "demo"])
    assert (result.exit_code, result.output) == (130, "stopped: nothing was measured\n")
