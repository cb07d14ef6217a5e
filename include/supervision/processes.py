"""Up and down: bring the broker and the streams to where they are wanted, one command at a time.

Reads: run files, status files.  Writes: run files, logs; starts and ends processes.
Guarantee: what runs is left alone; nothing is started twice in one state folder.
After a crash of the command: the processes go on, the next `up` or `down` finds them by their run files.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from include.catalog.dataset import Dataset, declared_dataset
from include.clients.kafka import ensure_topic
from include.errors import Terminal, Transient
from include.places import log_path, run_path
from include.settings import CLONE, Settings
from include.supervision.broker import READY_WITHIN, start_broker, wait_until_ready
from include.supervision.observe import observe, observe_broker, observe_stream, read_word
from include.supervision.spawned import (
    RunFile,
    is_alive,
    log_size,
    log_tail,
    read_run_file,
    remove_run_file,
    spawn,
    stop,
    terminate,
    wait_gone,
)
from include.supervision.states import BROKER, ProcessState, ProcessStatus, stream_name

STREAM_READY_WITHIN = 90.0
DRAIN_WITHIN = 60.0
BROKER_STOP_WITHIN = 30.0
AT_WORK = {ProcessState.RUNNING, ProcessState.WAITING, ProcessState.HALTED}

Report = Callable[[str], None]


class StateBusy(Transient):
    """Another `up` or `down` is at work on the state folder; `holder` is what it wrote into the lock."""

    def __init__(self, state: Path, holder: str) -> None:
        super().__init__(
            f"another up or down is at work on {state} ({holder}); nothing was done", "wait for it, then try again"
        )
        self.holder = holder


class NoBroker(Terminal):
    """No broker runs in this state folder."""

    def __init__(self, state: Path, seen: str) -> None:
        super().__init__(f"no broker is running for {state} (it is {seen})", "headrace up")
        self.state = state


class StreamNotStarted(Terminal):
    """A driver ended, or was not at work in time; the others and the broker go on."""

    def __init__(self, name: str, why: str, log: Path, tail: str) -> None:
        super().__init__(f"{name} {why}\n{tail}", f'read "{log}"; what runs goes on running; headrace up tries again')
        self.name, self.log, self.tail = name, log, tail


class StateSuspended(Terminal):
    """A process is there but gives no sign, so that nothing can be started in its place."""

    def __init__(self, status: ProcessStatus) -> None:
        super().__init__(
            f"{status.name} (pid {status.pid}): {status.detail}; it was left alone", "headrace down, then headrace up"
        )
        self.status = status


@contextmanager
def sole_command(settings: Settings) -> Iterator[None]:
    """Hold the state folder's supervision lock; StateBusy when another command has it. Goes away with the process."""
    path = settings.state / "run" / "supervision.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateBusy(settings.state, path.read_text().strip() or "it does not say who") from error
        file.truncate(0)
        file.write(f"pid {os.getpid()}")
        file.flush()
        yield


def bootstrap_servers(settings: Settings) -> str:
    """Address of the running broker, `host:port`; NoBroker when none is at work."""
    status = observe_broker(settings)
    run = read_run_file(settings, BROKER) if status.state is ProcessState.RUNNING else None
    if run is None:
        raise NoBroker(settings.state, status.state.label)
    return str(run.extra["bootstrap"])


def up(settings: Settings, datasets: Sequence[str], report: Report = print) -> list[ProcessStatus]:
    """Start what of broker and streams does not run, make the topics, wait until all work, return how they are.

    Errors: DatasetUnknown, DeclarationRefused, StateBusy, StateSuspended, those of `start_broker`, and
    StreamNotStarted for the first stream that did not come (the others are waited for first).
    """
    declared = [declared_dataset(settings, name) for name in datasets]
    with sole_command(settings):
        bring_up_broker(settings, report)
        make_topics(settings, declared)
        started = {name: bring_up_stream(settings, name, report) for name in datasets}
        failures = [await_stream(settings, name, since, report) for name, since in started.items()]
    for failure in failures:
        if failure is not None:
            raise failure
    return observe(settings, list(datasets))


def make_topics(settings: Settings, declared: Sequence[Dataset]) -> None:
    """Make the datasets' topics where they are missing."""
    for dataset in declared:
        ensure_topic(bootstrap_servers(settings), dataset.pipeline.topic, dataset.pipeline.partitions)


def bring_up_broker(settings: Settings, report: Report) -> None:
    """Start the broker unless it runs, and wait until it is ready."""
    status = observe_broker(settings)
    run = read_run_file(settings, BROKER) if status.pid else None
    if status.state is ProcessState.UNKNOWN:
        raise StateSuspended(status)
    if run is not None:
        report(f"broker: is there already, pid {run.pid}")
        wait_until_ready(settings, run, READY_WITHIN)
        return
    report(f"broker: {'starting again after a crash' if status.state is ProcessState.CRASHED else 'starting'} …")
    began = time.monotonic()
    run = start_broker(settings)
    report(f"broker: ready at {run.extra['bootstrap']} after {time.monotonic() - began:.1f} s, pid {run.pid}")


def bring_up_stream(settings: Settings, dataset: str, report: Report) -> int:
    """Start a dataset's driver unless it is at work; return the size of its log before, in bytes."""
    name = stream_name(dataset)
    status = observe_stream(settings, dataset)
    since = log_size(settings, name)
    if status.state is ProcessState.UNKNOWN:
        raise StateSuspended(status)
    if status.state is ProcessState.DRAINING:
        await_drained(settings, name, report)
    elif status.pid:
        report(f"{name}: is there already, pid {status.pid}")
        return since
    again = " again after a crash" if status.state is ProcessState.CRASHED else ""
    run = spawn(settings, name, driver_command(dataset), CLONE, driver_environment(settings))
    report(f"{name}: starting{again} …, pid {run.pid}")
    return since


def await_drained(settings: Settings, name: str, report: Report) -> None:
    """Wait for a driver that is on its way out, so that a new one can take the lease; StreamNotStarted."""
    run = read_run_file(settings, name)
    report(f"{name}: is draining, waiting for it to end …")
    if run is not None and not wait_gone(run, DRAIN_WITHIN):
        why = f"has been draining for more than {DRAIN_WITHIN:.0f} s"
        raise StreamNotStarted(name, why, log_path(settings, name), log_tail(settings, name))


def driver_command(dataset: str) -> list[str]:
    """Command line of a dataset's driver; its working folder is the clone."""
    return [sys.executable, "-m", "spark_jobs.stream", dataset]


def driver_environment(settings: Settings) -> dict[str, str]:
    """The environment of a driver: ours, and the state folder by its absolute path."""
    return {**os.environ, "HEADRACE_STATE": str(settings.state), "PYTHONUNBUFFERED": "1"}


def await_stream(settings: Settings, dataset: str, since: int, report: Report) -> StreamNotStarted | None:
    """Wait until the driver says that it is at work; return what went wrong when it does not."""
    name = stream_name(dataset)
    end = time.monotonic() + STREAM_READY_WITHIN
    status = observe_stream(settings, dataset)
    while not (status.state in AT_WORK or status.state.terminal) and time.monotonic() < end:
        time.sleep(0.2)
        status = observe_stream(settings, dataset)
    if status.state in AT_WORK:
        report(f"{name}: {status.state.label}{f', {status.detail}' if status.detail else ''}, pid {status.pid}")
        return None
    why = f"is {status.state.label}" if status.state.terminal else f"was not at work within {STREAM_READY_WITHIN:.0f} s"
    said = f"{why}: {status.detail}" if status.detail else why
    return StreamNotStarted(name, said, log_path(settings, name), log_tail(settings, name, since))


def down(settings: Settings, report: Report = print) -> list[ProcessStatus]:
    """Drain all streams at their next batch boundary, then stop the broker; return what was there before.

    A process that does not go is killed and its run file stays, so that it shows as crashed. StateBusy.
    """
    with sole_command(settings):
        before = observe(settings, started_datasets(settings))
        streams = [status.name for status in before if status.name != BROKER]
        runs = [run for run in (read_run_file(settings, name) for name in streams) if run is not None]
        bring_down(settings, runs, DRAIN_WITHIN, report)
        broker = read_run_file(settings, BROKER)
        if broker is not None:
            bring_down(settings, [broker], BROKER_STOP_WITHIN, report)
    return before


def started_datasets(settings: Settings) -> list[str]:
    """Datasets with a stream's run file, whether or not their folder is still there, sorted."""
    found = run_path(settings, stream_name("*")).parent.glob("stream-*.json")
    return sorted(path.stem.removeprefix("stream-") for path in found if not path.stem.endswith(".status"))


def bring_down(settings: Settings, runs: Sequence[RunFile], timeout: float, report: Report) -> None:
    """End processes, all at once, within `timeout` seconds, and say how it went."""
    began, asked = time.monotonic(), []
    for run in runs:
        if is_alive(run):
            report(f"{run.name}: {'stopping' if run.name == BROKER else 'draining'} …")
            terminate(run)
            asked.append(run)
        else:
            report(f"{run.name}: was not running any more")
            remove_run_file(settings, run.name)
    for run in asked:
        _await_end(settings, run, began, timeout, report)


def _await_end(settings: Settings, run: RunFile, began: float, timeout: float, report: Report) -> None:
    by_itself = stop(run, max(0.0, began + timeout - time.monotonic()))
    word = read_word(settings, run)
    if not by_itself:
        report(f"{run.name}: did not stop within {timeout:.0f} s and was killed; nothing is lost, its batch runs again")
    elif word is not None and word.state is ProcessState.FAILED:
        report(f"{run.name}: failed while it stopped: {word.reason}")
    else:
        report(f"{run.name}: stopped after {time.monotonic() - began:.1f} s")
        remove_run_file(settings, run.name)
