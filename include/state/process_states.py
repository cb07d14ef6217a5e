"""Names of the processes and the states they can be in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

RUNNER = "runner"
BROKER = "broker"
AIRFLOW = "airflow"
CONSOLE = "console"
METRICS = "metrics"
OPENLINEAGE = "openlineage"
STREAM = "stream:"
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

    From the runner's record: number of restarts, reason of the last exit, time of the next start (UTC). Jobs have
    `facts`.
    """

    name: str
    pid: int | None
    state: ProcessState
    detail: str = ""
    restarts: int = 0
    last_error: str = ""
    next_try: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
