"""What is there: processes as seen from outside. Reads run files, status files and the process table; never acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.catalog.dataset import dataset_names
from include.places import status_path
from include.settings import Settings
from include.supervision.ports import is_open
from include.supervision.spawned import (
    RunFile,
    RunFileUnreadable,
    is_alive,
    is_suspended,
    read_run_file,
)
from include.supervision.states import BROKER, STATES, ProcessState, ProcessStatus, stream_name

# A driver speaks about once a second; a long pause of its JVM stays well below this.
SILENT_AFTER = 30.0


@dataclass(frozen=True)
class DriverWord:
    """What a driver said last of itself: state, the reason where it gives one, when (UTC)."""

    state: ProcessState
    reason: str
    at: datetime


def observe(settings: Settings, datasets: list[str] | None = None) -> list[ProcessStatus]:
    """The broker and the stream of every known dataset, in that order, as they are now."""
    names = dataset_names(settings) if datasets is None else datasets
    return [observe_broker(settings), *(observe_stream(settings, dataset) for dataset in names)]


def observe_broker(settings: Settings) -> ProcessStatus:
    """The broker: running when its port is open."""
    return observed(settings, BROKER, lambda run: broker_status(run))


def observe_stream(settings: Settings, dataset: str, now: datetime | None = None) -> ProcessStatus:
    """A dataset's stream: alive or not by the process table, the rest as its driver says."""
    name = stream_name(dataset)
    moment = now or datetime.now(UTC)
    return observed(settings, name, lambda run: stream_status(run, read_word(settings, run), moment))


def observed(settings: Settings, name: str, look: Callable[[RunFile], ProcessStatus]) -> ProcessStatus:
    """The status of a process with a readable run file by `look`; stopped without one, unknown when unreadable."""
    try:
        run = read_run_file(settings, name)
    except RunFileUnreadable as error:
        return ProcessStatus(name, None, ProcessState.UNKNOWN, error.what)
    if run is None:
        return ProcessStatus(name, None, ProcessState.STOPPED)
    if is_suspended(run):
        return ProcessStatus(name, run.pid, ProcessState.UNKNOWN, "suspended by a signal; kill -CONT wakes it")
    return look(run)


def broker_status(run: RunFile) -> ProcessStatus:
    """The broker's status from its run file and its port."""
    where = str(run.extra.get("bootstrap", ""))
    if not is_alive(run):
        return ProcessStatus(run.name, None, ProcessState.CRASHED, f"pid {run.pid} is gone")
    ready = is_open(int(run.extra.get("port", 0)))
    return ProcessStatus(run.name, run.pid, ProcessState.RUNNING if ready else ProcessState.STARTING, where)


def stream_status(run: RunFile, word: DriverWord | None, now: datetime) -> ProcessStatus:
    """A stream's status from its run file and the driver's last word (None: it has not spoken yet)."""
    if not is_alive(run):
        return gone_status(run, word)
    if word is None:
        return ProcessStatus(run.name, run.pid, ProcessState.STARTING)
    silence = (now - word.at).total_seconds()
    if silence > SILENT_AFTER:
        return ProcessStatus(run.name, run.pid, ProcessState.UNKNOWN, f"no sign for {silence:.0f} s")
    return ProcessStatus(run.name, run.pid, word.state, word.reason)


def gone_status(run: RunFile, word: DriverWord | None) -> ProcessStatus:
    """The status of a stream whose process is gone: as it said itself, else crashed."""
    if word is not None and word.state.terminal:
        return ProcessStatus(run.name, None, word.state, word.reason)
    return ProcessStatus(run.name, None, ProcessState.CRASHED, f"pid {run.pid} is gone")


def read_word(settings: Settings, run: RunFile) -> DriverWord | None:
    """What the driver of this run file said last; None when nothing, or when another process said it."""
    try:
        said: dict[str, Any] = json.loads(status_path(settings, run.name).read_text())
        if said["pid"] != run.pid:
            return None
        state = STATES.get(said["state"], ProcessState.UNKNOWN)
        return DriverWord(state, said.get("reason") or "", datetime.fromisoformat(said["at"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
