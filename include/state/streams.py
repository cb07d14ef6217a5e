"""Streams: the last request to run or stop each, which the runner reads, and the status that its driver reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from include.declare.derived_dataset import require_declared
from include.ground.paths import desired_path, status_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.process_states import STATES, ProcessState, stream_name
from include.state.run_files import RunFile


@dataclass(frozen=True)
class DesiredStream:
    """The last request for a dataset's stream: whether it should run, who requested that, and when (UTC).

    Requesting a running stream again renews `since`: if the runner gave the stream up, it starts it again.
    """

    dataset: str
    by: str
    since: datetime
    desired: bool = True


def desired_file(settings: Settings, dataset: str) -> JsonFile[DesiredStream]:
    """Return the file of a dataset's last request."""
    return JsonFile(
        desired_path(settings, dataset),
        DesiredStream,
        remedy="headrace up   (or: headrace down)   replaces the file",
        consequence="its stream was left as it is",
        former_keys={"wanted": "desired"},
    )


def request_stream(settings: Settings, dataset: str, by: str, now: datetime | None = None) -> DesiredStream:
    """Request that the dataset's stream runs. Raises DatasetUnknown before anything is written."""
    require_declared(settings, dataset)
    return _replace(settings, DesiredStream(dataset, by, now or datetime.now(UTC)))


def release_stream(settings: Settings, dataset: str, by: str, now: datetime | None = None) -> None:
    """Request that the dataset's stream drains and stays down; writes nothing if it is not desired already."""
    with suppress(StateFileUnreadable):
        before = desired_stream(settings, dataset)
        if before is None or not before.desired:
            return
    _replace(settings, DesiredStream(dataset, by, now or datetime.now(UTC), desired=False))


def release_of_run(settings: Settings, dataset: str, run: str, since: datetime | None = None) -> bool:
    """Release the stream that an Airflow run requested, at `since` if it is given; return whether it was released.

    Whoever requested the stream later keeps it: a person by `headrace up`, another run, the same run that was cleared.
    """
    desired = desired_stream(settings, dataset)
    if desired is None or desired.by != run or since not in (None, desired.since):
        return False
    release_stream(settings, dataset, f"{run}, stopped")
    return True


def desired_stream(settings: Settings, dataset: str) -> DesiredStream | None:
    """Return the last request for a dataset, None before the first. Raises StateFileUnreadable."""
    return desired_file(settings, dataset).read()


def desired_streams(settings: Settings) -> dict[str, DesiredStream]:
    """Return the last request for every dataset that has one, desired or not. Raises StateFileUnreadable."""
    found = {name: desired_stream(settings, name) for name in recorded_datasets(settings)}
    return {name: stream for name, stream in found.items() if stream is not None}


def recorded_datasets(settings: Settings) -> list[str]:
    """Return the datasets that have a request, readable or not, sorted."""
    return sorted(path.stem for path in desired_path(settings, "*").parent.glob("*.json"))


def last_change(streams: Mapping[str, DesiredStream]) -> datetime:
    """Return the time of the newest request. It also applies to the broker, which runs as long as the runner does."""
    return max((stream.since for stream in streams.values()), default=datetime.min.replace(tzinfo=UTC))


def _replace(settings: Settings, stream: DesiredStream) -> DesiredStream:
    desired_file(settings, stream.dataset).write(stream)
    return stream


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
    left_to_spark: dict[str, int] = field(default_factory=dict)
    """By reason, the merges of gold since this driver's start that the local backend has left to Spark."""
    event: str | None = None
    """What this driver changed at its start, for people to know."""
    identity: str = ""
    """Boot and start of the process, as in its run file."""
    topic: str = ""
    rests_at: dict[int, int] = field(default_factory=dict)
    """Of a driver that is asleep: where each partition of its topic ended when it decided so."""

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
