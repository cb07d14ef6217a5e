"""Names of the processes, the states they can be in, the runner's record of them, their logs, and who ended a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from include.ground.paths import log_path, run_path, status_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile

RUNNER = "runner"
BROKER = "broker"
AIRFLOW = "airflow"
CONSOLE = "console"
METRICS = "metrics"
OPENLINEAGE = "openlineage"
STREAM = "stream:"
DRIVER = "driver:"
JOB = "plan:"


def stream_name(dataset: str) -> str:
    """Process name of a dataset's stream."""
    return f"{STREAM}{dataset}"


def job_name(job: str) -> str:
    """Process name of a bounded job: that of a plan, a maintenance or a repair."""
    return f"{JOB}{job}"


class ProcessState(Enum):
    """State of a process as observed from outside: label, meaning, and whether the process is gone."""

    STARTING = ("starting", "started, not ready yet", False)
    RUNNING = ("running", "running", False)
    WAITING = ("waiting", "running, waiting for another system", False)
    HALTED = ("halted", "ingest continues, refine failed and is retried", False)
    DRAINING = ("draining", "finishing its batch, then it stops", False)
    PENDING = ("pending", "desired but not running, the runner starts it", False)
    ASLEEP = ("asleep", "nothing comes; the runner wakes it when its topic has records", False)
    STOPPED = ("stopped", "not running, not desired", True)
    FAILED = ("failed", "gave up and reported a reason", True)
    CRASHED = ("crashed", "exited without a final status", True)
    LOST = ("lost", "its container or host sends no heartbeat", False)
    UNKNOWN = ("unknown", "the process exists but does not report, or its record cannot be read", False)

    def __init__(self, label: str, meaning: str, terminal: bool) -> None:
        self.label = label
        self.meaning = meaning
        self.terminal = terminal


STATES = {state.label: state for state in ProcessState}


WORKING_STATES = {ProcessState.RUNNING, ProcessState.WAITING, ProcessState.HALTED}


@dataclass(frozen=True)
class ProcessStatus:
    """Current status of `runner`, `broker`, `stream:<dataset>` or `plan:<job>`: pid (None when gone), state and detail.

    From the runner's record: number of restarts, reason of the last exit, time of the next start (UTC). Jobs, and
    streams in a shared driver, have `facts`.
    """

    name: str
    pid: int | None
    state: ProcessState
    detail: str = ""
    restarts: int = 0
    last_error: str = ""
    next_try: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def log_size(settings: Settings, name: str) -> int:
    """Return the size of the process's log in bytes; 0 without one."""
    path = log_path(settings, name)
    return path.stat().st_size if path.exists() else 0


def log_tail(settings: Settings, name: str, since: int = 0, lines: int = 12) -> str:
    """Return the last lines of the process's log after byte `since`."""
    path = log_path(settings, name)
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(since, path.stat().st_size - 64_000))
        text = file.read().decode(errors="replace")
    return "\n".join(f"  | {line[:300]}" for line in text.splitlines()[-lines:])


def last_line(settings: Settings, name: str, since: int) -> str:
    """Return the last line of the process's log that began after byte `since`; "" if there is none."""
    lines = [line.removeprefix("  | ") for line in log_tail(settings, name, since, lines=40).splitlines()]
    return next((line for line in reversed(lines) if line and not line[0].isspace()), "")


@dataclass(frozen=True)
class ProcessRecord:
    """The runner's view of one process.

    `desired_since` is the request that it tries to satisfy, `failures` the exits in a row, `last_error` the reason of
    the last one, `next_try` the time of the next start (UTC), `given_up` whether there will be none.
    """

    desired_since: datetime | None = None
    restarts: int = 0
    failures: int = 0
    last_error: str = ""
    next_try: datetime | None = None
    given_up: bool = False


@dataclass(frozen=True)
class RunnerRecord:
    """The runner's state (a label of ProcessState) with its reason, its pid, the time (UTC), its processes by name."""

    state: str
    reason: str
    pid: int
    at: datetime
    processes: Mapping[str, ProcessRecord] = field(default_factory=dict)
    identity: str = ""


def runner_record_file(settings: Settings) -> JsonFile[RunnerRecord]:
    """Return the file of the runner's record; after a power cut the next runner replaces it."""
    return JsonFile(status_path(settings, RUNNER), RunnerRecord, durable=False)


def read_process_records(settings: Settings) -> Mapping[str, ProcessRecord]:
    """Return the runner's last record of each process; empty if there is no readable one."""
    record = runner_record_file(settings).read_if_valid()
    return record.processes if record else {}


@dataclass(frozen=True)
class JobEnd:
    """The command that ended a job, and who gave it; `by` is "" when the command does not know."""

    command: str
    by: str = ""


def job_end_file(settings: Settings, job: str) -> JsonFile[JobEnd]:
    """Return the file that says who ended a job; it is written before the job is ended."""
    path = run_path(settings, job_name(job)).with_suffix(".ended")
    return JsonFile(path, JobEnd, f'rm "{path}"', "the job counts as died", durable=False)
