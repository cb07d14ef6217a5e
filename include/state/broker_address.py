"""Address of the Kafka broker that this state folder uses."""

from __future__ import annotations

from pathlib import Path

from include.ground.errors import Transient
from include.ground.kafka_address import KafkaAddress, KafkaSecurity
from include.ground.password_file import read_password
from include.ground.ports import is_open
from include.ground.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.process_states import BROKER, ProcessState
from include.state.run_files import RunFile, is_alive, is_elsewhere, is_suspended, read_run_file


class NoBroker(Transient):
    """No broker runs in this state folder."""

    def __init__(self, state: Path, found: str) -> None:
        super().__init__(f"no broker is running for {state} (it is {found})", "headrace up")
        self.state = state


def bootstrap_servers(settings: Settings) -> str:
    """Return the address of the user's own Kafka, or of the running broker; NoBroker when none is running."""
    if settings.kafka_bootstrap:
        return external_address(settings)
    try:
        run = read_run_file(settings, BROKER)
    except StateFileUnreadable as error:
        raise NoBroker(settings.state, ProcessState.UNKNOWN.label) from error
    if run is None:
        raise NoBroker(settings.state, ProcessState.STOPPED.label)
    state = broker_state(run)
    if state is not ProcessState.RUNNING:
        raise NoBroker(settings.state, state.label)
    if is_elsewhere(run):
        raise NoBroker(settings.state, f"at the loopback address of {run.host}; others need HEADRACE_KAFKA_BOOTSTRAP")
    return str(run.extra["bootstrap"])


def external_address(settings: Settings) -> KafkaAddress:
    """Return the address of the user's own Kafka. Raises PasswordUnreadable."""
    protocol, ca_file = settings.kafka_security, settings.kafka_ca_file
    password = ""
    if protocol.startswith("SASL") and settings.kafka_password_file:
        password = read_password("HEADRACE_KAFKA_PASSWORD_FILE", settings.kafka_password_file)
    login = (settings.kafka_mechanism, settings.kafka_user, password) if password else ("", "", "")
    security = KafkaSecurity(protocol, *login, str(ca_file) if ca_file else "")
    return KafkaAddress(settings.kafka_bootstrap, security)


def external_state(settings: Settings) -> tuple[ProcessState, str]:
    """Return whether one of the servers of the user's own Kafka accepts connections, and the address in words."""
    named = f"{settings.kafka_bootstrap}, your own Kafka"
    for server in settings.kafka_bootstrap.split(","):
        host, _, port = server.rpartition(":")
        if is_open(int(port), host=host):
            return ProcessState.RUNNING, named
    return ProcessState.WAITING, f"{named}, accepts no connection"


def broker_state(run: RunFile) -> ProcessState:
    """Return the broker's state from its run file, the process table and its port; elsewhere from its heartbeat."""
    if is_elsewhere(run):
        return ProcessState.RUNNING if is_alive(run) else ProcessState.LOST
    if is_suspended(run):
        return ProcessState.UNKNOWN
    if not is_alive(run):
        return ProcessState.CRASHED
    return ProcessState.RUNNING if is_open(int(run.extra.get("port", 0))) else ProcessState.STARTING
