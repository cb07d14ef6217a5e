"""Processes: recognised, observed, stopped, brought up and down; the driver here is a few lines of Python."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include.places import run_path, status_path
from include.settings import Settings
from include.supervision import processes
from include.supervision.observe import observe, observe_stream, process_alone, stream_status
from include.supervision.processes import (
    NoBroker,
    StateBusy,
    StreamNotStarted,
    await_stream,
    bootstrap_servers,
    bring_up_stream,
    down,
    sole_command,
)
from include.supervision.spawned import (
    RunFile,
    is_alive,
    log_tail,
    read_run_file,
    send,
    spawn,
    stop,
    wait_gone,
    write_run_file,
)
from include.supervision.states import ProcessState

# Says `running`, and `stopped` on SIGTERM; the argument chooses how it misbehaves.
DRIVER = """
import datetime, json, os, signal, sys, time
how, status = sys.argv[1], sys.argv[2]
def say(state, reason=None):
    at = datetime.datetime.now(datetime.UTC).isoformat()
    with open(status + ".part", "w") as file:
        json.dump({"state": state, "reason": reason, "pid": os.getpid(), "at": at}, file)
    os.replace(status + ".part", status)
def drain(*_):
    say("stopped"); sys.exit(0)
print("driver starts", flush=True)
if how == "refused":
    say("failed", "the lease is held by pid 1"); sys.exit(2)
if how == "dies":
    sys.exit("no such thing")
signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "deaf" else drain)
say("running")
while True: time.sleep(0.05)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    datasets = tmp_path / "data sets"
    for name in ("flights", "weather"):
        (datasets / name).mkdir(parents=True)
        (datasets / name / "pipeline.yaml").touch()
    return Settings(state=tmp_path / "a state, with spaces", datasets=datasets)


@pytest.fixture
def driver(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Stands in for the driver's command line; `how[dataset]` chooses its behaviour."""
    how: dict[str, str] = {}

    def command(dataset: str) -> list[str]:
        status = status_path(settings, f"stream:{dataset}")
        return [sys.executable, "-c", DRIVER, how.get(dataset, "well"), str(status)]

    monkeypatch.setattr(processes, "driver_command", command)
    yield how
    for dataset in ("flights", "weather"):
        run = read_run_file(settings, f"stream:{dataset}")
        if run is not None:
            send(run, signal.SIGKILL)


def sleeper(settings: Settings, name: str = "stream:flights") -> RunFile:
    code = "import time; print('here', flush=True); time.sleep(60)"
    return spawn(settings, name, [sys.executable, "-c", code], Path.cwd(), os.environ)


def started(settings: Settings, dataset: str = "flights") -> RunFile:
    said: list[str] = []
    failure = await_stream(settings, dataset, bring_up_stream(settings, dataset, said.append), said.append)
    assert failure is None, said
    run = read_run_file(settings, f"stream:{dataset}")
    assert run is not None
    return run


def test_a_spawned_process_is_recognised_and_stopped(settings: Settings) -> None:
    run = sleeper(settings)
    assert is_alive(run)
    assert os.getsid(run.pid) == run.pid, "in a session of its own: Ctrl-C in the terminal does not reach it"
    assert read_run_file(settings, run.name) == run
    assert stop(run, 5)
    assert not is_alive(run)


def test_a_pid_that_was_handed_out_again_is_not_ours(settings: Settings) -> None:
    run = sleeper(settings)
    stranger = replace(run, started=run.started - 60)
    assert not is_alive(stranger)
    stop(stranger, 0.2)
    assert is_alive(run), "a stranger with the pid of a gone process must not get its signal"
    stop(run, 5)


def test_a_deaf_process_is_killed_after_the_timeout(settings: Settings) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    run = spawn(settings, "stream:flights", [sys.executable, "-c", code], Path.cwd(), os.environ)
    while "deaf" not in log_tail(settings, run.name):
        time.sleep(0.02)
    assert not stop(run, 0.3)
    assert not is_alive(run)


def test_nothing_started_is_stopped(settings: Settings) -> None:
    seen = observe(settings)
    assert [status.name for status in seen] == ["runner", "broker", "stream:flights", "stream:weather"]
    assert {status.state for status in seen} == {ProcessState.STOPPED}


def test_a_silent_new_driver_is_starting_and_a_killed_one_has_crashed(settings: Settings) -> None:
    run = sleeper(settings)
    assert observe_stream(settings, "flights").state is ProcessState.STARTING
    send(run, signal.SIGKILL)
    wait_gone(run, 5)
    seen = observe_stream(settings, "flights")
    assert (seen.state, seen.pid) == (ProcessState.CRASHED, None)


def test_a_suspended_driver_is_unknown(settings: Settings, driver: dict[str, str]) -> None:
    run = started(settings)
    send(run, signal.SIGSTOP)
    while observe_stream(settings, "flights").state is ProcessState.RUNNING:
        time.sleep(0.02)
    assert observe_stream(settings, "flights").state is ProcessState.UNKNOWN
    send(run, signal.SIGCONT)


def test_a_driver_that_fell_silent_is_unknown(settings: Settings, driver: dict[str, str]) -> None:
    started(settings)
    later = datetime.now(UTC) + timedelta(seconds=45)
    assert process_alone(settings, "stream:flights", later).state is ProcessState.UNKNOWN


def test_the_word_of_an_earlier_driver_does_not_count(settings: Settings, driver: dict[str, str]) -> None:
    run = started(settings)
    down(settings, lambda _line: None)
    assert json.loads(status_path(settings, run.name).read_text())["state"] == "stopped"
    sleeper(settings)
    assert observe_stream(settings, "flights").state is ProcessState.STARTING


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "broker"}', ""])
def test_an_unreadable_run_file_is_unknown_and_kept(settings: Settings, text: str) -> None:
    path = run_path(settings, "broker")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    broker = observe(settings)[1]
    assert broker.state is ProcessState.UNKNOWN
    assert str(path) in broker.detail
    assert path.read_text() == text


def test_up_leaves_a_running_stream_alone(settings: Settings, driver: dict[str, str]) -> None:
    run, said = started(settings), list[str]()
    bring_up_stream(settings, "flights", said.append)
    assert read_run_file(settings, run.name) == run
    assert "is there already" in said[0]


def test_up_restarts_what_crashed_and_only_that(settings: Settings, driver: dict[str, str]) -> None:
    crashed, healthy = started(settings, "flights"), started(settings, "weather")
    send(crashed, signal.SIGKILL)
    wait_gone(crashed, 5)
    assert started(settings, "flights").pid != crashed.pid
    assert started(settings, "weather") == healthy


def test_a_refused_driver_is_reported_with_its_reason(settings: Settings, driver: dict[str, str]) -> None:
    driver["flights"] = "refused"
    failure = await_stream(settings, "flights", bring_up_stream(settings, "flights", print), print)
    assert isinstance(failure, StreamNotStarted)
    assert "the lease is held by pid 1" in failure.what
    assert observe_stream(settings, "flights").state is ProcessState.FAILED


def test_a_driver_that_dies_is_reported_with_the_end_of_its_log(settings: Settings, driver: dict[str, str]) -> None:
    driver["flights"] = "dies"
    failure = await_stream(settings, "flights", bring_up_stream(settings, "flights", print), print)
    assert failure is not None
    assert "no such thing" in failure.tail
    assert observe_stream(settings, "flights").state is ProcessState.CRASHED


def test_the_tail_shows_this_start_only(settings: Settings, driver: dict[str, str]) -> None:
    started(settings)
    down(settings, lambda _line: None)
    driver["flights"] = "dies"
    failure = await_stream(settings, "flights", bring_up_stream(settings, "flights", print), print)
    assert failure is not None
    assert failure.tail.count("driver starts") == 1


def test_down_drains_and_forgets(settings: Settings, driver: dict[str, str]) -> None:
    runs = [started(settings, dataset) for dataset in ("flights", "weather")]
    down(settings, lambda _line: None)
    assert not any(is_alive(run) for run in runs)
    assert {status.state for status in observe(settings)} == {ProcessState.STOPPED}


def test_down_kills_a_deaf_driver_and_it_shows_as_crashed(
    settings: Settings, driver: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "DRAIN_WITHIN", 0.4)
    driver["flights"], said = "deaf", list[str]()
    run = started(settings)
    down(settings, said.append)
    assert not is_alive(run)
    assert "killed" in said[-1]
    assert observe_stream(settings, "flights").state is ProcessState.CRASHED
    down(settings, said.append)
    assert observe_stream(settings, "flights").state is ProcessState.STOPPED


def test_down_finds_a_stream_whose_folder_is_gone(settings: Settings, driver: dict[str, str]) -> None:
    run = started(settings)
    (settings.datasets / "flights" / "pipeline.yaml").unlink()
    down(settings, lambda _line: None)
    assert not is_alive(run)


def test_two_commands_at_once_are_refused(settings: Settings) -> None:
    with sole_command(settings), pytest.raises(StateBusy) as refused:
        down(settings, lambda _line: None)
    assert str(os.getpid()) in refused.value.holder
    down(settings, lambda _line: None)


def test_no_broker_is_an_error_with_the_next_command(settings: Settings) -> None:
    with pytest.raises(NoBroker) as refused:
        bootstrap_servers(settings)
    assert refused.value.remedy == "headrace up"


def test_a_crashed_broker_is_no_broker(settings: Settings) -> None:
    write_run_file(settings, RunFile("broker", 2**22, 1.0, ["java"], {"bootstrap": "127.0.0.1:1", "port": 1}))
    with pytest.raises(NoBroker, match="crashed"):
        bootstrap_servers(settings)


def test_every_word_of_a_driver_is_a_state(settings: Settings) -> None:
    from include.supervision.states import STATES

    assert set(STATES) >= {"starting", "running", "draining", "halted", "waiting", "stopped", "failed"}
    assert stream_status(RunFile("stream:x", 2**22, 1.0, []), None, datetime.now(UTC)).state is ProcessState.CRASHED
