"""The driver's status file: what a driver reports of itself about once a second.

Reads / Writes: `run/stream-<dataset>.status.json`. The runner's record has the same first keys and can be read too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from include.ground.paths import status_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile
from include.state.process_states import STATES, ProcessState, stream_name
from include.state.run_files import RunFile


@dataclass(frozen=True)
class LastRun:
    """The last run of refine: rows, seconds, and seconds per step."""

    rows: int
    seconds: float
    steps: dict[str, float]


@dataclass
class DriverStatus:
    """State, reason and progress of a driver.

    `terminal`: the driver failed, and a restart cannot help. `at`: time of writing (UTC). `progress_at`: when the main
    loop, or ingest if it lags behind Kafka, last completed a step (UTC). `*_batch`: -1 before the first. `rates`: rows
    per second of the last batch and run. `lag_seconds`: age of the oldest unpublished record. `ingested` and `log_end`:
    next offset per partition in bronze and in Kafka. `shadows`: shadow releases.
    """

    state: str = "starting"
    reason: str | None = None
    terminal: bool = False
    release: str = ""
    epoch: int = 0
    pid: int = 0
    at: datetime | None = None
    progress_at: datetime | None = None
    ingested_batch: int = -1
    refined_batch: int = -1
    rates: dict[str, float] = field(default_factory=dict)
    last_batch: LastRun | None = None
    log_end: dict[int, int] = field(default_factory=dict)
    ingested: dict[int, int] = field(default_factory=dict)
    lag_seconds: float | None = None
    shadows: list[str] = field(default_factory=list)
    event: str | None = None
    """What this driver changed at its start, for people to know."""
    identity: str = ""
    """Boot and start of the process, as in its run file."""

    @property
    def process_state(self) -> ProcessState:
        """The state, UNKNOWN for one that this version does not know."""
        return STATES.get(self.state, ProcessState.UNKNOWN)


def status_file(settings: Settings, process: str) -> JsonFile[DriverStatus]:
    """Return the status file of a process."""
    path = status_path(settings, process)
    return JsonFile(path, DriverStatus, durable=False, former_keys={"beside": "shadows"}, upgrade=_no_empty_run)


def stream_status(settings: Settings, dataset: str) -> DriverStatus:
    """Return the last status of a dataset's driver, whichever process wrote it; the defaults without a readable one."""
    return status_file(settings, stream_name(dataset)).read_if_valid() or DriverStatus()


def read_reported_status(settings: Settings, run: RunFile) -> DriverStatus | None:
    """Return the last status of exactly this process, None without a readable one."""
    status = status_file(settings, run.name).read_if_valid()
    if status is None or status.at is None or status.pid != run.pid:
        return None
    # Containers number their processes alike: the last report may be that of an earlier process with this pid.
    other = status.identity and run.identity and status.identity != run.identity
    return None if other else status


def _no_empty_run(content: dict[str, Any]) -> dict[str, Any]:
    """Earlier versions wrote {} before the first run."""
    return {**content, "last_batch": content.get("last_batch") or None}
