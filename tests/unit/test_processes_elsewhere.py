"""A process of another container or host: known by its heartbeat, never looked up by pid, never signalled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from error_codes import raises
from stand_ins import report_progress

from include.ground.errors import Terminal, Transient
from include.ground.paths import run_path, runner_lock_path
from include.ground.processes import host_name, this_boot, this_place
from include.ground.settings import Settings
from include.observe.doctor import Verdict, check_locks_elsewhere
from include.observe.processes import observe_jobs, observe_process, observe_stream
from include.run import child_process as job_process
from include.run.child_process import end_job, refuse_running
from include.run.runner_lease import RunnerAlreadyRunning, forget_other_places, refuse_other_host
from include.run.start_stop import down, up_runner
from include.state.lease import take_lock
from include.state.process_states import BROKER, CONSOLE, METRICS, RUNNER, ProcessState
from include.state.run_files import (
    EXPIRY,
    NoBroker,
    RunFile,
    beat,
    bootstrap_servers,
    end_request_path,
    heartbeat_age,
    identity_of,
    read_run_file,
    run_file,
    seconds_since_boot,
    started_at,
    write_run_file,
)
from include.state.streams import DriverStatus, desired_stream, read_reported_status, request_stream, status_file

FLIGHTS = "stream:flights"
OTHER_CONTAINER = f"{this_boot()}/1"
OTHER_MACHINE = "0a1b2c3d-0000-0000-0000-000000000000/4026531836"


def record(
    settings: Settings, name: str, place: str = OTHER_CONTAINER, host: str = "runner", age: float = 0.0
) -> RunFile:
    """Write a run file as a process of another place did `age` seconds ago; its pid is that of this very process."""
    extra = {"port": 1, "bootstrap": "127.0.0.1:1", "dataset": "flights"}
    run = RunFile(name, os.getpid(), started_at(os.getpid()), ["-"], extra, identity_of(os.getpid()), place, host)
    path = run_path(settings, name)
    run_file(path).write(run)
    os.utime(path, (time.time() - age,) * 2)
    return replace(run, path=path)


@pytest.fixture(params=[OTHER_CONTAINER, OTHER_MACHINE])
def place(request: pytest.FixtureRequest) -> str:
    """Another container of this machine, then another machine."""
    return str(request.param)


def test_own_run_files_name_their_place(settings: Settings) -> None:
    write_run_file(settings, RunFile(FLIGHTS, os.getpid(), started_at(os.getpid()), ["-"]))
    run = read_run_file(settings, FLIGHTS)
    assert run is not None
    assert (run.place, run.host, run.is_alive()) == (this_place(), host_name(), True)
    assert "path" not in json.loads(run_path(settings, FLIGHTS).read_text()) or run.path == run_path(settings, FLIGHTS)


def test_process_elsewhere_lives_as_long_as_its_heartbeat(settings: Settings, place: str) -> None:
    record(settings, FLIGHTS, place)
    report_progress(settings, FLIGHTS)
    status = observe_stream(settings, "flights")
    assert (status.state, status.pid) == (ProcessState.RUNNING, os.getpid())
    os.utime(run_path(settings, FLIGHTS), (time.time() - EXPIRY - 5,) * 2)
    status = observe_stream(settings, "flights")
    # A process with this pid runs here: it is not the one.
    assert (status.state, status.pid) == (ProcessState.LOST, None)
    assert status.detail.startswith("no heartbeat from runner for 35")
    beat(run_path(settings, FLIGHTS))
    assert observe_stream(settings, "flights").state is ProcessState.RUNNING


def test_process_of_another_place_is_never_signalled(settings: Settings, place: str) -> None:
    run = record(settings, RUNNER, place)
    with raises(Terminal, "process-elsewhere", match=f"pid {os.getpid()}\\) is a process of runner, another container"):
        run.terminate()


def test_earlier_boot_of_this_host_is_no_other_place(settings: Settings) -> None:
    run = record(settings, FLIGHTS, OTHER_MACHINE, host_name(), age=seconds_since_boot() + 1)
    identity = f"{OTHER_MACHINE.partition('/')[0]}/1"
    assert not replace(run, identity=identity).is_alive()
    run_file(run.path or Path()).write(replace(run, identity=identity))
    os.utime(run.path or Path(), (time.time() - seconds_since_boot() - 1,) * 2)
    assert observe_stream(settings, "flights").state is ProcessState.CRASHED


def test_runner_on_another_machine_with_the_same_host_name_is_waited_for(settings: Settings) -> None:
    run = record(settings, RUNNER, OTHER_MACHINE, host_name())
    with pytest.raises(RunnerAlreadyRunning, match=f"pid {os.getpid()} on {host_name()}"):
        refuse_other_host(settings)
    with raises(Terminal, "process-elsewhere"):
        run.terminate()
    os.utime(run_path(settings, RUNNER), (time.time() - EXPIRY - 1,) * 2)
    refuse_other_host(settings)


def test_age_of_a_heartbeat_is_measured_by_the_clock_of_its_file_system(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(settings, FLIGHTS, age=10)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    age = heartbeat_age(run_path(settings, FLIGHTS))
    assert age is not None
    assert 9 < age < 12
    assert run.is_alive()


def test_replaced_record_is_another_process(settings: Settings) -> None:
    run = record(settings, FLIGHTS)
    assert run.is_alive()
    record(settings, FLIGHTS, OTHER_MACHINE)
    assert not run.is_alive()
    run_path(settings, FLIGHTS).unlink()
    assert not run.is_alive()


def test_report_of_an_earlier_process_with_the_same_pid_does_not_count(settings: Settings) -> None:
    run = record(settings, FLIGHTS)
    earlier = DriverStatus("failed", "no", True, pid=run.pid, at=datetime.now(UTC), identity=f"{this_boot()}/1")
    status_file(settings, FLIGHTS).write(earlier)
    assert read_reported_status(settings, run) is None
    status_file(settings, FLIGHTS).write(replace(earlier, identity=run.identity))
    assert read_reported_status(settings, run) is not None


def test_embedded_broker_elsewhere_has_no_address_here(settings: Settings) -> None:
    record(settings, BROKER)
    assert observe_process(settings, BROKER).state is ProcessState.RUNNING
    with pytest.raises(NoBroker, match="loopback address of runner; others need HEADRACE_KAFKA_BOOTSTRAP"):
        bootstrap_servers(settings)


def test_job_elsewhere_is_ended_by_its_guard(settings: Settings, tmp_path: Path) -> None:
    path = run_path(settings, "plan:p1")
    path.parent.mkdir(parents=True, exist_ok=True)
    limits = (str(os.getpid()), "60", "1", str(path))
    guard = subprocess.Popen(
        [sys.executable, "-m", "include.ground.job_guard", "guard", *limits, "/bin/sleep", "60"], start_new_session=True
    )
    try:
        record(settings, "plan:p1", age=EXPIRY + 5)
        end = time.monotonic() + 10
        while not observe_jobs(settings):
            assert time.monotonic() < end, "the guard sends no heartbeat"
            time.sleep(0.05)
        with raises(Transient, "job-running"):
            refuse_running(settings, "p1")
        children = psutil.Process(guard.pid).children()
        end_request_path(settings, "p1").write_text("")
        assert guard.wait(10) is not None
        assert not any(child.is_running() for child in children)
    finally:
        guard.kill()
        guard.wait()


def test_job_elsewhere_that_does_not_respond_is_an_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    record(settings, "plan:p1")
    monkeypatch.setattr(job_process, "ELSEWHERE_WITHIN", 0.3)
    with raises(Terminal, "process-elsewhere"):
        end_job(settings, "p1")
    os.utime(run_path(settings, "plan:p1"), (time.time() - EXPIRY - 1,) * 2)
    assert not end_job(settings, "p1")


def test_end_of_a_job_in_a_paused_container_stays_requested(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(settings, "plan:p1", age=EXPIRY - 0.5)
    monkeypatch.setattr(job_process, "ELSEWHERE_WITHIN", 10.0)
    assert end_job(settings, "p1")
    assert end_request_path(settings, "p1").exists()


@pytest.mark.parametrize("name", [FLIGHTS, BROKER, CONSOLE, METRICS])
def test_new_runner_forgets_what_its_predecessor_in_another_container_ran(settings: Settings, name: str) -> None:
    record(settings, name)
    record(settings, RUNNER)
    refuse_other_host(settings)
    forget_other_places(settings, print)
    assert read_run_file(settings, name) is None


def test_new_runner_waits_for_the_heartbeat_of_a_runner_on_another_machine(settings: Settings) -> None:
    record(settings, RUNNER, OTHER_MACHINE)
    with pytest.raises(RunnerAlreadyRunning, match=f"pid {os.getpid()} on runner"):
        refuse_other_host(settings)
    os.utime(run_path(settings, RUNNER), (time.time() - EXPIRY - 1,) * 2)
    refuse_other_host(settings)


def test_doctor_finds_that_the_locks_of_another_host_are_not_seen_here(settings: Settings, place: str) -> None:
    assert check_locks_elsewhere(settings) == []
    record(settings, RUNNER, place)
    (unseen,) = check_locks_elsewhere(settings)
    assert (unseen.verdict, "is free here" in unseen.found) == (Verdict.FAIL, True)
    with take_lock(runner_lock_path(settings), "the other one"):
        assert [each.verdict for each in check_locks_elsewhere(settings)] == [Verdict.OK]
    assert check_locks_elsewhere(settings.model_copy(update={"lease_url": "postgresql://x/y"})) == []
    os.utime(run_path(settings, RUNNER), (time.time() - EXPIRY - 1,) * 2)
    assert check_locks_elsewhere(settings) == []


def test_up_starts_no_runner_that_is_a_service(settings: Settings) -> None:
    service = settings.model_copy(update={"runner": "service"})
    with raises(Transient, "no-runner", match="docker compose up -d runner"):
        up_runner(service, lambda line: None)
    record(settings, RUNNER)
    report_progress(settings, RUNNER)
    lines = list[str]()
    up_runner(service, lines.append)
    assert lines == [f"runner: already running, pid {os.getpid()}"]


def test_down_leaves_a_runner_that_is_a_service_and_releases_its_streams(settings: Settings) -> None:
    service = settings.model_copy(update={"runner": "service"})
    record(settings, RUNNER)
    report_progress(settings, RUNNER)
    request_stream(settings, "flights", "test")
    down(service, lambda line: None)
    desired = desired_stream(settings, "flights")
    assert desired is not None
    assert not desired.desired
    assert observe_process(service, RUNNER).pid == os.getpid()
    assert asdict(observe_process(service, RUNNER))["detail"] == ""
