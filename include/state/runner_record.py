"""The runner's record: what it says of itself and of each process that it keeps, replaced about once a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from include.paths import status_path
from include.settings import Settings
from include.state.atomic_files import write_atomically
from include.state.process_states import RUNNER, ProcessState


@dataclass(frozen=True)
class ProcessRecord:
    """What the runner says of one process: for which wish (its `since`) it tries, how often it was started again, how
    often in a row it ended at once, why last, when it is started next (UTC), and whether the runner gave it up."""

    desired_since: datetime | None = None
    restarts: int = 0
    failures: int = 0
    last_error: str = ""
    next_try: datetime | None = None
    given_up: bool = False


@dataclass(frozen=True)
class RunnerRecord:
    """The runner's own state with its reason, its pid, when it said so (UTC), and the processes by name."""

    state: ProcessState
    reason: str
    pid: int
    at: datetime
    processes: Mapping[str, ProcessRecord] = field(default_factory=dict)


def write_record(settings: Settings, record: RunnerRecord) -> None:
    """Replace the record."""
    said = {**asdict(record), "state": record.state.label}
    write_atomically(status_path(settings, RUNNER), json.dumps(said, default=datetime.isoformat), durable=False)


def read_process_records(settings: Settings) -> dict[str, ProcessRecord]:
    """Return what the runner said last of each process; empty when there is nothing readable."""
    try:
        said = json.loads(status_path(settings, RUNNER).read_text("utf-8"))
        return {name: _account(raw) for name, raw in said["processes"].items()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _account(raw: Mapping[str, Any]) -> ProcessRecord:
    times = {key: datetime.fromisoformat(raw[key]) if raw[key] else None for key in ("desired_since", "next_try")}
    return ProcessRecord(**{**raw, **times})
