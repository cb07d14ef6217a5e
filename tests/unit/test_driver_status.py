"""The driver's status file: one model for the driver that writes it and for everything that reads it."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.change.kind import ASSUMED_RATE, reported_rate
from include.ground.paths import status_path
from include.ground.settings import Settings
from include.state.process_states import ProcessState
from include.state.run_files import RunFile
from include.state.streams import DriverStatus, LastRun, read_reported_status, status_file, stream_status
from spark_jobs.stream import progress
from spark_jobs.stream.progress import StatusReporter

FLIGHTS = "stream:flights"
OLD = """{"state": "running", "reason": null, "terminal": false, "release": "r1", "epoch": 3, "pid": 77,
 "at": "2026-01-02T03:04:05.678901+00:00", "ingested_batch": 5, "refined_batch": 4,
 "rates": {"ingest": 800.5, "refine": 70000.0},
 "last_batch": {"rows": 40000, "seconds": 1.5, "steps": {"silver": 1.0, "gold": 0.5}},
 "log_end": {"0": 30, "1": 22}, "ingested": {"0": 30, "1": 20}, "lag_seconds": null, "beside": ["r0"]}"""


def write(settings: Settings, text: str) -> Path:
    path = status_path(settings, FLIGHTS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(pid: int) -> RunFile:
    return RunFile(FLIGHTS, pid, 1.0, ["driver"])


def test_status_of_an_earlier_version_is_read(settings: Settings) -> None:
    write(settings, OLD)
    status = read_reported_status(settings, run(77))
    assert status == stream_status(settings, "flights")
    assert status is not None
    assert (status.process_state, status.release, status.shadows) == (ProcessState.RUNNING, "r1", ["r0"])
    assert status.at == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert status.last_batch == LastRun(40000, 1.5, {"silver": 1.0, "gold": 0.5})
    assert (status.ingested, status.log_end) == ({0: 30, 1: 20}, {0: 30, 1: 22})
    assert reported_rate(settings, "flights") == 70000.0


def test_status_of_another_process_is_not_this_one(settings: Settings) -> None:
    write(settings, OLD)
    assert read_reported_status(settings, run(78)) is None


def test_status_before_the_first_run_has_no_rate(settings: Settings) -> None:
    write(settings, '{"state": "starting", "pid": 77, "at": "2026-01-02T03:04:05+00:00", "last_batch": {}}')
    assert stream_status(settings, "flights").last_batch is None
    assert reported_rate(settings, "flights") == ASSUMED_RATE


@pytest.mark.parametrize("text", ["", "[1]", '{"state": 7}', '{"last_batch": {"rows": "many"}}'])
def test_unreadable_status_counts_as_none(settings: Settings, text: str) -> None:
    write(settings, text)
    assert read_reported_status(settings, run(77)) is None
    assert stream_status(settings, "flights") == DriverStatus()
    assert reported_rate(settings, "flights") == ASSUMED_RATE


def test_reported_status_is_read_back(settings: Settings) -> None:
    path = write(settings, OLD)
    reporter = StatusReporter(path, lambda: True)
    reporter.status.last_batch, reporter.status.ingested = LastRun(1, 0.5, {"silver": 0.5}), {0: 7}
    reporter.waiting_for = "no broker"
    reporter.report("running")
    found = read_reported_status(settings, run(os.getpid()))
    assert found is not None
    assert (found.process_state, found.reason) == (ProcessState.WAITING, "no broker")
    assert (found.last_batch, found.ingested) == (reporter.status.last_batch, {0: 7})
    assert json.loads(path.read_text())["ingested"] == {"0": 7}
    assert reporter.status.state == "running"


def test_status_on_a_full_disk_overwrites_the_file_in_place(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(settings, OLD + " " * 400)
    inode, size = path.stat().st_ino, path.stat().st_size

    def full(_path: Path, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    StatusReporter(path, lambda: True).report("halted", "no space left")
    assert (path.stat().st_ino, path.stat().st_size) == (inode, size)
    found = status_file(settings, FLIGHTS).read()
    assert found is not None
    assert (found.state, found.reason) == ("halted", "no space left")


def test_progress_is_that_of_the_main_loop_and_of_ingest(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    path = status_path(settings, FLIGHTS)
    path.parent.mkdir(parents=True)
    reporter = StatusReporter(path, lambda: True)

    def idle() -> float:
        reporter._write()
        status = stream_status(settings, "flights")
        assert status.at is not None
        assert status.progress_at is not None
        return (status.at - status.progress_at).total_seconds()

    clock[0] = 140.0
    assert idle() == 40.0
    reporter.note_progress()
    assert idle() == 0.0
    reporter.ingest_idle = lambda: 90.0
    assert idle() == 90.0
