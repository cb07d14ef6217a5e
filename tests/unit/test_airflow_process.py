"""Airflow as a process: secrets only for their owner, settings from the environment alone, parts that come back."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from include.cli.main import app
from include.host.ports import PortInUse
from include.process_control import airflow_parts, airflow_process
from include.process_control.airflow_process import (
    AirflowMissing,
    airflow_environment,
    bring_up_airflow,
    choose_port,
    down_airflow,
    load_or_create_keys,
    password_path,
)
from include.settings import CLONE, Settings
from include.state.process_states import AIRFLOW
from include.state.run_files import RunFile, started_at, write_run_file


def test_keys_are_stored_and_readable_by_the_owner_only(settings: Settings) -> None:
    first = load_or_create_keys(settings)
    assert load_or_create_keys(settings) == first
    home = password_path(settings).parent
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for path in home.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert len({first.password, first.fernet_key, first.secret_key, first.jwt_secret}) == 4


def test_two_state_folders_share_no_secret(tmp_path: Path) -> None:
    one, other = (load_or_create_keys(Settings(state=tmp_path / name)) for name in ("one", "other"))
    assert not {one.password, one.fernet_key, one.jwt_secret} & {other.password, other.fernet_key, other.jwt_secret}


def test_port_is_reused_unless_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert choose_port(port, 0) != port
        with pytest.raises(PortInUse, match="HEADRACE_AIRFLOW_PORT") as refused:
            choose_port(0, port)
        assert "Airflow was not started" in str(refused.value)
    assert choose_port(port, 0) == port


def test_environment_sets_every_airflow_setting(settings: Settings) -> None:
    keys = load_or_create_keys(settings)
    given = airflow_environment(settings, keys)
    assert given["AIRFLOW_HOME"] == str(settings.state / "airflow")
    assert given["HEADRACE_STATE"] == str(settings.state)
    assert given["AIRFLOW__CORE__DAGS_FOLDER"] == str(CLONE / "dags")
    assert given["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert given["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert given["AIRFLOW__API__PORT"] == str(keys.port)
    assert given["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == f"http://127.0.0.1:{keys.port}/execution/"
    assert int(given["AIRFLOW__CORE__PARALLELISM"]) <= 4
    assert given["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{settings.state / 'airflow' / 'airflow.db'}"


def test_database_url_selects_another_database(tmp_path: Path) -> None:
    url = "postgresql+psycopg://headrace@db.example/airflow"
    settings = Settings(state=tmp_path, airflow_database=url)
    given = airflow_environment(settings, load_or_create_keys(settings))
    assert given["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == url
    assert given["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] == url


def test_missing_airflow_packages_name_the_command_that_installs_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_process, "find_spec", lambda name: None)
    with pytest.raises(AirflowMissing, match="make setup"):
        bring_up_airflow(settings, lambda line: None)


def test_naming_datasets_with_no_streams_is_refused() -> None:
    refused = CliRunner().invoke(app, ["up", "flights", "--no-streams"])
    assert (refused.exit_code, "either datasets" in refused.output) == (2, True)


SLEEPER = """
import sys, include.process_control.airflow_parts as parts
part = {part!r}
parts.airflow = lambda *words: [sys.executable, '-c', 'pass' if words == ('db', 'migrate') else part]
parts.TERMINATE_WITHIN = 2
sys.exit(parts.main())
"""
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture
def keeper(settings: Settings, request: pytest.FixtureRequest) -> Iterator[RunFile]:
    """The process that keeps the parts, with sleepers for parts, as Airflow's run file names it."""
    first = getattr(request, "param", "pass")
    script = SLEEPER.format(part=f"import signal, time; {first}; time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=CLONE, start_new_session=True, stdout=subprocess.DEVNULL
    )
    run = RunFile(AIRFLOW, process.pid, started_at(process.pid), ["-"], {"port": 1, "page": "-"})
    write_run_file(settings, run)
    reaper = threading.Thread(target=process.wait, daemon=True)
    reaper.start()
    yield run
    for left in session(run):
        left.kill()


def session(run: RunFile) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == run.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def await_parts(run: RunFile, without: int = 0, many: int = len(airflow_parts.PARTS)) -> list[psutil.Process]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        parts = [process for process in session(run) if process.pid not in (run.pid, without)]
        if len(parts) == many:
            return parts
        time.sleep(0.1)
    raise AssertionError(f"there are not {many} processes of parts")


def test_killed_part_is_restarted(keeper: RunFile) -> None:
    before = {process.pid for process in await_parts(keeper)}
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    after = {process.pid for process in await_parts(keeper, victim)}
    assert before & after == before - {victim}


@pytest.mark.parametrize("keeper", [PARENT], indirect=True)
def test_children_of_a_dead_part_are_ended(keeper: RunFile) -> None:
    before = await_parts(keeper, many=2 * len(airflow_parts.PARTS))
    parts = [process for process in before if process.ppid() == keeper.pid]
    (child,) = parts[0].children()
    parts[0].kill()
    child.wait(15)
    after = await_parts(keeper, many=2 * len(airflow_parts.PARTS))
    assert {process.pid for process in parts[1:]} <= {process.pid for process in after}


def test_down_ends_every_part(settings: Settings, keeper: RunFile) -> None:
    await_parts(keeper)
    assert down_airflow(settings, lambda line: None)
    assert session(keeper) == []
    assert not down_airflow(settings, lambda line: None)


@pytest.mark.parametrize("keeper", [DEAF], indirect=True)
def test_sigterm_ends_parts_that_ignore_it(keeper: RunFile) -> None:
    await_parts(keeper)
    # A part is deaf only once its Python has come so far.
    time.sleep(1)
    os.kill(keeper.pid, signal.SIGTERM)
    await_nobody(keeper)


def await_nobody(run: RunFile) -> None:
    end = time.monotonic() + 15
    while session(run) and time.monotonic() < end:
        time.sleep(0.1)
    assert session(run) == []


def test_parts_end_with_their_supervisor(keeper: RunFile) -> None:
    await_parts(keeper)
    os.kill(keeper.pid, signal.SIGKILL)
    await_nobody(keeper)


def test_failing_part_is_restarted_at_growing_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_parts, "airflow", lambda *words: [sys.executable, "-c", "raise SystemExit(3)"])
    monkeypatch.setattr(airflow_parts, "LONGEST_PAUSE", 0.05)
    part, pauses = airflow_parts.start_part("scheduler"), []
    part.pause = 0.01
    for _ in range(5):
        part.process.wait(20)
        part = airflow_parts.restart_if_exited(part, threading.Event())
        pauses.append(part.pause)
    part.process.wait(20)
    assert pauses == [0.02, 0.04, 0.05, 0.05, 0.05]
