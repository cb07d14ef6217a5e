"""The console, the endpoint for Prometheus, and the sender of OpenLineage events: their start, and their ports.

Reads: whether a port is free.  Writes: `console/port.json`, `metrics/port.json`, the run files.
Guarantee: a page has the same address after each start, unless another process has taken the port.
After a crash: the runner starts them again; streams do not notice.
Does not: make a page or an event (include/serve, include/observe, include/observe).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from include.ground.await_progress import NoProgress, Waiting
from include.ground.paths import console_path, metrics_path
from include.ground.ports import LOOPBACK, chosen_port
from include.ground.secret_masking import mask_secrets
from include.ground.settings import CLONE, Settings
from include.run.child_process import spawn, tethered
from include.run.driver_process import driver_environment
from include.state.json_file import JsonFile
from include.state.process_signs import process_signs
from include.state.process_states import CONSOLE, METRICS, OPENLINEAGE, ProcessState, ProcessStatus
from include.state.run_files import RunFile

PAGE_IDLE = 30.0


@dataclass(frozen=True)
class ConsolePort:
    """The port of the last start."""

    port: int = 0


def start_console(settings: Settings) -> RunFile:
    """Start the console on loopback, so that it dies with this process. Raises PortInUse, StateFileUnreadable."""
    port = console_port(settings)
    argv = tethered([sys.executable, "-m", "include.serve.console_server", LOOPBACK, str(port)])
    extra = {"port": port, "page": f"http://{LOOPBACK}:{port}"}
    return spawn(settings, CONSOLE, argv, CLONE, driver_environment(settings), extra)


def start_metrics(settings: Settings) -> RunFile:
    """Start the endpoint on loopback, so that it dies with this process. Raises PortInUse, StateFileUnreadable."""
    path = metrics_path(settings) / "port.json"
    port = _kept_port(path, settings.metrics_port, METRICS, "HEADRACE_METRICS_PORT")
    argv = tethered([sys.executable, "-m", "include.observe.metrics", LOOPBACK, str(port)])
    extra = {"port": port, "page": f"http://{LOOPBACK}:{port}/metrics"}
    return spawn(settings, METRICS, argv, CLONE, driver_environment(settings), extra)


def start_openlineage(settings: Settings) -> RunFile:
    """Start sending events, so that it ends with this process; it continues where events were delivered last."""
    argv = tethered([sys.executable, "-m", "include.observe.lineage_sender"])
    extra = {"receiver": mask_secrets(settings.openlineage_url) or str(settings.openlineage_file)}
    return spawn(settings, OPENLINEAGE, argv, CLONE, driver_environment(settings), extra)


def console_port(settings: Settings) -> int:
    """Return the port for the next start, and keep it. Raises PortInUse."""
    path = console_path(settings) / "port.json"
    return _kept_port(path, settings.console_port, CONSOLE, "HEADRACE_CONSOLE_PORT")


def _kept_port(path: Path, requested: int, name: str, setting: str) -> int:
    file = JsonFile(path, ConsolePort, remedy=f'rm "{path}"', consequence=f"{name} was not started")
    stored = file.read() or ConsolePort()
    port = chosen_port(stored.port, requested, name, setting)
    file.write(ConsolePort(port))
    return port


def await_page(
    settings: Settings, observe: Callable[[Settings], ProcessStatus], report: Callable[[str], object]
) -> ProcessStatus:
    """Return a page's status once it answers or has failed, or when it makes no progress."""
    status = observe(settings)

    def has_settled() -> bool:
        nonlocal status
        status = observe(settings)
        return status.state is ProcessState.RUNNING or status.state.terminal

    with suppress(NoProgress):
        Waiting(status.name, lambda: process_signs(settings, status.name), report, PAGE_IDLE).holds(has_settled)
    return status
