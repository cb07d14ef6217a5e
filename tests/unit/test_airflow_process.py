"""Airflow as a process: secrets only for their owner, settings from the environment alone, parts that come back."""

from __future__ import annotations

import logging
import logging.config
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import psutil
import pytest
from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG
from error_codes import raises
from headrace_airflow.task_logs import LOGGING_CONFIG, LocalTaskLogs
from typer.testing import CliRunner

from include.cli import up as airflow_command
from include.cli.main import app
from include.cli.up import NEXT_IN_AIRFLOW
from include.ground.errors import Refused, Terminal
from include.ground.ports import PortInUse
from include.ground.settings import CLONE, Settings
from include.run import airflow_parts, airflow_process
from include.run.airflow_process import (
    airflow_environment,
    down_airflow,
    ensure_airflow,
    keys_file,
    load_or_create_keys,
    password_path,
)
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


def test_port_is_reused_unless_it_is_taken(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        keys_file(settings).write(replace(load_or_create_keys(settings), port=port))
        assert load_or_create_keys(settings).port != port
        with pytest.raises(PortInUse, match="HEADRACE_AIRFLOW_PORT") as refused:
            load_or_create_keys(settings.model_copy(update={"airflow_port": port}))
        assert "Airflow was not started" in str(refused.value)
    keys_file(settings).write(replace(load_or_create_keys(settings), port=port))
    assert load_or_create_keys(settings).port == port


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


def test_sqlite_database_waits_for_its_writer_and_readers_do_not(settings: Settings) -> None:
    """Two of 36 triggers in sequence failed: "database is locked"."""
    given = airflow_environment(settings, load_or_create_keys(settings))
    for key in ("SQL_ALCHEMY_CONNECT_ARGS", "SQL_ALCHEMY_CONNECT_ARGS_ASYNC"):
        module, _, name = given[f"AIRFLOW__DATABASE__{key}"].rpartition(".")
        assert getattr(import_module(module), name)["timeout"] == 60
    database = given["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    path = database.removeprefix("sqlite:///")
    airflow_parts.use_write_ahead_log(database)
    with closing(sqlite3.connect(path)) as writer, closing(sqlite3.connect(path, timeout=0)) as reader:
        writer.execute("create table runs (id)")
        writer.commit()
        writer.execute("begin exclusive")
        writer.execute("insert into runs values (1)")
        assert reader.execute("select count(*) from runs").fetchone() == (0,)
    airflow_parts.use_write_ahead_log("postgresql+psycopg://headrace@db.example/airflow")


def test_log_of_a_running_task_is_read_from_its_file_alone(settings: Settings, tmp_path: Path) -> None:
    """Every log of a running task had "Could not read served logs": there is no log server."""
    given = airflow_environment(settings, load_or_create_keys(settings))
    assert given["AIRFLOW__LOGGING__LOGGING_CONFIG_CLASS"] == "headrace_airflow.task_logs.LOGGING_CONFIG"
    handler = logging.config.DictConfigurator(LOGGING_CONFIG).configure_handler(  # type: ignore[attr-defined]
        {**LOGGING_CONFIG["handlers"]["task"], "base_log_folder": str(tmp_path), "filters": [], "formatter": None}
    )
    assert isinstance(handler, LocalTaskLogs)
    assert handler._read_from_logs_server(None, "any.log") == ([], [])
    assert DEFAULT_LOGGING_CONFIG["handlers"]["task"]["class"].endswith(".FileTaskHandler"), "Airflow's own stays"


@pytest.mark.parametrize(
    "words", [["dags", "list", "--output", "json"], ["--version"], ["backfill", "create", "--help"]]
)
def test_airflow_command_gets_words_and_environment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """A plain `airflow` found another database, and what the page of the DAG says did not work."""
    keys = load_or_create_keys(settings)
    started = list[tuple[list[str], dict[str, str]]]()
    monkeypatch.setattr(airflow_command, "load_settings", lambda: settings)
    monkeypatch.setattr(airflow_command.os, "execve", lambda _, argv, given: started.append((argv, given)))
    monkeypatch.setattr(airflow_command.os, "chdir", lambda _: None)
    CliRunner().invoke(app, ["airflow", *words], catch_exceptions=False)
    ((argv, given),) = started
    assert argv[1:] == ["-m", "airflow", *words]
    assert given["AIRFLOW_HOME"] == airflow_environment(settings, keys)["AIRFLOW_HOME"]


def test_airflow_command_without_airflow_names_the_command_that_starts_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_command, "load_settings", lambda: settings)
    refused = CliRunner().invoke(app, ["airflow", "dags", "list"]).exception
    assert isinstance(refused, Refused)
    assert (refused.code, refused.remedy) == ("airflow-never-started", "headrace up --airflow")


def test_up_says_what_to_do_next_in_airflow() -> None:
    assert "Unpause stream__<dataset>" in NEXT_IN_AIRFLOW


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
    with raises(Terminal, "airflow-missing", match="make setup"):
        ensure_airflow(settings, lambda line: None)


def test_naming_datasets_with_no_streams_is_refused() -> None:
    refused = CliRunner().invoke(app, ["up", "flights", "--no-streams"])
    assert (refused.exit_code, "either datasets" in refused.output) == (2, True)


SLEEPER = """
import sys, include.run.airflow_parts as parts
part = {part!r}
parts.airflow = lambda *words: [sys.executable, '-c', 'pass' if words == ('db', 'migrate') else part]
parts.LOOK_EVERY = 0.1
parts.TERMINATE_WITHIN = 0.5
parts.ORPHAN_GRACE = 0.5
sys.exit(parts.main())
"""
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"


def log_of(folder: Path) -> Path:
    return folder / "parts.log"


@pytest.fixture
def keeper(settings: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunFile]:
    """The process that keeps the parts, with sleepers for parts, as Airflow's run file names it."""
    first = getattr(request, "param", "pass")
    script = SLEEPER.format(part=f"import signal, time; {first}; time.sleep(600)")
    with log_of(tmp_path).open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", script], cwd=CLONE, start_new_session=True, stdout=log)
    run = RunFile(AIRFLOW, process.pid, started_at(process.pid), ["-"], {"port": 1, "page": "-"})
    write_run_file(settings, run)
    reaper = threading.Thread(target=process.wait, daemon=True)
    reaper.start()
    yield run
    for left in session(run):
        # A part may end by itself meanwhile.
        with suppress(psutil.NoSuchProcess):
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
        time.sleep(0.02)
    raise AssertionError(f"there are not {many} processes of parts")


def await_deafness(folder: Path) -> None:
    """Wait until each part, or its child, has come so far in its script that it ignores SIGTERM."""
    end = time.monotonic() + 30
    while log_of(folder).read_text().splitlines().count("deaf") < len(airflow_parts.PARTS):
        assert time.monotonic() < end
        time.sleep(0.02)


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


DEAF_PARENT = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
    f"{f'import signal, time; {DEAF}; time.sleep(600)'!r}])"
)


@pytest.mark.parametrize("keeper", [DEAF_PARENT], indirect=True)
def test_orphan_that_ignores_sigterm_is_killed_and_logged_twice(keeper: RunFile, tmp_path: Path) -> None:
    """Idle workers of a killed scheduler ignore SIGTERM: they got one each second, with a line in the log, for ever."""
    before = await_parts(keeper, many=2 * len(airflow_parts.PARTS))
    parts = [process for process in before if process.ppid() == keeper.pid]
    (child,) = parts[0].children()
    await_deafness(tmp_path)
    parts[0].kill()
    child.wait(30)
    lines = [line for line in log_of(tmp_path).read_text().splitlines() if f"pid {child.pid}: orphan" in line]
    assert [line.partition("orphan, ")[2].partition(":")[0].split()[0] for line in lines] == ["terminated", "still"]


def test_down_ends_every_part(settings: Settings, keeper: RunFile) -> None:
    await_parts(keeper)
    assert down_airflow(settings, lambda line: None)
    assert session(keeper) == []
    assert not down_airflow(settings, lambda line: None)


@pytest.mark.parametrize("keeper", [DEAF], indirect=True)
def test_sigterm_ends_parts_that_ignore_it(keeper: RunFile, tmp_path: Path) -> None:
    await_deafness(tmp_path)
    os.kill(keeper.pid, signal.SIGTERM)
    await_nobody(keeper)


def await_nobody(run: RunFile) -> None:
    end = time.monotonic() + 15
    while session(run) and time.monotonic() < end:
        time.sleep(0.02)
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
