"""The health of a stream from run file, driver status, publication, ledger and Kafka; each may be missing."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import pytest
from ledgered_stream import Stream

from include.declare.dataset import DatasetUnknown, snapshot_dataset
from include.ground.kafka import BrokerUnreachable
from include.ground.paths import status_path
from include.ground.settings import Settings
from include.observe import progress
from include.observe.ledger_reader import DatasetTotals, ReleaseTotals, open_reader
from include.observe.ledger_writer import open_writer, project_dataset
from include.serve import health
from include.serve.health import rejected_share, stream_health
from include.state.process_states import ProcessState
from include.state.run_files import RunFile, started_at, write_run_file
from include.state.streams import request_stream

FLIGHTS = "stream:flights"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """A broker that answers with these end offsets."""
    ends = {0: 30, 1: 22}
    monkeypatch.setattr(health, "bootstrap_servers", lambda settings: "127.0.0.1:9")
    monkeypatch.setattr(progress, "readable_end_offsets", lambda *_: dict(ends))
    monkeypatch.setattr(progress, "log_end_offsets", lambda *_: dict(ends))
    monkeypatch.setattr(progress, "log_start_offsets", lambda *_: dict.fromkeys(ends, 0))
    return ends


def write_driver_status(settings: Settings, **fields: object) -> None:
    write_run_file(settings, RunFile(FLIGHTS, os.getpid(), started_at(os.getpid()), ["driver"]))
    driver_status = {"state": "running", "pid": os.getpid(), "at": datetime.now(UTC).isoformat()} | fields
    status_path(settings, FLIGHTS).write_text(json.dumps(driver_status))


def test_health_of_a_running_stream_is_complete(settings: Settings, kafka: dict[int, int]) -> None:
    dataset = snapshot_dataset(settings, "flights")
    Stream(settings, release=dataset.release).run(0, 1)
    project_dataset(open_writer(settings), settings, "flights")
    write_driver_status(settings, release=dataset.release, lag_seconds=1.5, refined_batch=1)
    request_stream(settings, "flights", "airflow")
    found = stream_health(settings, "flights")
    assert (found.dataset, found.desired, found.requested_by) == ("flights", True, "airflow")
    assert (found.state, found.runner) == (ProcessState.RUNNING, ProcessState.STOPPED)
    assert (found.batch, found.lag_records, found.lag_seconds) == (1, 8, 1.5)
    assert found.rejected_share == pytest.approx(6 / 40)
    assert found.watermark == datetime(2013, 1, 1, tzinfo=UTC) - dataset.pipeline.lateness
    assert found.notes == ()


@pytest.mark.parametrize("is_old", [False, True])
def test_observer_reads_no_run_of_the_ledger_but_those_of_an_earlier_version(
    settings: Settings, kafka: dict[int, int], monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    dataset = snapshot_dataset(settings, "flights")
    stream = Stream(settings, release=dataset.release, is_old=is_old)
    stream.run(0, 1)
    project_dataset(open_writer(settings), settings, "flights")
    ledger, read = open_reader(settings), list[int]()
    ask = ledger.event_times

    def counted(name: str, release: str, after: int) -> object:
        answer = ask(name, release, after)
        read.append(len(answer[0]))
        return answer

    monkeypatch.setattr(ledger, "event_times", counted)
    first = stream_health(settings, "flights", ledger)
    assert stream_health(settings, "flights", ledger) == first
    stream.is_old = False
    for batch in (2, 3):
        stream.run(batch, batch)
        project_dataset(open_writer(settings), settings, "flights")
    later = stream_health(settings, "flights", ledger)
    assert read == ([1, 0] if is_old else [])
    assert later == stream_health(settings, "flights")
    assert (first.batch, later.batch) == (1, 3)
    assert first.watermark == later.watermark == datetime(2013, 1, 1, tzinfo=UTC) - dataset.pipeline.lateness


def test_health_without_data_is_unknown(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stream_health(settings, "flights")
    assert (found.desired, found.requested_by, found.state) == (False, None, ProcessState.STOPPED)
    assert (found.batch, found.lag_records, found.lag_seconds, found.watermark) == (None, None, None, None)
    assert found.rejected_share is None
    assert len(found.notes) == 2, "neither ledger nor broker"

    def away(*_: object) -> dict[int, int]:
        raise BrokerUnreachable("127.0.0.1:9")

    monkeypatch.setattr(health, "bootstrap_servers", lambda settings: "127.0.0.1:9")
    monkeypatch.setattr(progress, "log_start_offsets", away)
    assert "no Kafka broker answers" in " ".join(stream_health(settings, "flights").notes)


def test_unknown_dataset_is_refused(settings: Settings) -> None:
    with pytest.raises(DatasetUnknown):
        stream_health(settings, "../flights")


@pytest.mark.parametrize(
    ("accepted", "invalid", "duplicate", "share"), [(0, 0, 0, None), (3, 1, 0, 0.25), (2, 1, 1, 0.5), (0, 1, 0, 1.0)]
)
def test_duplicates_count_as_rejected(accepted: int, invalid: int, duplicate: int, share: float | None) -> None:
    totals = ReleaseTotals(
        release="r",
        last_batch=0,
        rows_in=accepted + invalid + duplicate,
        accepted=accepted,
        invalid=invalid,
        duplicate=duplicate,
        gold={},
        reasons={},
        warned={},
    )
    dataset = DatasetTotals("flights", last_batch=0, bronze=0, releases={"r": totals})
    assert rejected_share("r", dataset) == share
    assert rejected_share("other", dataset) is None
    assert rejected_share(None, None) is None
