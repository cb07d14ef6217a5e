"""An Airflow of somebody else: its own home and Python environment, with what the package requires and nothing else."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from stack_tools.airflow_rest import AirflowRest

from include.ground.ports import free_ports
from include.ground.settings import CLONE

READY_WITHIN = 240.0
PACKAGE = CLONE / "airflow_package"
MISSING = ("include", "spark_jobs", "pyspark", "delta", "duckdb", "deltalake", "pyarrow", "confluent_kafka")


def environment_of_its_own(folder: Path) -> Path:
    """Return the Python of an environment with `headrace_airflow` and what its distribution requires, nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("lib/python*/site-packages")
    for found in required_distributions(tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]):
        for path in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (own / path).exists():
                (own / path).symlink_to(Path(str(found.locate_file(path))))
    install_package(own, folder / "package")
    python = folder / "bin" / "python"
    command = folder / "bin" / "airflow"
    command.write_text(f'#!/bin/sh\nexec "{python}" -m airflow "$@"\n')
    command.chmod(0o755)
    looked_for = f"from importlib.util import find_spec; print([n for n in {MISSING!r} if find_spec(n)])"
    looked = subprocess.run([python, "-I", "-c", looked_for], capture_output=True, text=True, check=True)
    assert looked.stdout.strip() == "[]", f"the environment has packages of Headrace: {looked.stdout}"
    return python


def install_package(site_packages: Path, scratch: Path) -> None:
    """Install the package from a wheel: Airflow finds its plugin, and with it the listener, by the wheel's metadata."""
    shutil.copytree(PACKAGE, scratch / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(scratch)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=scratch / "source", capture_output=True, check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site_packages)


def required_distributions(project: Mapping[str, Any]) -> list[Distribution]:
    """Return the installed distributions that a project requires, with what these require."""
    found: dict[str, Distribution] = {}
    wanted = [(Requirement(each), "") for each in project["dependencies"]]
    seen = set[tuple[str, str]]()
    while wanted:
        requirement, extra = wanted.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for each in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), each)
            if key not in seen:
                seen.add(key)
                found[key[0]] = distribution(requirement.name)
                wanted += [(Requirement(line), each) for line in found[key[0]].requires or ()]
    return list(found.values())


def plain_environment() -> dict[str, str]:
    """Return this process's environment without what concerns Headrace, Airflow or Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE", "AIRFLOW", "PYTHON"))}


@contextmanager
def foreign_airflow(folder: Path, datasets: list[str], connection: dict[str, object]) -> Iterator[AirflowRest]:
    """Start an Airflow with the DAGs of these datasets; yield its REST API, and end it."""
    python = environment_of_its_own(folder / "venv")
    home, port, password = folder / "home", free_ports(1)[0], secrets.token_urlsafe(12)
    shutil.copytree(CLONE / "dags", home / "dags")
    (home / "passwords.json").write_text(json.dumps({"admin": password}))
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
        command = [str(python.parent / "airflow"), "standalone"]
        process = subprocess.Popen(command, cwd=home, env=plain_environment() | given, stdout=log, stderr=log)
    try:
        rest = AirflowRest(f"http://127.0.0.1:{port}", "admin", password)
        await_dags(rest, len(datasets) * 6 + 3, folder / "airflow.log", process)
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
