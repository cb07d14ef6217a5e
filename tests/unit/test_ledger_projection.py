"""Commits enter the ledger next to the runs: none is forgotten, and none is entered twice at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from include.ground.errors import Transient
from include.ground.settings import Settings
from spark_jobs.stream import kafka_source
from spark_jobs.stream.kafka_source import LedgerProjection


@pytest.fixture
def projection(tmp_path: Path) -> LedgerProjection:
    return LedgerProjection(Mock(), Settings(state=tmp_path), "flights", interval=0)


def test_commit_during_a_call_is_entered_by_one_more_call(
    projection: LedgerProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, begun, ending = list[int](), threading.Event(), threading.Event()

    def project(*_: object) -> None:
        calls.append(len(calls))
        begun.set()
        ending.wait(10)

    monkeypatch.setattr(kafka_source, "project_dataset", project)
    projection.begin()
    assert begun.wait(10)
    for _ in range(3):
        projection.begin()
    ending.set()
    projection.finish()
    assert calls == [0, 1]


def test_commits_of_an_interval_are_entered_by_one_call_and_the_end_waits_for_none(
    projection: LedgerProjection, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, begun = list[int](), threading.Event()

    def project(*_: object) -> None:
        calls.append(len(calls))
        begun.set()

    monkeypatch.setattr(kafka_source, "project_dataset", project)
    projection.interval = 3600
    projection.begin()
    assert begun.wait(10)
    for _ in range(5):
        projection.begin()
    assert projection._last is not None
    with pytest.raises(TimeoutError):
        projection._last.result(0.3)
    assert calls == [0]
    ending = threading.Thread(target=projection.finish, daemon=True)
    ending.start()
    ending.join(10)
    assert calls == [0, 1]


def test_ledger_that_does_not_answer_ends_no_run(
    projection: LedgerProjection, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    down = Transient("the ledger does not answer", "headrace status")
    monkeypatch.setattr(kafka_source, "project_dataset", Mock(side_effect=down))
    projection.begin()
    projection.finish()
    assert "ledger not updated, the next batch tries again: the ledger does not answer" in "".join(capfd.readouterr())


def test_other_error_is_raised_by_the_next_call(projection: LedgerProjection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "project_dataset", Mock(side_effect=ZeroDivisionError))
    projection.begin()
    with pytest.raises(ZeroDivisionError):
        projection.finish()
    with pytest.raises(ZeroDivisionError):
        projection.begin()
