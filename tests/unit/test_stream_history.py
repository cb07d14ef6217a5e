"""Figures over time: each batch counts once, in the minute of its first publication, whatever releases hold it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.observe import stream_history
from include.observe.ledger_reader import Batch, RecordedRun
from include.observe.stream_history import StreamHistory

MINUTE = 60_000
START = 1_800_000_000_000 // MINUTE * MINUTE


class LedgerStub:
    """Batches and runs, answered as the ledger does."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.runs: list[RecordedRun] = []

    def batch(self, number: int, at_ms: int, rows: int = 10, age_ms: int = 1000) -> None:
        times = (START + at_ms - age_ms, START + at_ms)
        self.batches.append(Batch("a", number, "g", 1, rows, *times, number, START + at_ms))

    def run(self, first: int, last: int, at_ms: int, release: str = "a", **reasons: int) -> None:
        counts = (10, 9, sum(reasons.values()), 0)
        self.runs.append(RecordedRun(release, first, last, *counts, START + at_ms, START + at_ms, reasons))

    def last_batch(self, _: str) -> int | None:
        return max((each.batch for each in self.batches), default=None)

    def batches_after(self, _: str, batch: int, count: int) -> list[Batch]:
        return [each for each in self.batches if each.batch > batch][:count]

    def published_runs_after(self, _: str, release: str, batch: int, count: int) -> list[RecordedRun]:
        return [each for each in self.runs if each.release == release and each.last_batch > batch][:count]


@pytest.fixture
def ledger() -> Any:
    return LedgerStub()


def figures(history: StreamHistory, minutes: int, until_ms: int) -> list[tuple[int, int, float | None, float | None]]:
    until = datetime.fromtimestamp((START + until_ms) / 1000, UTC)
    found = history.intervals(until, timedelta(minutes=1), minutes)
    return [(i.minute.ingested, i.minute.published, i.lag_seconds, i.freshness_seconds) for i in found]


def test_records_count_in_the_minute_of_ingest_and_of_publication(ledger: Any) -> None:
    ledger.batch(0, 10_000)
    ledger.batch(1, 50_000)
    ledger.run(0, 0, 20_000)
    ledger.run(1, 1, 70_000)
    history = StreamHistory("flights")
    assert not history.advance(ledger, ["a"])
    # Lag: from the oldest record (9 s, 49 s) to the publication. Freshness: from the newest one to the end.
    assert figures(history, 2, 90_000) == [(20, 10, 11.0, 50.0), (0, 10, 21.0, 40.0)]


def test_rebuilt_and_shadow_releases_are_not_counted_again(ledger: Any) -> None:
    for number in range(3):
        ledger.batch(number, number * 1000)
        ledger.run(number, number, number * 1000 + 500)
    ledger.run(0, 2, 65_000, release="b", type=7)
    history = StreamHistory("flights")
    history.advance(ledger, ["a", "b"])
    ledger.batch(3, 66_000)
    ledger.run(3, 3, 66_500, release="b")
    ledger.run(3, 3, 66_900)
    history.advance(ledger, ["a", "b"])
    assert [published for _, published, _, _ in figures(history, 2, 90_000)] == [30, 10]
    assert sum((minute.reasons["type"] for minute in history.minutes.values()), 0) == 0


def test_each_poll_reads_only_new_runs(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_history, "STEP", 4)
    for number in range(10):
        ledger.batch(number, number * 1000)
        ledger.run(number, number, number * 1000 + 100, type=1)
    history = StreamHistory("flights")
    looks = 1
    while history.advance(ledger, ["a"]):
        looks += 1
    assert looks == 3
    assert (history.published_batch, len(history.waiting)) == (9, 0)
    assert sum(minute.reasons["type"] for minute in history.minutes.values()) == 10


def test_long_history_begins_with_the_last_runs(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_history, "MOST_RUNS", 3)
    for number in range(10):
        ledger.batch(number, number * 1000)
        ledger.run(number, number, number * 1000 + 100)
    history = StreamHistory("flights")
    history.advance(ledger, ["a"])
    assert sum(minute.published for minute in history.minutes.values()) == 30


def test_minutes_older_than_a_day_become_hours(ledger: Any) -> None:
    days = 3 * 24 * 60
    for number in range(0, days, 7):
        ledger.batch(number, number * MINUTE)
        ledger.run(number, number, number * MINUTE + 500, type=1)
    history = StreamHistory("flights")
    history.advance(ledger, ["a"])
    assert len(history.minutes) < 24 * 60 / 7 + 3 * 24
    assert sum(minute.published for minute in history.minutes.values()) == 10 * len(ledger.batches)
    assert sum(minute.reasons["type"] for minute in history.minutes.values()) == len(ledger.batches)


def test_empty_ledger_has_no_figures(ledger: Any) -> None:
    history = StreamHistory("flights")
    assert not history.advance(ledger, ["a"])
    assert figures(history, 1, 0) == [(0, 0, None, None)]


def test_run_before_its_batches_are_known_waits_for_them(ledger: Any) -> None:
    ledger.batch(0, 0)
    ledger.run(0, 1, 500)
    history = StreamHistory("flights")
    history.advance(ledger, ["a"])
    assert history.published_batch == -1
    ledger.batch(1, 100)
    history.advance(ledger, ["a"])
    assert (history.published_batch, figures(history, 1, 1000)[0][1]) == (1, 20)
