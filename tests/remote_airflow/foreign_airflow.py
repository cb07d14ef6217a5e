"""An Airflow of somebody else: its own home and Python environment, from which `include` cannot be imported."""

from __future__ import annotations

import json
import os
import secrets
import signal
import site as python_site
import subprocess
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from stack_tools.airflow_rest import AirflowRest

from include.ground.ports import free_ports
from include.ground.settings import CLONE

READY_WITHIN = 240.0
DAGS = """
from headrace_airflow.dag_factory import headrace_dags

globals().update(headrace_dags({datasets!r}))
"""


def environment_without_headrace(folder: Path) -> Path:
    """Return the Python of an environment with the installed packages and `headrace_airflow`, without this project."""
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("lib/python*/site-packages")
    # A folder that a .pth file names is not searched for others: this project's editable installation is not found.
    (own / "packages.pth").write_text("\n".join([*python_site.getsitepackages(), str(CLONE / "airflow_package")]))
    python = folder / "bin" / "python"
    command = folder / "bin" / "airflow"
    command.write_text(f'#!/bin/sh\nexec "{python}" -m airflow "$@"\n')
    command.chmod(0o755)
    found = subprocess.run(
        [python, "-c", "import include.ground.settings"], capture_output=True, cwd=folder, check=False
    )
    assert found.returncode != 0, "include can be imported"
    return python


@contextmanager
def foreign_airflow(folder: Path, datasets: list[str], connection: dict[str, object]) -> Iterator[AirflowRest]:
    """Start an Airflow with the DAGs of these datasets; yield its REST API, and end it."""
    python = environment_without_headrace(folder / "venv")
    home, port, password = folder / "home", free_ports(1)[0], secrets.token_urlsafe(12)
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "headrace.py").write_text(DAGS.format(datasets=datasets))
    (home / "passwords.json").write_text(json.dumps({"admin": password}))
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE", "AIRFLOW", "PYTHON"))
    }
    given = {
        "AIRFLOW_HOME": str(home),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "AIRFLOW_CONN_HEADRACE_DEFAULT": json.dumps(connection),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    }
    with (folder / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            [str(python.parent / "airflow"), "standalone"], cwd=home, env=plain | given, stdout=log, stderr=log
        )
    try:
        rest = AirflowRest(f"http://127.0.0.1:{port}", "admin", password)
        await_dags(rest, len(datasets) * 4 + 1, folder / "airflow.log", process)
        yield rest
    finally:
        end(process)


def await_dags(rest: AirflowRest, count: int, log: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until Airflow answers and has read the DAGs."""
    end_at, found = time.monotonic() + READY_WITHIN, -1
    while found < count:
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < end_at, f"{found} DAGs\n{log.read_text()[-6000:]}"
        try:
            found = rest.call("GET", "/dags")["total_entries"]
        except Exception:  # noqa: BLE001  (it starts)
            time.sleep(1)
        time.sleep(1)


def end(process: subprocess.Popen[bytes]) -> None:
    """End Airflow with all its parts."""
    parts = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
    for part in parts:
        if part.is_running():
            part.kill()
