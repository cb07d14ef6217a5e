"""The runner, turn by turn, with real processes that are a few lines of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from stand_ins import StandIns, report_progress

from include.change import jobs
from include.change.jobs import request_owner
from include.ground.paths import desired_path, run_path, runner_lock_path, status_path
from include.ground.ports import PortInUse
from include.ground.settings import CLONE, Settings
from include.observe.processes import (
    is_expected,
    observe_process,
    observe_processes,
    observe_stream,
    unsupervised_status,
)
from include.run import child_process as driver_process
from include.run import runner
from include.run.child_process import start_blocker
from include.run.reconcile import Policy
from include.run.runner import Runner, supervise
from include.run.runner_lease import RunnerAlreadyRunning, sole_runner
from include.state.lease import take_lock
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind
from include.state.process_states import BROKER, RUNNER, WORKING_STATES, ProcessState, read_process_records
from include.state.run_files import RunFile, read_run_file, started_at, write_run_file
from include.state.streams import release_stream, request_stream

FLIGHTS = "stream:flights"


@pytest.fixture
def settings(two_datasets: Settings) -> Settings:
    return two_datasets


@pytest.fixture
def runner_run_file(settings: Settings) -> None:
    """Register this process as the runner."""
    write_run_file(settings, RunFile(RUNNER, os.getpid(), started_at(os.getpid()), sys.orig_argv))
    report_progress(settings, RUNNER)


def run_of(settings: Settings, name: str) -> RunFile:
    run = read_run_file(settings, name)
    assert run is not None
    return run


def kill(run: RunFile) -> None:
    run.send(signal.SIGKILL)
    assert run.wait_gone(5)


def given_up(settings: Settings, name: str = FLIGHTS) -> bool:
    account = read_process_records(settings).get(name)
    return account is not None and account.given_up


def test_broker_starts_first_then_only_requested_streams(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.step()
    assert run_of(settings, BROKER)
    stand_ins.started("flights")
    assert [line.split(",")[0] for line in stand_ins.lines] == ["broker: started", f"{FLIGHTS}: started"]
    assert observe_stream(settings, "weather").state is ProcessState.STOPPED


def test_turns_change_nothing_when_all_processes_are_healthy(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.started()
    before, lines = run_path(settings, FLIGHTS).read_bytes(), len(stand_ins.lines)
    assert all(stand_ins.step() for _ in range(5))
    assert (run_path(settings, FLIGHTS).read_bytes(), len(stand_ins.lines)) == (before, lines)


def test_driver_that_sleeps_is_left_alone_until_its_topic_has_records(
    settings: Settings, stand_ins: StandIns, runner_run_file: None
) -> None:
    ends = {0: 5}
    stand_ins.how["flights"] = "sleeps"
    stand_ins.runner.sleeping.ends_of = lambda topic: ends
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: observe_stream(settings, "flights").pid is None and FLIGHTS in stand_ins.runner.log_from)
    assert observe_stream(settings, "flights").state is ProcessState.ASLEEP
    before = run_of(settings, FLIGHTS).pid
    assert all(stand_ins.step() for _ in range(5)), "it is in its desired state"
    assert (run_of(settings, FLIGHTS).pid, read_process_records(settings)[FLIGHTS].failures) == (before, 0)
    assert not is_expected(observe_stream(settings, "flights")), "an owner's request starts a job"
    ends, stand_ins.how["flights"] = {0: 6}, "well"
    stand_ins.until(lambda: observe_stream(settings, "flights").state in WORKING_STATES)
    assert stand_ins.lines[-1] == f"{FLIGHTS}: started, there is something to do"


def test_request_wakes_a_driver_that_sleeps(settings: Settings, stand_ins: StandIns, runner_run_file: None) -> None:
    stand_ins.how["flights"] = "sleeps"
    stand_ins.runner.sleeping.ends_of = lambda topic: {0: 5}
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: observe_stream(settings, "flights").state is ProcessState.ASLEEP)
    stand_ins.how["flights"] = "well"
    stand_ins.started("flights")


def test_request_to_the_owner_that_falls_asleep_is_executed_by_a_job(
    settings: Settings, stand_ins: StandIns, runner_run_file: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.how["flights"] = "sleeps"
    stand_ins.runner.sleeping.ends_of = lambda topic: {0: 5}
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: observe_stream(settings, "flights").pid is None and FLIGHTS in stand_ins.runner.log_from)
    request = OwnerRequest("plan-1", RequestKind.RETIRE, "aaa")
    response = OwnerResponse("plan-1", RequestKind.RETIRE, "aaa", "", 7)
    seen = iter([True, False])
    # It ran when the request was submitted, and slept when the response was waited for.
    monkeypatch.setattr(jobs, "is_expected", lambda _: next(seen))
    monkeypatch.setattr(jobs, "drop_obsolete", lambda *_: None)
    monkeypatch.setattr(jobs, "_executed_by_job", lambda *_: response)
    assert request_owner(settings, "flights", request) == response


def test_nobody_wakes_a_stream_without_a_runner(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.how["flights"] = "sleeps"
    request_stream(settings, "flights", "a test")
    stand_ins.until(
        lambda: unsupervised_status(settings, FLIGHTS).pid is None and bool(read_run_file(settings, FLIGHTS))
    )
    assert observe_stream(settings, "flights").state is ProcessState.STOPPED


def test_only_the_killed_process_is_restarted(settings: Settings, stand_ins: StandIns) -> None:
    flights, weather = stand_ins.started("flights"), stand_ins.started("weather")
    kill(flights)
    stand_ins.until(lambda: run_of(settings, FLIGHTS).pid != flights.pid)
    stand_ins.until(lambda: observe_stream(settings, "flights").state in WORKING_STATES)
    assert run_of(settings, "stream:weather") == weather
    status = observe_stream(settings, "flights")
    assert (status.restarts, status.last_error) == (1, "it was killed by SIGKILL")


@pytest.mark.parametrize("how", ["hangs", "hangs at start"])
def test_driver_without_progress_is_killed_and_restarted(settings: Settings, stand_ins: StandIns, how: str) -> None:
    """It still reports: a thread of its own writes the status of a driver."""
    stand_ins.runner.settings = settings.model_copy(update={"stall_seconds": 2.0})
    stand_ins.how["flights"] = how
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: read_run_file(settings, FLIGHTS) is not None)
    hung = run_of(settings, FLIGHTS)
    stand_ins.how["flights"] = "well"
    stand_ins.until(lambda: run_of(settings, FLIGHTS).pid != hung.pid)
    assert not hung.is_alive()
    assert f"{FLIGHTS}: killed, made no progress for 2 s (HEADRACE_STALL_SECONDS=2) and was killed" in stand_ins.lines


def test_killed_broker_is_restarted_while_its_streams_run(settings: Settings, stand_ins: StandIns) -> None:
    flights, broker = stand_ins.started(), run_of(settings, BROKER)
    kill(broker)
    stand_ins.until(lambda: observe_process(settings, BROKER).state is ProcessState.RUNNING)
    assert run_of(settings, BROKER).pid != broker.pid
    assert run_of(settings, FLIGHTS) == flights, "a driver waits for the broker by itself"


def test_stream_is_not_restarted_without_a_broker(
    settings: Settings, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    flights = stand_ins.started()

    def taken(_: Settings) -> RunFile:
        raise PortInUse(9092, "pid 1")

    monkeypatch.setattr(runner, "start_broker", taken)
    kill(run_of(settings, BROKER))
    kill(flights)
    stand_ins.until(lambda: given_up(settings, BROKER))
    for _ in range(20):
        stand_ins.step()
        time.sleep(0.02)
    assert run_of(settings, FLIGHTS) == flights
    broker = read_process_records(settings)[BROKER]
    assert ("port 9092 is in use" in broker.last_error, broker.failures) == (True, 2), (
        "killed, and not to be started: once is enough"
    )
    monkeypatch.setattr(runner, "start_broker", stand_ins.start_broker)
    stand_ins.started()


def test_process_that_dies_at_once_is_given_up_with_the_last_log_line(
    settings: Settings, stand_ins: StandIns, runner_run_file: None
) -> None:
    stand_ins.how["flights"] = "dies"
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: given_up(settings))
    status = observe_stream(settings, "flights")
    assert status.state is ProcessState.FAILED
    assert status.detail == "it ended with exit code 1: no such thing (5 times in a row)"
    assert status.restarts == 4
    stand_ins.step()
    assert sum("started" in line for line in stand_ins.lines if line.startswith(FLIGHTS)) == 5
    stand_ins.how["flights"] = "well"
    stand_ins.started()
    assert observe_stream(settings, "flights").last_error == "", "a new request clears the errors"


def test_process_between_two_tries_is_pending_and_reports_the_next_try(
    settings: Settings, stand_ins: StandIns, runner_run_file: None
) -> None:
    stand_ins.runner.policy = replace(stand_ins.policy, first_pause=600.0, longest_pause=600.0)
    stand_ins.how["flights"] = "fails"
    request_stream(settings, "flights", "a test")
    assert observe_stream(settings, "flights").state is ProcessState.PENDING, "requested, and a runner is running"
    stand_ins.until(lambda: observe_stream(settings, "flights").next_try is not None)
    status = observe_stream(settings, "flights")
    assert (status.state, status.last_error) == (ProcessState.PENDING, "no space left")
    assert status.next_try is not None
    assert f"tried again at {status.next_try:%H:%M:%S}" in status.detail


def test_process_with_a_terminal_error_is_given_up_at_once(
    settings: Settings, stand_ins: StandIns, runner_run_file: None
) -> None:
    stand_ins.how["flights"] = "refused"
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: given_up(settings))
    assert observe_stream(settings, "flights").detail == "the checkpoint is damaged"
    request_stream(settings, "flights", "a test")
    assert observe_stream(settings, "flights").state is ProcessState.PENDING, "the runner has not read the request yet"
    assert sum(line.startswith(f"{FLIGHTS}: started") for line in stand_ins.lines) == 1


def test_failed_stream_stays_failed_when_the_runner_is_gone(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.how["flights"] = "refused"
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: given_up(settings))
    assert observe_processes(settings)[0].state is ProcessState.STOPPED
    assert observe_stream(settings, "flights").state is ProcessState.FAILED


def test_missing_process_without_a_runner_has_crashed(settings: Settings, stand_ins: StandIns) -> None:
    kill(stand_ins.started())
    assert observe_stream(settings, "flights").state is ProcessState.CRASHED


def test_released_stream_drains_and_the_others_keep_running(settings: Settings, stand_ins: StandIns) -> None:
    flights, weather = stand_ins.started("flights"), stand_ins.started("weather")
    release_stream(settings, "flights", "a test")
    stand_ins.until(lambda: not flights.is_alive() and read_run_file(settings, FLIGHTS) is None)
    assert observe_stream(settings, "flights").state is ProcessState.STOPPED
    assert weather.is_alive()
    assert run_of(settings, BROKER).is_alive()


def test_stopping_ends_streams_first_and_the_broker_last(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.how["flights"] = "deaf"
    stand_ins.runner.policy = replace(stand_ins.policy, drain_within=0.5)
    runs = [stand_ins.started("flights"), stand_ins.started("weather"), run_of(settings, BROKER)]
    stand_ins.lines.clear()
    stand_ins.runner.stopping = True
    stand_ins.until(stand_ins.step)
    assert not any(run.is_alive() for run in runs)
    lines = [line.split(",")[0] for line in stand_ins.lines]
    assert lines.count("broker: stopping") == 1
    assert lines.index(f"{FLIGHTS}: killed") < lines.index("broker: stopping"), (
        "the broker runs as long as a driver needs it"
    )
    assert [path.name for path in run_path(settings, "x").parent.glob("*.json")].count("broker.json") == 0


def test_edited_request_leaves_its_stream_running(settings: Settings, stand_ins: StandIns) -> None:
    flights = stand_ins.started()
    desired_path(settings, "flights").write_text("{")
    for _ in range(5):
        stand_ins.step()
    assert flights.is_alive()
    kill(flights)
    stand_ins.until(lambda: run_of(settings, FLIGHTS).pid != flights.pid)


def test_next_runner_takes_over_running_processes(settings: Settings, stand_ins: StandIns) -> None:
    flights, broker = stand_ins.started(), run_of(settings, BROKER)
    stand_ins.runner = Runner(settings, stand_ins.policy, stand_ins.lines.append)
    stand_ins.lines.clear()
    for _ in range(3):
        assert stand_ins.step()
    assert (stand_ins.lines, flights.is_alive(), broker.is_alive()) == ([], True, True)


def test_failing_turn_does_not_end_the_runner(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "STEP_SECONDS", 0.01)
    turns: list[bool] = []
    stop = threading.Event()

    def step(self: Runner, now: float) -> bool:
        turns.append(self.stopping)
        if len(turns) < 3:
            raise ZeroDivisionError("a defect of ours")
        stop.set()
        return True

    monkeypatch.setattr(Runner, "step", step)
    with sole_runner(settings) as holds:
        supervise(Runner(settings, Policy(), print), holds, stop)
    assert turns == [False, False, False, True]
    assert capsys.readouterr().err.count("ZeroDivisionError: a defect of ours") == 2


def test_runner_stops_when_its_state_folder_was_removed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "STEP_SECONDS", 0.01)
    with sole_runner(settings) as holds:
        assert holds()
        runner_lock_path(settings).unlink()
        assert not holds()
        supervise(Runner(settings, Policy(), print), holds, threading.Event())


def test_second_runner_is_refused(settings: Settings) -> None:
    second = sole_runner(settings)
    with sole_runner(settings), pytest.raises(RunnerAlreadyRunning, match=f"pid {os.getpid()} on .* since") as refused:
        second.__enter__()
    assert refused.value.remedy == "headrace status"
    with sole_runner(settings):
        pass


def test_lock_is_released_when_its_process_ends(settings: Settings) -> None:
    path = settings.state / "run" / "runner.lock"
    code = (
        "import sys, time; from pathlib import Path; from include.state.lease import take_lock\n"
        "kept = take_lock(Path(sys.argv[1]), 'another'); print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=CLONE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(RunnerAlreadyRunning, match="another"), sole_runner(settings):
        pass
    other.kill()
    other.wait()
    take_lock(path, "me").close()


def test_tethered_process_ends_with_its_parent(tmp_path: Path) -> None:
    inner = [sys.executable, "-c", "import time; time.sleep(600)"]
    code = (
        "import subprocess, time; from include.run.child_process import tethered\n"
        f"print(subprocess.Popen(tethered({inner!r})).pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=CLONE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    end = time.monotonic() + 20
    while child.cmdline() != inner:
        assert time.monotonic() < end
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    child.wait(5)


def test_without_signals_of_the_kernel_the_tether_looks_for_its_parent() -> None:
    """As on macOS: the command is a child of the tether, gets its SIGTERM, and is killed when the parent is gone."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    tether = (
        "import sys; from include.ground import job_guard as guard; guard.KERNEL_SIGNALS = False; "
        "sys.exit(guard.tether(*sys.argv[1:]))"
    )
    code = (
        "import os, subprocess, sys, time\n"
        f"argv = [sys.executable, '-c', {tether!r}, str(os.getpid()), *{sleeper!r}]\n"
        "print(*(subprocess.Popen(argv).pid for _ in range(2)), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=CLONE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    tethers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    end = time.monotonic() + 20
    while not all(each.children() for each in tethers):
        assert time.monotonic() < end
        time.sleep(0.02)
    commands = [each.children()[0] for each in tethers]
    tethers[0].terminate()
    commands[0].wait(5)
    assert commands[1].is_running()
    parent.kill()
    parent.wait()
    commands[1].wait(5)


def test_tether_without_its_parent_starts_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    argv = [sys.executable, "-m", "include.ground.job_guard", "tether", "1", "/bin/sh", "-c", f"touch '{made}'"]
    assert subprocess.run(argv, cwd=CLONE, check=False).returncode == 3
    assert not made.exists()


def test_drivers_are_tethered_to_the_runner(
    settings: Settings, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stand_ins.started()
    assert run.argv[:5] == [sys.executable, "-m", "include.ground.job_guard", "tether", str(os.getpid())]
    assert run.argv[5:] == driver_process.driver_command("flights")


def test_invalid_declaration_blocks_the_first_start(settings: Settings) -> None:
    assert "is unknown" in start_blocker(settings, "fligths")
    assert start_blocker(settings, "flights") != ""
    assert start_blocker(Settings(state=settings.state), "flights") == ""


def test_damaged_runner_record_counts_as_none(settings: Settings, stand_ins: StandIns) -> None:
    stand_ins.started()
    assert read_process_records(settings).keys() == {BROKER, FLIGHTS}
    for text in ("", "{", "[]", '{"processes": 1}', '{"processes": {"broker": {"colour": "red"}}}'):
        status_path(settings, RUNNER).write_text(text)
        assert read_process_records(settings) == {}
        assert observe_stream(settings, "flights").state is ProcessState.RUNNING


SHARED = "driver:shared"


def test_datasets_of_a_shared_driver_start_after_it_and_it_ends_with_the_last(
    settings: Settings, stand_ins: StandIns
) -> None:
    stand_ins.shared = {"flights": SHARED, "weather": SHARED}
    assert stand_ins.started("flights").extra == {"driver": SHARED}
    driver = run_of(settings, SHARED).pid
    began = [line.split(",")[0] for line in stand_ins.lines]
    assert began.index(f"{SHARED}: started") < began.index(f"{FLIGHTS}: started")
    stand_ins.started("weather")
    assert observe_stream(settings, "weather").facts == {"driver": SHARED}
    release_stream(settings, "flights", "a test")
    stand_ins.until(lambda: observe_stream(settings, "flights").pid is None)
    assert (run_of(settings, SHARED).pid, observe_stream(settings, "weather").state) == (driver, ProcessState.RUNNING)
    release_stream(settings, "weather", "a test")
    stand_ins.until(lambda: read_run_file(settings, SHARED) is None, "nobody needs it")


def test_datasets_fail_with_the_reason_of_a_shared_driver_that_was_given_up(
    settings: Settings, stand_ins: StandIns
) -> None:
    stand_ins.shared, stand_ins.how[SHARED] = {"flights": SHARED, "weather": SHARED}, "dies"
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: given_up(settings))
    assert "no such thing" in read_process_records(settings)[FLIGHTS].last_error
    stand_ins.how[SHARED] = "well"
    stand_ins.started("flights")


def test_shared_driver_sleeps_when_all_its_datasets_do(
    settings: Settings, stand_ins: StandIns, runner_run_file: None
) -> None:
    stand_ins.shared, stand_ins.how["flights"] = {"flights": SHARED}, "sleeps"
    stand_ins.runner.sleeping.ends_of = lambda topic: {0: 5}
    request_stream(settings, "flights", "a test")
    stand_ins.until(lambda: FLIGHTS in stand_ins.runner.log_from and read_run_file(settings, SHARED) is None)
    assert observe_stream(settings, "flights").state is ProcessState.ASLEEP
    stand_ins.how["flights"] = "well"
    stand_ins.started("flights")
    assert run_of(settings, SHARED)
