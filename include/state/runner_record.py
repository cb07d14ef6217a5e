"""The runner's record: its own state and that of each process it supervises, replaced about once a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from include.ground.paths import status_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile
from include.state.process_states import RUNNER


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
