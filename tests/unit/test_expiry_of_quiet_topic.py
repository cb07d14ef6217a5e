"""Batches expire by their age also when the last one has no records: the topic went quiet."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from grown_history import START, GrownHistory

from include.declare.pipeline import Retention
from include.ground.settings import Settings
from spark_jobs.backends.release import Release
from spark_jobs.layers.bronze import BronzeBatch, commit_quiet_batch
from spark_jobs.stream.expiry import _expiring

RECORDS = 5


@pytest.fixture
def history(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> GrownHistory:
    """Return batches that arrived each a second after the one before, then two without records, all refined."""
    found = GrownHistory(settings)
    for _ in range(RECORDS):
        found.add_batch(published=False)
    bronze, facts = found.release.writer.bronze, {"dataset": "flights", "topic_id": "t", "query_id": "q", "epoch": 1}
    for number in (RECORDS, RECORDS + 1):
        commit_quiet_batch(bronze, BronzeBatch(number, "flights/bronze/g1", RECORDS - 1, {0: (9, 9)}, facts))
    monkeypatch.setattr(Release, "refined_batch", RECORDS + 1)
    return found


def expiring(history: GrownHistory, now: datetime, **ages: timedelta) -> dict[str, int]:
    """Return by table the batch before which all expire."""
    writer = history.release.writer
    pipeline = replace(writer.dataset.pipeline, retention=Retention(**ages))
    aged = replace(writer, dataset=replace(writer.dataset, pipeline=pipeline))
    return {
        each.table.spec.name: each.before
        for each in _expiring([Release(aged, history.release.gold, history.release.backend)], now)
    }


def test_bronze_expires_by_the_clock(history: GrownHistory) -> None:
    much_later = START + timedelta(days=10)
    assert expiring(history, much_later, bronze=timedelta(days=1)) == {"bronze.flights": RECORDS + 1}
    after_three = START + timedelta(days=1, seconds=2.5)
    assert expiring(history, after_three, bronze=timedelta(days=1)) == {"bronze.flights": 3}


def test_the_age_in_silver_is_counted_from_the_last_batch_with_records(history: GrownHistory) -> None:
    found = expiring(history, START + timedelta(days=10), silver=timedelta(seconds=2))
    assert found == {"silver.flights": 2, "rejected.flights": 2}


def test_a_topic_without_records_expires_nothing_from_silver(settings: Settings) -> None:
    assert expiring(GrownHistory(settings), START, silver=timedelta(seconds=2), bronze=timedelta(seconds=2)) == {}
