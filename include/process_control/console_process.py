"""The console as a process of the state folder: its port, its start, its log-in.

Reads: whether its port is free.  Writes: `console/port.json`, the run file.
Guarantee: it has the same address after each start, unless another process has taken the port.
After a crash: the runner starts it again; streams do not notice.
Does not: show anything (include/console).
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from include.host.ports import LOOPBACK, chosen_port
from include.paths import console_path
from include.process_control.child_process import spawn, tethered
from include.process_control.driver_process import driver_environment
from include.settings import CLONE, Settings
from include.state.json_file import JsonFile
from include.state.process_states import CONSOLE, ProcessState, ProcessStatus
from include.state.run_files import RunFile
from include.status.process_status import observe_console

READY_WITHIN = 30.0


@dataclass(frozen=True)
class ConsolePort:
    """The port of the last start."""

    port: int = 0


def start_console(settings: Settings) -> RunFile:
    """Start the console on loopback, so that it dies with this process. Raises PortInUse, StateFileUnreadable."""
    port = console_port(settings)
    argv = tethered([sys.executable, "-m", "include.console.console_server", LOOPBACK, str(port)])
    extra = {"port": port, "page": f"http://{LOOPBACK}:{port}"}
    return spawn(settings, CONSOLE, argv, CLONE, driver_environment(settings), extra)


def console_port(settings: Settings) -> int:
    """Return the port for the next start, and keep it. Raises PortInUse."""
    path = console_path(settings) / "port.json"
    file = JsonFile(path, ConsolePort, remedy=f'rm "{path}"', consequence="the console was not started")
    stored = file.read() or ConsolePort()
    port = chosen_port(stored.port, settings.console_port, "console", "HEADRACE_CONSOLE_PORT")
    file.write(ConsolePort(port))
    return port


def await_console(settings: Settings) -> ProcessStatus:
    """Return the console's status once it answers or was given up; after 30 seconds whatever it is."""
    began, status = time.monotonic(), observe_console(settings)
    while status.state is not ProcessState.RUNNING and not status.state.terminal:
        if time.monotonic() - began > READY_WITHIN:
            return status
        time.sleep(0.1)
        status = observe_console(settings)
    return status
