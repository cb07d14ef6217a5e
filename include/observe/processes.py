"""Status of the processes, from run files, status files and the process table. Never acts.

Whether a process runs is observed directly; whether it will be started follows from its desired state and the runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from include.declare.derived_dataset import all_dataset_names
from include.declare.event_times import utc_text
from include.ground.errors import HeadraceError
from include.ground.paths import run_path
from include.ground.ports import is_open
from include.ground.settings import Settings
from include.read.plain_values import iso_time
from include.read.publication import find_publication
from include.state.json_file import StateFileUnreadable
from include.state.process_states import (
    AIRFLOW,
    BROKER,
    CONSOLE,
    DRIVER,
    JOB,
    METRICS,
    OPENLINEAGE,
    RUNNER,
    STREAM,
    ProcessRecord,
    ProcessState,
    ProcessStatus,
    read_process_records,
    stream_name,
)
from include.state.run_files import RunFile, broker_state, external_state, job_run_files, read_run_file
from include.state.streams import DriverStatus, desired_stream, desired_streams, last_change, read_reported_status

# A driver reports about once a second; a long pause of its JVM stays well below this.
SILENT_AFTER = 30.0
SLOW_AFTER = 60.0


def observe_processes(settings: Settings, datasets: list[str] | None = None) -> list[ProcessStatus]:
    """Return the current status of the runner, the broker and the stream of every known dataset, in that order."""
    names = all_dataset_names(settings) if datasets is None else datasets
    runner, records = unsupervised_status(settings, RUNNER), read_process_records(settings)
    return [runner, *(_supervised(settings, name, runner, records) for name in (BROKER, *map(stream_name, names)))]


def observe_process(settings: Settings, name: str) -> ProcessStatus:
    """Return the status of a process: its own, or what the runner will do when it is gone."""
    if name in (RUNNER, AIRFLOW) or name.startswith(DRIVER):
        return unsupervised_status(settings, name)
    return _supervised(settings, name, unsupervised_status(settings, RUNNER), read_process_records(settings))


def observe_stream(settings: Settings, dataset: str) -> ProcessStatus:
    """Return the status of a dataset's stream: its driver's report, or what the runner will do when it is gone."""
    return observe_process(settings, stream_name(dataset))


def observe_optional(settings: Settings) -> list[ProcessStatus]:
    """Return the status of drivers that are shared, and of processes that settings switch on, such as the console."""
    names = (*started_drivers(settings), CONSOLE, METRICS, OPENLINEAGE)
    return [observe_process(settings, name) for name in names]


def observe_jobs(settings: Settings) -> list[ProcessStatus]:
    """Return the running jobs of plans, maintenance and repair."""
    return [_job_status(run) for run in job_run_files(settings) if run.is_job_alive()]


def _job_status(run: RunFile) -> ProcessStatus:
    """Return the status of a running job; unknown when its guard was killed and others of its processes run."""
    since, limit = datetime.fromtimestamp(run.started, UTC), float(run.extra.get("limit_seconds", 0))
    facts = {"dataset": run.extra.get("dataset"), "plan": run.name.removeprefix(JOB)}
    facts |= {"started_at": iso_time(since.replace(microsecond=0)), "limit_seconds": limit}
    detail = f"{run.extra.get('job', '')} since {utc_text(since)} UTC, limit {timedelta(seconds=limit)}"
    if run.is_alive():
        return ProcessStatus(run.name, run.pid, ProcessState.RUNNING, detail, facts=facts)
    left = [process.pid for process in run.job_processes()]
    return ProcessStatus(run.name, None, ProcessState.UNKNOWN, f"pids {left} are left; headrace down", facts=facts)


def is_started(status: ProcessStatus) -> bool:
    """Return whether a process was started or is requested; one that is optional is left out otherwise."""
    return status.state is not ProcessState.STOPPED


def is_expected(status: ProcessStatus) -> bool:
    """Return whether a process runs, or will be started without user action."""
    return status.pid is not None or status.state is ProcessState.PENDING


def switched_on(settings: Settings) -> dict[str, bool]:
    """Return the optional processes, and whether they are to run; Airflow needs the console's API."""
    airflow = None if settings.api_url else read_run_file(settings, AIRFLOW)
    return {
        CONSOLE: settings.starts_console or (airflow is not None and airflow.is_alive()),
        METRICS: settings.metrics != "off",
        OPENLINEAGE: bool(settings.openlineage_url),
    }


def _desired_since(settings: Settings, name: str) -> datetime | None:
    """Return when a process was requested; None when it is not requested or the request is unreadable."""
    try:
        if name.startswith(STREAM):
            desired = desired_stream(settings, name.removeprefix(STREAM))
            return desired.since if desired is not None and desired.desired else None
        if switched_on(settings).get(name, True):
            return last_change(desired_streams(settings))
    except StateFileUnreadable:
        pass
    return None


def _supervised(
    settings: Settings, name: str, runner: ProcessStatus, records: Mapping[str, ProcessRecord]
) -> ProcessStatus:
    """Return a process's status from its own, the runner's and the time of the request."""
    alone = unsupervised_status(settings, name)
    if name == BROKER and settings.kafka_bootstrap:
        return alone
    record = records.get(name) or ProcessRecord()
    status = replace(alone, restarts=record.restarts, last_error=record.last_error)
    desired_since = _desired_since(settings, name)
    alive = alone.pid is not None and not alone.state.terminal
    if alive or desired_since is None or alone.state is ProcessState.UNKNOWN:
        return status
    if record.given_up and record.desired_since == desired_since:
        times = f" ({record.failures} times in a row)" if record.failures > 1 else ""
        return replace(status, state=ProcessState.FAILED, detail=record.last_error + times)
    is_asleep = alone.state is ProcessState.ASLEEP
    if runner.pid is None or runner.state in (ProcessState.UNKNOWN, ProcessState.DRAINING):
        sleepless = replace(status, state=ProcessState.STOPPED, detail="it slept, and no runner wakes it")
        return sleepless if is_asleep else status
    if is_asleep and record.desired_since == desired_since:
        return replace(status, detail=record.last_error)
    again = "" if record.next_try is None else f"; tried again at {record.next_try:%H:%M:%S} UTC"
    detail = record.last_error + again
    return replace(status, state=ProcessState.PENDING, detail=detail, next_try=record.next_try)


def started_datasets(settings: Settings) -> list[str]:
    """Return the datasets whose stream has a run file, sorted; the dataset's folder may be gone."""
    found = run_path(settings, stream_name("*")).parent.glob("stream-*.json")
    return sorted(path.stem.removeprefix("stream-") for path in found if not path.stem.endswith(".status"))


def started_drivers(settings: Settings) -> list[str]:
    """Return the names of the shared drivers that have a run file, sorted."""
    found = run_path(settings, f"{DRIVER}*").parent.glob("driver-*.json")
    return sorted(path.stem.replace("-", ":", 1) for path in found if not path.stem.endswith(".status"))


def unsupervised_status(settings: Settings, name: str, now: datetime | None = None) -> ProcessStatus:
    """Return the status of a process from its run file, the process table and its own report, without the runner's."""
    if name == BROKER and settings.kafka_bootstrap:
        return ProcessStatus(BROKER, None, *external_state(settings))
    try:
        run = read_run_file(settings, name)
    except StateFileUnreadable as error:
        return ProcessStatus(name, None, ProcessState.UNKNOWN, error.what)
    if run is None:
        return ProcessStatus(name, None, ProcessState.STOPPED)
    if run.is_suspended():
        return ProcessStatus(name, run.pid, ProcessState.UNKNOWN, "suspended by a signal; kill -CONT resumes it")
    if name == BROKER:
        return _broker_status(run)
    if name in (CONSOLE, METRICS, AIRFLOW):
        return _web_server_status(run)
    if name == OPENLINEAGE:
        return _sender_status(settings, run)
    return _reporting_status(settings, run, now or datetime.now(UTC))


def _web_server_status(run: RunFile) -> ProcessStatus:
    """Running when its port is open; `detail` is its address."""
    if not run.is_alive():
        return _gone_status(run)
    if run.is_elsewhere():
        return ProcessStatus(run.name, run.pid, ProcessState.RUNNING, f"on {run.host}")
    ready = is_open(int(run.extra.get("port", 0)))
    state = ProcessState.RUNNING if ready else ProcessState.STARTING
    return ProcessStatus(run.name, run.pid, state, str(run.extra.get("page", "")))


def _sender_status(settings: Settings, run: RunFile) -> ProcessStatus:
    """Running while it lives; `detail`: the receiver, or why it takes none."""
    if not run.is_alive():
        return _gone_status(run)
    reported = read_reported_status(settings, run)
    state = reported.process_state if reported else ProcessState.RUNNING
    detail = (reported.reason if reported else None) or str(run.extra.get("receiver", ""))
    return ProcessStatus(run.name, run.pid, state, detail)


def _broker_status(run: RunFile) -> ProcessStatus:
    state = broker_state(run)
    if state in (ProcessState.CRASHED, ProcessState.LOST):
        return _gone_status(run)
    return ProcessStatus(run.name, run.pid, state, str(run.extra.get("bootstrap", "")))


def _reporting_status(settings: Settings, run: RunFile, now: datetime) -> ProcessStatus:
    # Check liveness first: a dead process has already written its final status.
    alive, reported = run.is_alive(), read_reported_status(settings, run)
    if not alive:
        return exited_status(run, reported)
    stalled = stalled_seconds(run, reported, now)
    if stalled > settings.stall_seconds:
        return ProcessStatus(run.name, run.pid, ProcessState.UNKNOWN, f"no progress for {stalled:.0f} s")
    if reported is None or reported.at is None:
        return ProcessStatus(run.name, run.pid, ProcessState.STARTING)
    silence = (now - reported.at).total_seconds()
    if silence > SILENT_AFTER:
        return ProcessStatus(run.name, run.pid, ProcessState.UNKNOWN, f"no report for {silence:.0f} s")
    slow = f"no progress for {stalled:.0f} s" if stalled > SLOW_AFTER else ""
    driver = {"driver": run.extra["driver"]} if "driver" in run.extra else {}
    return ProcessStatus(run.name, run.pid, reported.process_state, reported.reason or slow, facts=driver)


def stalled_seconds(run: RunFile, reported: DriverStatus | None, now: datetime) -> float:
    """Return for how long a process has made no progress; one that has not reported yet began at its start."""
    if reported is None or reported.at is None:
        return now.timestamp() - run.started
    since = reported.progress_at
    return 0.0 if since is None else (now - since).total_seconds()


def exited_status(run: RunFile, reported: DriverStatus | None) -> ProcessStatus:
    """Return the status of a process that is gone: its last report, else crashed."""
    if reported is not None and (reported.process_state.terminal or reported.process_state is ProcessState.ASLEEP):
        return ProcessStatus(run.name, None, reported.process_state, reported.reason or "")
    return _gone_status(run)


def _gone_status(run: RunFile) -> ProcessStatus:
    """Lost when it was one of another place."""
    if run.is_elsewhere():
        return ProcessStatus(run.name, None, ProcessState.LOST, run.missing_heartbeat())
    return ProcessStatus(run.name, None, ProcessState.CRASHED, f"pid {run.pid} is gone")


STANDING = {
    ProcessState.FAILED: "has failed and is not started again",
    ProcessState.HALTED: "is halted: what it publishes fails and is retried",
}


def standing_sentence(settings: Settings, dataset: str, waiting: int) -> str:
    """Return that a dataset's stream stands still, since when and why; "" when it does not.

    One that was stopped on request does not: it is where it is meant to be. `waiting`: offsets that are not published.
    """
    process = observe_stream(settings, dataset)
    how = STANDING.get(process.state)
    if how is None:
        return ""
    try:
        publication = find_publication(settings, dataset)
    except HeadraceError:
        publication = None
    since = f"since {utc_text(publication.published_at)} UTC" if publication else "yet"
    records = f", {waiting:,} records wait in Kafka" if waiting else ""
    facts = f"nothing was published {since}{records}"
    why = process.detail or process.last_error
    return f"stream {dataset} {how}; {facts}" + (f": {why}" if why else "")
