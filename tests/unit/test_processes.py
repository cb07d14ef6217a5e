"""Processes: recognised, observed, stopped and brought down; the driver here is a few lines of Python."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from error_codes import raises
from stand_ins import StandIns

from include.declare.dataset import DatasetUnknown
from include.ground.errors import Terminal, Transient
from include.ground.paths import run_path, status_path
from include.ground.processes import session_processes
from include.ground.settings import Settings
from include.observe.processes import (
    exited_status,
    observe_process,
    observe_processes,
    observe_stream,
    unsupervised_status,
)
from include.run import child_process, start_stop
from include.run.child_process import exit_code, spawn
from include.run.reconcile import Policy
from include.run.runner import environment_settings
from include.run.start_stop import down, ensure_runner, exclusive_command
from include.state.process_states import RUNNER, ProcessState, last_line
from include.state.run_files import NoBroker, RunFile, bootstrap_servers, read_run_file, started_at, write_run_file
from include.state.streams import desired_streams, request_stream


def desired(settings: Settings) -> set[str]:
    return {name for name, stream in desired_streams(settings).items() if stream.desired}


@pytest.fixture
def settings(two_datasets: Settings) -> Settings:
    return two_datasets


def sleeper(settings: Settings, name: str = "stream:flights") -> RunFile:
    code = "import time; print('here', flush=True); time.sleep(60)"
    return spawn(settings, name, [sys.executable, "-c", code], Path.cwd(), os.environ)


def test_spawned_process_is_recognised_and_stopped(settings: Settings) -> None:
    run = sleeper(settings)
    assert run.is_alive()
    assert os.getsid(run.pid) == run.pid, "in a session of its own: Ctrl-C in the terminal does not reach it"
    assert read_run_file(settings, run.name) == run
    run.terminate()
    assert run.wait_gone(5)
    assert exit_code(run) == -signal.SIGTERM


def test_reused_pid_is_not_signalled(settings: Settings) -> None:
    run = sleeper(settings)
    reused_pid = replace(run, started=run.started - 60)
    assert not reused_pid.is_alive()
    reused_pid.send(signal.SIGKILL)
    assert run.is_alive(), "a process that reuses the pid must not get the signal"
    run.send(signal.SIGKILL)


def test_process_is_recognised_after_a_step_of_the_clock(settings: Settings) -> None:
    spawned = sleeper(settings)
    run = read_run_file(settings, spawned.name)
    assert run is not None
    assert replace(run, started=run.started - 3600).is_alive(), "psutil derives it from the clock"
    assert not replace(run, identity=f"{run.identity}0").is_alive(), "another process, or another boot"
    spawned.send(signal.SIGKILL)


def test_process_runs_until_its_last_thread_has_ended(settings: Settings) -> None:
    """A killed server's port is free only then: its next start would refuse the port as in use."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[600]).start(); "
    code += "ctypes.CDLL(None).pthread_exit(None)"
    run = spawn(settings, "stream:flights", [sys.executable, "-c", code], Path.cwd(), os.environ)
    end = time.monotonic() + 20
    while psutil.Process(run.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert run.is_alive()
    assert [each.pid for each in session_processes(run.pid)] == [run.pid]
    run.send(signal.SIGKILL)
    assert run.wait_gone(5)
    assert session_processes(run.pid) == []
    assert exit_code(run) == -signal.SIGKILL


def test_child_exit_is_reported_once_and_its_session_is_ended(settings: Settings) -> None:
    inner = [sys.executable, "-c", "import time; time.sleep(600)"]
    code = f"import subprocess; print(subprocess.Popen({inner!r}).pid, flush=True); exit(3)"
    run = spawn(settings, "stream:flights", [sys.executable, "-c", code], Path.cwd(), os.environ)
    while (code_of_child := exit_code(run)) is None:
        time.sleep(0.02)
    assert code_of_child == 3
    assert exit_code(run) is None
    child = int(last_line(settings, run.name, 0))
    end = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_last_log_line_is_the_start_of_a_message(settings: Settings) -> None:
    code = "print('Traceback:\\n  line 1\\nValueError: no\\n  → do that\\n')"
    run = spawn(settings, "stream:flights", [sys.executable, "-c", code], Path.cwd(), os.environ)
    assert run.wait_gone(5)
    assert last_line(settings, run.name, 0) == "ValueError: no"
    assert last_line(settings, run.name, 10_000) == ""


def test_process_without_a_run_file_is_ended(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def full(_: Settings, run: RunFile) -> None:
        begun.append(run.pid)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(child_process, "write_run_file", full)
    with pytest.raises(OSError, match="No space"):
        sleeper(settings)
    assert not psutil.pid_exists(begun[0])


def test_processes_never_started_are_stopped(settings: Settings) -> None:
    observed = observe_processes(settings)
    assert [status.name for status in observed] == ["runner", "broker", "stream:flights", "stream:weather"]
    assert {status.state for status in observed} == {ProcessState.STOPPED}


def test_driver_without_a_status_is_starting_and_killed_driver_has_crashed(settings: Settings) -> None:
    run = sleeper(settings)
    assert observe_stream(settings, "flights").state is ProcessState.STARTING
    run.send(signal.SIGKILL)
    run.wait_gone(5)
    observed = observe_stream(settings, "flights")
    assert (observed.state, observed.pid) == (ProcessState.CRASHED, None)


def test_suspended_driver_is_unknown(settings: Settings, stand_ins: StandIns) -> None:
    run = stand_ins.started()
    run.send(signal.SIGSTOP)
    while observe_stream(settings, "flights").state is ProcessState.RUNNING:
        time.sleep(0.02)
    assert observe_stream(settings, "flights").state is ProcessState.UNKNOWN
    run.send(signal.SIGCONT)


def test_driver_with_an_old_status_is_unknown(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.started()
    later = datetime.now(UTC) + timedelta(seconds=45)
    assert unsupervised_status(settings, "stream:flights", later).state is ProcessState.UNKNOWN


@pytest.mark.parametrize(
    ("seconds", "state", "detail"),
    [
        (30, ProcessState.RUNNING, ""),
        (160, ProcessState.RUNNING, "no progress for 160 s"),
        (1801, ProcessState.UNKNOWN, "no progress for 1801 s"),
    ],
)
def test_driver_without_progress_is_reported(
    settings: Settings, seconds: int, state: ProcessState, detail: str
) -> None:
    now = datetime.now(UTC)
    run, idle = sleeper(settings), (now - timedelta(seconds=seconds)).isoformat()
    driver_status = {"state": "running", "pid": run.pid, "at": now.isoformat(), "progress_at": idle}
    status_path(settings, run.name).write_text(json.dumps(driver_status))
    found = unsupervised_status(settings, run.name, now)
    assert (found.state, found.detail) == (state, detail)


def test_driver_that_never_reports_is_unknown_after_the_limit(settings: Settings) -> None:
    run = sleeper(settings)
    assert unsupervised_status(settings, run.name).state is ProcessState.STARTING
    later = datetime.now(UTC) + timedelta(seconds=settings.stall_seconds + 5)
    assert unsupervised_status(settings, run.name, later).state is ProcessState.UNKNOWN


def test_status_of_an_earlier_driver_is_ignored(settings: Settings, stand_ins: StandIns) -> None:
    run = stand_ins.started()
    down(settings, lambda _line: None)
    assert json.loads(status_path(settings, run.name).read_text())["state"] == "stopped"
    sleeper(settings)
    assert observe_stream(settings, "flights").state is ProcessState.STARTING


def test_final_status_of_a_driver_that_ends_during_the_check_is_read(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFile("stream:flights", 2**22, 1.0, [])
    write_run_file(settings, run)

    def reports_failure_and_ends(_: RunFile) -> bool:
        driver_status = {
            "state": "failed",
            "reason": "no space left",
            "pid": run.pid,
            "at": datetime.now(UTC).isoformat(),
        }
        status_path(settings, run.name).write_text(json.dumps(driver_status))
        return False

    monkeypatch.setattr(RunFile, "is_alive", reports_failure_and_ends)
    monkeypatch.setattr(RunFile, "is_suspended", lambda _: False)
    observed = unsupervised_status(settings, run.name)
    assert (observed.state, observed.detail) == (ProcessState.FAILED, "no space left")


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "broker"}', ""])
def test_unreadable_run_file_is_reported_and_kept(settings: Settings, text: str) -> None:
    path = run_path(settings, "broker")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    broker = observe_processes(settings)[1]
    assert broker.state is ProcessState.UNKNOWN
    assert str(path) in broker.detail
    assert path.read_text() == text


def test_down_drains_and_removes_the_run_file(settings: Settings, stand_ins: StandIns) -> None:
    runs = [stand_ins.started(dataset) for dataset in ("flights", "weather")]
    down(settings, lambda _line: None)
    assert not any(run.is_alive() for run in runs)
    assert {status.state for status in observe_processes(settings)} == {ProcessState.STOPPED}
    assert desired(settings) == set()


def test_down_of_one_stream_leaves_the_others_running(settings: Settings, stand_ins: StandIns) -> None:
    flights, weather = stand_ins.started("flights"), stand_ins.started("weather")
    printed: list[str] = []
    down(settings, printed.append, ["flights"])
    assert (flights.is_alive(), weather.is_alive()) == (False, True)
    assert printed[0] == "stream:flights: draining …"
    assert printed[1].startswith("stream:flights: stopped after")
    assert desired(settings) == {"weather"}
    assert observe_processes(settings)[1].state is ProcessState.RUNNING, "the broker keeps running"


def test_down_names_who_will_restart_the_stream(settings: Settings, stand_ins: StandIns) -> None:
    printed: list[str] = []
    stand_ins.started("flights")
    stand_ins.started("weather")
    request_stream(settings, "flights", "stream__flights/scheduled__1")
    down(settings, printed.append, ["flights"])
    assert [line for line in printed if "unless paused" in line] == [
        "stream:flights: Airflow's stream__flights requested it; unless paused, its next run starts it"
    ]
    printed.clear()
    down(settings, printed.append, ["weather"])
    assert not [line for line in printed if "unless paused" in line]


def test_down_kills_an_unresponsive_driver_and_reports_it(
    settings: Settings, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_stop, "Policy", lambda: Policy(drain_within=0.4))
    stand_ins.how["flights"], printed = "deaf", list[str]()
    run = stand_ins.started("flights")
    down(settings, printed.append)
    assert not run.is_alive()
    assert any("stream:flights: was killed" in line for line in printed), printed
    assert observe_stream(settings, "flights").state is ProcessState.STOPPED


def test_down_stops_a_stream_without_its_dataset_folder(settings: Settings, stand_ins: StandIns) -> None:
    run = stand_ins.started("flights")
    (settings.datasets / "flights" / "pipeline.yaml").unlink()
    down(settings, lambda _line: None)
    assert not run.is_alive()


def test_down_of_an_unknown_dataset_is_refused(settings: Settings) -> None:
    with pytest.raises(DatasetUnknown):
        down(settings, print, ["fligths"])
    assert not settings.state.exists()


def test_down_does_not_wait_for_a_suspended_runner(settings: Settings, stand_ins: StandIns) -> None:
    flights = stand_ins.started("flights")
    runner = sleeper(settings, RUNNER)
    runner.send(signal.SIGSTOP)
    while observe_process(settings, RUNNER).state is not ProcessState.UNKNOWN:
        time.sleep(0.02)
    with raises(Terminal, "state-suspended") as refused:
        down(settings, print, ["flights"])
    assert refused.value.facts["process"] == RUNNER
    assert flights.is_alive()
    down(settings, lambda _line: None)
    assert not flights.is_alive()
    assert not runner.is_alive()
    assert {status.state for status in observe_processes(settings)} == {ProcessState.STOPPED}


def test_down_removes_the_run_file_of_a_crashed_driver(settings: Settings, stand_ins: StandIns) -> None:
    run = stand_ins.started("flights")
    run.send(signal.SIGKILL)
    assert run.wait_gone(5)
    printed: list[str] = []
    down(settings, printed.append)
    assert "stream:flights: was not running" in printed
    assert observe_stream(settings, "flights").state is ProcessState.STOPPED


def test_concurrent_commands_are_refused(settings: Settings) -> None:
    with exclusive_command(settings), raises(Transient, "state-busy") as refused:
        down(settings, lambda _line: None)
    assert str(os.getpid()) in str(refused.value.facts["holder"])
    down(settings, lambda _line: None)


def test_missing_broker_is_an_error_with_the_next_command(settings: Settings) -> None:
    with pytest.raises(NoBroker) as refused:
        bootstrap_servers(settings)
    assert refused.value.remedy == "headrace up"


def test_crashed_broker_has_no_address(settings: Settings) -> None:
    write_run_file(settings, RunFile("broker", 2**22, 1.0, ["java"], {"bootstrap": "127.0.0.1:1", "port": 1}))
    with pytest.raises(NoBroker, match="crashed"):
        bootstrap_servers(settings)


def test_every_reported_driver_phase_is_a_state(settings: Settings) -> None:
    from include.state.process_states import STATES

    assert set(STATES) >= {"starting", "running", "draining", "halted", "waiting", "stopped", "failed"}
    assert exited_status(RunFile("stream:x", 2**22, 1.0, []), None).state is ProcessState.CRASHED


def test_runner_with_other_settings_is_reported(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"settings": environment_settings()}
    write_run_file(settings, RunFile(RUNNER, os.getpid(), started_at(os.getpid()), [], extra))
    printed: list[str] = []
    ensure_runner(settings, printed.append)
    monkeypatch.setenv("HEADRACE_DRIVER_MEMORY", "7g")
    monkeypatch.setenv("HEADRACE_LEDGER_URL", "postgresql://me:secret@host/db")
    ensure_runner(settings, printed.append)
    assert printed[0] == f"runner: already running, pid {os.getpid()}"
    assert "HEADRACE_DRIVER_MEMORY=3g (now 7g)" in printed[1]
    assert "secret" not in printed[1]
