"""Address of the Kafka broker that this state folder uses."""

from __future__ import annotations

from pathlib import Path

from include.errors import Transient
from include.host.ports import is_open
from include.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.process_states import BROKER, ProcessState
from include.state.run_files import RunFile, is_alive, is_suspended, read_run_file


class NoBroker(Transient):
    """No broker runs in this state folder."""

    def __init__(self, state: Path, found: str) -> None:
        super().__init__(f"no broker is running for {state} (it is {found})", "headrace up")
        self.state = state


def bootstrap_servers(settings: Settings) -> str:
    """Return the address of the running broker, `host:port`; NoBroker when none is running."""
    try:
        run = read_run_file(settings, BROKER)
    except StateFileUnreadable as error:
        raise NoBroker(settings.state, ProcessState.UNKNOWN.label) from error
    if run is None:
        raise NoBroker(settings.state, ProcessState.STOPPED.label)
    state = broker_state(run)
    if state is not ProcessState.RUNNING:
        raise NoBroker(settings.state, state.label)
    return str(run.extra["bootstrap"])


def broker_state(run: RunFile) -> ProcessState:
    """Return the broker's state from its run file, the process table and its port."""
    if is_suspended(run):
        return ProcessState.UNKNOWN
    if not is_alive(run):
        return ProcessState.CRASHED
    return ProcessState.RUNNING if is_open(int(run.extra.get("port", 0))) else ProcessState.STARTING
