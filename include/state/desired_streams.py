"""Desired streams: one file per dataset with the last request to run or stop its stream. The runner executes it.

Guarantee: the file is replaced atomically; the last request counts, whoever made it; repeating one is idempotent.
Does not: start or stop anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from include.declare.derived_dataset import require_declared
from include.ground.paths import desired_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile, StateFileUnreadable


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


def release_of_run(settings: Settings, dataset: str, run: str, since: datetime) -> bool:
    """Release the stream that an Airflow run requested at `since`, unless it or another run of the DAG did so later.

    A later request of `headrace up` does not count: stopping the run stops the stream. Return whether it was released.
    """
    desired = desired_stream(settings, dataset)
    by_a_run = desired is not None and desired.by.startswith(f"stream__{dataset}/")
    # Another run's request is the later one, whatever the clock of its host says.
    if desired is not None and by_a_run and (desired.by != run or desired.since > since):
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
