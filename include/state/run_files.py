"""Run files: a process is its place, pid and start time. A pid alone is never trusted: the system reuses pids.

A process of another place (container, host) is known by its heartbeat only, and never signalled (adr-0002).
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from include.ground.errors import Terminal, Transient
from include.ground.kafka_address import KafkaAddress, KafkaSecurity
from include.ground.paths import run_path
from include.ground.ports import is_open
from include.ground.processes import (
    any_thread_runs,
    boot_of,
    cpu_steps,
    host_name,
    session_processes,
    this_boot,
    this_place,
)
from include.ground.settings import Settings, read_password
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.process_states import BROKER, ProcessState, job_name, log_size

# A runner touches the files each second; a step that reads declarations on a busy machine takes some.
EXPIRY = 30.0


def beat(path: Path) -> None:
    """Send a heartbeat for the process of a run file; nothing happens when the file is gone or cannot be written."""
    with suppress(OSError):
        os.utime(path)


def heartbeat_age(path: Path) -> float | None:
    """Return the seconds since the last heartbeat, None without a run file."""
    try:
        beaten = path.stat().st_mtime
    except FileNotFoundError:
        return None
    return max(0.0, file_system_now(path.parent) - beaten)


def beaten_since_boot(path: Path) -> bool:
    """Return whether the last heartbeat is younger than this boot: no earlier boot of the machine sent it."""
    age = heartbeat_age(path)
    return age is not None and age < seconds_since_boot()


def seconds_since_boot() -> float:
    """Return the seconds since this machine was booted, also those of its sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def file_system_now(folder: Path) -> float:
    """Return the time as the file system stamps it: on a network volume this host's clock may be seconds off."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stamp:
            return os.fstat(stamp.fileno()).st_mtime
    except OSError:
        # Read-only, or full.
        return time.time()


# The start time is counted from the boot time, which the kernel corrects by parts of a second when the clock is set.
SAME_START = 2.0


@dataclass(frozen=True)
class RunFile:
    """Record of a started process. `started` is psutil's create_time (epoch seconds); `extra` is the process's own.

    `identity` does not depend on the clock; `place` and `host` say where the process is. Run files of earlier versions
    have none of these. `path` is the file that this was read from.
    """

    name: str
    pid: int
    started: float
    argv: list[str]
    extra: dict[str, Any] = field(default_factory=dict)
    identity: str = field(default="", compare=False)
    place: str = field(default="", compare=False)
    host: str = field(default="", compare=False)
    path: Path | None = field(default=None, compare=False)

    def is_elsewhere(self) -> bool:
        """Whether the process is, or was, one of another container or host. An earlier boot of this host is none.

        Hosts may have the same name, as the containers of a stack have on each machine.
        """
        if self.place in ("", this_place()):
            return False
        if boot_of(self.place) == this_boot() or self.host != host_name():
            return True
        return self.path is not None and beaten_since_boot(self.path)

    def has_heartbeat(self) -> bool:
        """Whether a process elsewhere has sent a heartbeat lately, by the run file that it was read from."""
        if self.path is None or (now := run_file(self.path).read_if_valid()) is None:
            return False
        same = now == self and (now.place, now.identity) == (self.place, self.identity)
        age = heartbeat_age(self.path)
        return same and age is not None and age < EXPIRY

    def missing_heartbeat(self) -> str:
        """Return since when a process elsewhere has sent no heartbeat, in words."""
        age = heartbeat_age(self.path) if self.path else None
        return (
            f"no heartbeat from {self.host} for {age:.0f} s" if age is not None else f"it was a process of {self.host}"
        )

    def is_alive(self) -> bool:
        """Whether any thread of this process still runs; another process with the same pid does not count."""
        if self.is_elsewhere():
            return self.has_heartbeat()
        try:
            process = psutil.Process(self.pid)
            return self._is(process) and any_thread_runs(process)
        except psutil.NoSuchProcess:
            return False

    def _is(self, process: psutil.Process) -> bool:
        if self.identity:
            return self.identity == identity_of(self.pid)
        return bool(abs(process.create_time() - self.started) < SAME_START)

    def is_suspended(self) -> bool:
        """Whether the process is suspended (SIGSTOP); unknown for one elsewhere."""
        if self.is_elsewhere():
            return False
        try:
            return self.is_alive() and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def is_job_alive(self) -> bool:
        """Whether a job has running processes; of one elsewhere its guard sends the heartbeat."""
        return self.has_heartbeat() if self.is_elsewhere() else bool(self.job_processes())

    def job_processes(self) -> list[psutil.Process]:
        """Return the running processes of a job, which leads a session; also those that outlived the leader.

        Empty for a job elsewhere.
        """
        if self.is_elsewhere():
            return []
        with suppress(psutil.NoSuchProcess):
            if not self._is(psutil.Process(self.pid)):
                return []
        return session_processes(self.pid)

    def terminate(self) -> None:
        """Send SIGTERM; no effect if the process is gone."""
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to exactly this process. Raises Terminal (`process-elsewhere`)."""
        if self.is_elsewhere():
            raise process_elsewhere(self)
        with suppress(ProcessLookupError):
            if self.is_alive():
                os.kill(self.pid, number)

    def wait_gone(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the process to exit; return whether it did."""
        end = time.monotonic() + timeout
        while self.is_alive():
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True


def process_elsewhere(run: RunFile) -> Terminal:
    """Return that a process of another container or host was to be signalled."""
    what = f"{run.name} (pid {run.pid}) is a process of {run.host}, another container or host; it was not signalled"
    remedy = "the same command there, or in the runner's container: docker compose exec runner headrace …"
    return Terminal(what, remedy, code="process-elsewhere", process=run.name, pid=run.pid, host=run.host)


def run_file(path: Path) -> JsonFile[RunFile]:
    """Return the run file at `path`."""
    return JsonFile(
        path,
        RunFile,
        remedy=f'headrace status; end the process if it still runs, then rm "{path}"',
        consequence="it may belong to a running process, which was left alone",
        upgrade=_nested_extra,
    )


def read_run_file(settings: Settings, name: str) -> RunFile | None:
    """Return the run file of a process, None without one. Raises StateFileUnreadable."""
    run = run_file(path := run_path(settings, name)).read()
    return None if run is None else replace(run, path=path)


def write_run_file(settings: Settings, run: RunFile) -> None:
    """Write the record of a process. Raises OSError; no partial file is left."""
    here = replace(run, identity=identity_of(run.pid), place=this_place(), host=host_name(), path=None)
    run_file(run_path(settings, run.name)).write(here)


def _nested_extra(content: dict[str, Any]) -> dict[str, Any]:
    """Earlier versions wrote the extra facts next to the others."""
    known = ("name", "pid", "started", "argv", "identity", "place", "host", "path")
    extra = {key: value for key, value in content.items() if key not in (*known, "extra")}
    return {**{key: content[key] for key in known if key in content}, "extra": {**content.get("extra", {}), **extra}}


def remove_run_file(settings: Settings, name: str) -> None:
    """Remove the record of a process that was stopped on request."""
    run_path(settings, name).unlink(missing_ok=True)


def identity_of(pid: int) -> str:
    """Return boot and start of a process in clock ticks since then, which no change of the clock moves; "" if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{this_boot()}/{fields[19]}"
    except OSError:
        return ""


def job_run_files(settings: Settings) -> list[RunFile]:
    """Return the run files of bounded jobs, sorted by name; unreadable ones are left out."""
    paths = run_path(settings, job_name("")).parent.glob("plan-*.json")
    found = [replace(run, path=path) for path in paths if (run := run_file(path).read_if_valid()) is not None]
    return sorted(found, key=lambda run: run.name)


def end_request_path(settings: Settings, job: str) -> Path:
    """The file by which a job's guard, wherever it runs, is requested to end the job."""
    return run_path(settings, job_name(job)).with_suffix(".end")


def started_at(pid: int) -> float:
    """Return the start time of a child process, epoch seconds (one that died at once is a zombie and has one)."""
    return float(psutil.Process(pid).create_time())


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
    if run.is_elsewhere():
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
    if run.is_elsewhere():
        return ProcessState.RUNNING if run.is_alive() else ProcessState.LOST
    if run.is_suspended():
        return ProcessState.UNKNOWN
    if not run.is_alive():
        return ProcessState.CRASHED
    return ProcessState.RUNNING if is_open(int(run.extra.get("port", 0))) else ProcessState.STARTING


def process_signs(settings: Settings, *names: str) -> tuple[tuple[int, int], ...]:
    """Return for each process the size of its log and its processor time, which differ after progress."""
    return tuple((log_size(settings, name), cpu_steps([_pid(settings, name)])) for name in names)


def _pid(settings: Settings, name: str) -> int | None:
    """Return the process that works for a process: a dataset's own one in a shared driver does nothing."""
    with suppress(StateFileUnreadable):
        run = read_run_file(settings, name)
        if run is not None and not run.is_elsewhere():
            return _pid(settings, run.extra["driver"]) if "driver" in run.extra else run.pid
    return None
