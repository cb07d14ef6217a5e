"""Airflow as a process of the state folder: settings, start, health and login.

Guarantee: the environment sets everything, so a configuration file elsewhere changes nothing.
After a crash: `headrace up --airflow` starts it again on the same database; streams and plans do not notice.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import psutil

from include.ground.durable_files import write_atomically
from include.ground.errors import HeadraceError, Terminal
from include.ground.paths import airflow_path, api_token_path, database_url, log_path
from include.ground.ports import LOOPBACK, chosen_port
from include.ground.processes import NoProgress, Waiting, session_processes
from include.ground.settings import CLONE, Settings, load_settings
from include.run.airflow_parts import PARTS, airflow
from include.run.child_process import spawn
from include.run.runner import Reporter, page_port
from include.run.start_stop import exclusive_command
from include.state.json_file import JsonFile
from include.state.process_states import AIRFLOW, CONSOLE, log_size, log_tail
from include.state.run_files import SAME_START, RunFile, process_signs, read_run_file, remove_run_file

STOP_IDLE = 45.0
"""Seconds without progress after which Airflow is killed."""
USER = "admin"
HEALTHY = "healthy"
# In a container, whose published port is on the loopback address of its host.
ANY_ADDRESS = "0.0.0.0"


class AirflowNotStarted(Terminal):
    """Airflow ended, or was not ready in time; broker and streams continue."""

    def __init__(self, why: str, log: Path, tail: str) -> None:
        super().__init__(f"Airflow {why}\n{tail}", f'read "{log}"; headrace up --airflow tries again')
        self.log, self.tail = log, tail


@dataclass(frozen=True)
class AirflowKeys:
    """Airflow's port and keys, stored between starts; they grant everything that Airflow may do."""

    port: int
    password: str
    fernet_key: str
    secret_key: str
    jwt_secret: str


def new_keys() -> AirflowKeys:
    """Return random keys, without a port."""
    fernet = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return AirflowKeys(0, secrets.token_urlsafe(12), fernet, secrets.token_urlsafe(32), secrets.token_urlsafe(48))


def load_or_create_keys(settings: Settings) -> AirflowKeys:
    """Return the stored keys with a free port; created at the first start, readable by their owner only."""
    home = airflow_path(settings)
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    file = keys_file(settings)
    former = file.read() or new_keys()
    keys = replace(former, port=chosen_port(former.port, settings.airflow_port, "Airflow", "HEADRACE_AIRFLOW_PORT"))
    file.write(keys)
    write_atomically(password_path(settings), json.dumps({USER: keys.password}))
    for secret in (file.path, password_path(settings)):
        secret.chmod(0o600)
    return keys


def keys_file(settings: Settings) -> JsonFile[AirflowKeys]:
    """Return the file of Airflow's keys."""
    path = airflow_path(settings) / "keys.json"
    remedy = f'restore it, or rm "{path}" (new password; connections stored in Airflow become unreadable)'
    return JsonFile(path, AirflowKeys, remedy=remedy, consequence="Airflow was not started")


def password_path(settings: Settings) -> Path:
    """The file of Airflow's passwords: a JSON object by user."""
    return airflow_path(settings) / "passwords.json"


def airflow_database(settings: Settings) -> dict[str, str]:
    """Return Airflow's database settings; only psycopg serves synchronous and asynchronous connections."""
    url = database_url(settings, settings.airflow_database)
    if not url:
        return {
            "sql_alchemy_conn": f"sqlite:///{airflow_path(settings) / 'airflow.db'}",
            "sql_alchemy_connect_args": "headrace_airflow.SQLITE_WAIT",
            "sql_alchemy_connect_args_async": "headrace_airflow.SQLITE_WAIT_ASYNC",
        }
    return {"sql_alchemy_conn": url} | ({"sql_alchemy_conn_async": url} if "+psycopg:" in url else {})


def own_api_token(settings: Settings) -> str:
    """Return the token by which this state folder's Airflow uses the API; created at the first start."""
    path = api_token_path(settings)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{secrets.token_urlsafe(32)}\n")
        path.chmod(0o600)
    return path.read_text("utf-8").strip()


def api_connection(settings: Settings) -> str:
    """Return Airflow's connection to the console's API, as JSON."""
    url = urlsplit(settings.api_url or console_page(settings))
    facts = {"conn_type": "http", "schema": url.scheme, "host": url.hostname, "port": url.port}
    return json.dumps({**facts, "password": own_api_token(settings)})


def console_page(settings: Settings) -> str:
    """Return the address of the runner's console, which it keeps, also while it does not run."""
    run = read_run_file(settings, CONSOLE)
    if run is not None and run.is_alive():
        return str(run.extra["page"])
    return f"http://{LOOPBACK}:{page_port(settings, CONSOLE)}"


def airflow_environment(settings: Settings, keys: AirflowKeys) -> dict[str, str]:
    """Return the environment of Airflow's parts: ours without AIRFLOW variables, and the settings below."""
    page = f"http://{LOOPBACK}:{keys.port}"
    inside = settings.airflow_url or page
    chosen: Mapping[str, Mapping[str, object]] = {
        "core": {
            "dags_folder": CLONE / "dags",
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": 4,
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": password_path(settings),
            "fernet_key": keys.fernet_key,
            "execution_api_server_url": f"{inside}/execution/",
        },
        "api": {
            "host": ANY_ADDRESS if settings.airflow_url else LOOPBACK,
            "port": keys.port,
            "base_url": page,
            "workers": 1,
            "secret_key": keys.secret_key,
            "expose_config": False,
        },
        "logging": {"logging_config_class": "headrace_airflow.task_logs.LOGGING_CONFIG"},
        "api_auth": {"jwt_secret": keys.jwt_secret},
        "database": airflow_database(settings),
        "dag_processor": {"parsing_processes": 1, "refresh_interval": 30},
        # An api-server takes longer than 15 s to restart; a task must survive that.
        # A busy machine answers late, and a run would fail with an empty log when its first call times out.
        "workers": {"max_failed_heartbeats": 20, "execution_api_timeout": 60},
        # A dead task is noticed within a minute instead of five.
        "scheduler": {
            "task_instance_heartbeat_timeout": 60,
            "task_instance_heartbeat_timeout_detection_interval": 5,
            "orphaned_tasks_check_interval": 30,
        },
    }
    given = {
        f"AIRFLOW__{section}__{key}".upper(): str(value)
        for section, values in chosen.items()
        for key, value in values.items()
    }
    own = {
        "AIRFLOW_HOME": str(airflow_path(settings)),
        "HEADRACE_STATE": str(settings.state),
        "AIRFLOW_CONN_HEADRACE_DEFAULT": api_connection(settings),
        "PYTHONPATH": str(CLONE / "airflow_package"),
        "PYTHONUNBUFFERED": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    return {**inherited, **given, **own}


def up_airflow(settings: Settings, report: Reporter) -> RunFile:
    """Start Airflow unless it runs, and wait until all its parts are healthy.

    Raises Terminal without its packages, PortInUse, AirflowNotStarted, and what `exclusive_command` raises.
    """
    with exclusive_command(settings):
        return ensure_airflow(settings, report)


def down_airflow(settings: Settings, report: Reporter) -> bool:
    """End Airflow with all its parts and tasks; return whether it ran. Streams continue."""
    with exclusive_command(settings):
        run = read_run_file(settings, AIRFLOW)
        if run is None:
            return False
        if run.is_alive():
            report(f"{AIRFLOW}: stopping …")
        began = time.monotonic()
        run.terminate()
        by_itself = True
        try:
            signs = partial(process_signs, settings, AIRFLOW)
            Waiting(AIRFLOW, signs, report, STOP_IDLE).holds(lambda: not run.is_alive(), 0.05)
        except NoProgress:
            by_itself = False
        end_session(run)
        how = "stopped" if by_itself else "did not stop by itself and was killed"
        report(f"{AIRFLOW}: {how} after {time.monotonic() - began:.1f} s")
        remove_run_file(settings, AIRFLOW)
        return True


def end_session(run: RunFile) -> None:
    """Kill the remaining processes of Airflow's session."""
    for process in session_processes(run.pid):
        with suppress(psutil.Error):
            if process.create_time() >= run.started - SAME_START:
                process.kill()


def require_airflow() -> None:
    """Raise Terminal unless its packages, a group of their own, are installed."""
    if find_spec("airflow") is None:
        remedy = 'make setup GROUPS="runtime airflow", then the same again'
        raise Terminal("Airflow is not installed; it was not started", remedy, code="airflow-missing")


def ensure_airflow(settings: Settings, report: Reporter) -> RunFile:
    """As `up_airflow`, for a caller that holds the supervision lock."""
    run = read_run_file(settings, AIRFLOW)
    if run is not None and run.is_alive():
        report(f"{AIRFLOW}: already running, pid {run.pid}")
        await_healthy(settings, run, 0, report)
        return run
    if run is not None:
        # Its supervisor is dead; the remaining processes of its session must not run together with the new one.
        end_session(run)
    require_airflow()
    began, since, keys = time.monotonic(), log_size(settings, AIRFLOW), load_or_create_keys(settings)
    report(f"{AIRFLOW}: starting …")
    argv = [sys.executable, "-m", "include.run.airflow_parts"]
    page = f"http://{LOOPBACK}:{keys.port}"
    run = spawn(settings, AIRFLOW, argv, CLONE, airflow_environment(settings, keys), {"port": keys.port, "page": page})
    await_healthy(settings, run, since, report)
    report(f"{AIRFLOW}: ready at {page} after {time.monotonic() - began:.1f} s, pid {run.pid}")
    return run


def await_healthy(settings: Settings, run: RunFile, since: int, report: Reporter) -> None:
    """Wait until every part of Airflow reports healthy. Raises AirflowNotStarted when it ends or makes no progress."""
    log, unhealthy = log_path(settings, AIRFLOW), list[str]()

    def is_healthy() -> bool:
        nonlocal unhealthy
        unhealthy = unhealthy_parts(run)
        if unhealthy and not run.is_alive():
            raise AirflowNotStarted("ended while it was starting", log, log_tail(settings, AIRFLOW, since))
        return not unhealthy

    try:
        Waiting(AIRFLOW, lambda: (unhealthy, process_signs(settings, AIRFLOW)), report).holds(is_healthy, 0.25)
    except NoProgress as error:
        why = f"is not ready ({', '.join(unhealthy)}), {error.why}"
        raise AirflowNotStarted(why, log, log_tail(settings, AIRFLOW, since)) from error


def unhealthy_parts(run: RunFile) -> list[str]:
    """Return the parts that Airflow's health page does not report healthy; the page itself when it does not answer."""
    try:
        with urllib.request.urlopen(f"{run.extra['page']}/api/v2/monitor/health", timeout=5) as answer:
            parts = json.loads(answer.read())
    except (OSError, ValueError):
        return ["api-server"]
    return [name for name, part in parts.items() if (part or {}).get("status") != HEALTHY]


INIT = "init"
REFUSED = 2


def command_of(part: str) -> list[str]:
    """Return the command line of a part; `init` migrates the database."""
    return airflow("db", "migrate") if part == INIT else airflow(*PARTS[part])


def service_environment(part: str) -> dict[str, str]:
    """Return the environment of a part. Raises Terminal before `init` has run, and PasswordUnreadable."""
    settings = load_settings()
    require_airflow()
    keys = load_or_create_keys(settings) if part == INIT else keys_file(settings).read()
    if keys is None:
        what = "Airflow has no keys in the state folder; nothing was started"
        raise Terminal(what, "run the part `init` first", code="not-initialised")
    return airflow_environment(settings, keys)


def main(arguments: Sequence[str]) -> int:
    """Become the part that the one argument names; return 2 when that is impossible."""
    if len(arguments) != 1 or arguments[0] not in (INIT, *PARTS):
        print(f"usage: airflow_process {INIT}|{'|'.join(PARTS)}", file=sys.stderr)
        return REFUSED
    try:
        environment = service_environment(arguments[0])
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return REFUSED
    return become(command_of(arguments[0]), environment)


def become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Execute a command in this process; its files are for this user only."""
    os.umask(0o077)
    os.chdir(CLONE)
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
