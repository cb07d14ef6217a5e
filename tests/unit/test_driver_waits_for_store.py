"""A driver that starts while the object store is away waits for it, under its lease, and says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from stored_site import create_bucket, running_store, stored_settings

from include.ground.ports import free_ports
from include.ground.settings import Settings
from include.state.lease import LeaseLost
from spark_jobs.jobs.drive_stream import await_store
from spark_jobs.stream import back_off
from spark_jobs.stream.progress import StatusReporter


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def settings(tmp_path: Path, port: int) -> Settings:
    """Settings with a store that does not run."""
    return stored_settings(tmp_path, f"http://127.0.0.1:{port}", "tables")


@pytest.fixture
def reporter(tmp_path: Path) -> StatusReporter:
    return StatusReporter(tmp_path / "status.json", lambda: True)


def held(*, until: Callable[[], bool] = lambda: True) -> Mock:
    return Mock(is_held=until, location="leases/sales")


def wait_for_report(reporter: StatusReporter) -> None:
    end = time.monotonic() + 60
    while reporter.status.state != "waiting":
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_for_another_attempt(reporter: StatusReporter, text: str = "") -> None:
    before, end = reporter.status.reason, time.monotonic() + 60
    while reporter.status.reason == before or text not in str(reporter.status.reason):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_driver_starts_when_the_store_answers_and_logs_two_lines(
    settings: Settings,
    port: int,
    reporter: StatusReporter,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(back_off, "LONGEST_PAUSE", 0.2)
    with ThreadPoolExecutor(1) as driver:
        waiting = driver.submit(await_store, settings, "sales", held(), reporter, threading.Event())
        wait_for_report(reporter)
        assert str(reporter.status.reason).startswith("waiting for the store: object store s3://tables")
        wait_for_another_attempt(reporter)
        with running_store(port=port):
            wait_for_another_attempt(reporter, "NoSuchBucket")
            wait_for_another_attempt(reporter, "NoSuchBucket")
            create_bucket(f"http://127.0.0.1:{port}", "tables")
            assert waiting.result(60)
    assert reporter.status.state == "starting"
    lines = [line for line in capsys.readouterr().err.splitlines() if "the store" in line]
    assert ["waiting for the store" in lines[0], "the store answers again" in lines[-1]] == [True, True]
    # A store that starts may refuse in other words before it answers.
    assert len(lines) <= 4


def test_driver_that_is_stopped_meanwhile_ends(settings: Settings, reporter: StatusReporter) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as driver:
        waiting = driver.submit(await_store, settings, "sales", held(), reporter, stop)
        wait_for_report(reporter)
        stop.set()
        assert not waiting.result(30)


def test_driver_whose_lease_ended_meanwhile_does_not_start(settings: Settings, reporter: StatusReporter) -> None:
    with pytest.raises(LeaseLost):
        await_store(settings, "sales", held(until=lambda: False), reporter, threading.Event())
