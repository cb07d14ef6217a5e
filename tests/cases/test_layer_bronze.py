"""Golden cases of bronze: records are stored byte for byte, and every offset is accounted for."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from small_events import flight_event
from small_release import ARRIVED, Record, SmallRelease, small_release

from include.ground.delta_log import commits_descending
from include.ground.paths import checkpoint_path
from include.ground.settings import Settings
from spark_jobs.backends.local.arrow_files import write_arrow
from spark_jobs.layers import bronze
from spark_jobs.stream import ingest, preflight
from spark_jobs.tables.checkpoint import Generation
from spark_jobs.tables.delta_table import RowsUnaccounted

GOOD = flight_event("scheduled", 1)
# name → record: bronze stores all of them and parses none.
RECORDS = {
    "plain": GOOD,
    "no key": replace(GOOD, key=None),
    "empty key": replace(GOOD, key=b""),
    "no value": replace(GOOD, value=None),
    "empty value": replace(GOOD, value=b""),
    "every byte": Record(bytes(range(256)), bytes(range(255, -1, -1)), partition=1),
    "no headers": replace(GOOD, headers=None),
    "headers, none of them": replace(GOOD, headers=[]),
    "the same header twice": replace(GOOD, headers=[("trace", b"1"), ("trace", b"2"), ("trace", b"1")]),
    "a header without value": replace(GOOD, headers=[("trace", None), ("", b"")]),
    "a binary header": replace(GOOD, headers=[("blob", b"\x00\xff\xfe{}")]),
    "after a hole": replace(GOOD, partition=1, hole=17),
    "a megabyte": Record(b"x" * 1_048_577),
}


@pytest.fixture(scope="module")
def release(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    release = small_release(spark, Settings(state=tmp_path_factory.mktemp("bronze")), "flights")
    release.ingest(list(RECORDS.values()))
    return release


@pytest.fixture(scope="module")
def stored(release: SmallRelease) -> dict[str, dict[str, Any]]:
    """Return bronze's rows by the name of their case."""
    rows = bronze_rows(release).sort("timestamp").to_dicts()
    return dict(zip(RECORDS, rows, strict=True))


def bronze_rows(release: SmallRelease) -> pl.DataFrame:
    table = DeltaTable(str(release.bronze.spec.path), version=release.bronze.version)
    return pl.DataFrame(pl.from_arrow(table.to_pyarrow_table()))


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_are_stored_unchanged(name: str, stored: dict[str, dict[str, Any]]) -> None:
    record, row = RECORDS[name], stored[name]
    assert (row["key"], row["value"]) == (record.key, record.value)
    found = None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]]
    assert found == (None if record.headers is None else list(record.headers))


def test_kafka_coordinates_are_stored(stored: dict[str, dict[str, Any]]) -> None:
    assert [stored[name]["offset"] for name in ("plain", "no key", "every byte", "after a hole")] == [
        100,
        101,
        5000,
        5018,
    ]
    assert {(row["topic"], row["timestamp_type"], row["_batch_id"]) for row in stored.values()} == {("flights", 1, 0)}
    assert stored["plain"]["timestamp"] == ARRIVED
    assert stored["plain"]["_date"] == "2026-11-30"


def test_date_partition_is_of_kafka_timestamp(spark: SparkSession, settings: Settings) -> None:
    release = small_release(spark, settings, "flights")
    release.batches = 2
    release.ingest([GOOD])
    assert bronze_rows(release)["_date"].to_list() == ["2026-12-01"]


def test_commit_metadata_has_offset_ranges_including_holes(release: SmallRelease) -> None:
    entry = json.loads((release.bronze.spec.path / "_delta_log" / f"{1:020}.json").read_text().splitlines()[0])
    metadata = json.loads(entry["commitInfo"]["userMetadata"])
    assert metadata["offsets"] == {"0": [100, 111], "1": [5000, 5019]}
    assert metadata["rows_by_partition"] == {"0": 11, "1": 2}
    assert (metadata["rows"], metadata["batches"]) == (13, [0, 0])
    first = int(ARRIVED.timestamp() * 1000)
    assert metadata["timestamps"] == [first, first + len(RECORDS) - 1]


def test_redelivered_batch_commits_once(release: SmallRelease) -> None:
    before, rows = release.bronze.version, bronze_rows(release).height
    release.restart()
    release.batches, release.ends = 0, {0: 100, 1: 5_000}
    release.ingest(list(RECORDS.values()))
    assert release.bronze.version == before
    assert bronze_rows(release).height == rows


def test_record_outside_offset_range_is_refused(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = small_release(spark, settings, "flights")
    original = bronze.BronzeBatch

    def shorter(number: int, app_id: str, transaction: int, offsets: Any, *rest: Any) -> bronze.BronzeBatch:
        return original(number, app_id, transaction, {p: (a, b - (p == 0)) for p, (a, b) in offsets.items()}, *rest)

    monkeypatch.setattr("small_release.BronzeBatch", shorter)
    with pytest.raises(RowsUnaccounted, match=r"partition 0 has offsets 100 to 101, not \[100, 101\)"):
        release.ingest([GOOD, GOOD])
    assert release.bronze.version == 0


def test_batch_of_a_recreated_topic_is_not_committed(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = small_release(spark, settings, "flights")
    generation = Generation(1, 0, {0: 100, 1: 5_000}, "flights", "topic-1", release.bronze.table_id)
    checkpoint = generation.checkpoint(checkpoint_path(settings, "flights"))
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"flights": {"0": 101, "1": 5000}}')
    ids = ["topic-2", "topic-1"]
    monkeypatch.setattr(preflight, "topic_id", lambda *_: ids.pop(0))
    monkeypatch.setattr(ingest, "bootstrap_servers", lambda _: "broker")
    query = ingest.Ingest(spark, settings, release.dataset, release.bronze, generation, 1, threading.Event())
    records = release.source([GOOD])
    query.reader = SimpleNamespace(write=lambda _, folder: write_arrow(records, folder))  # type: ignore[assignment]
    with pytest.raises(preflight.TopicReplaced):
        query._commit(records, 0)
    assert isinstance(query.failure, preflight.TopicReplaced)
    assert release.bronze.version == 0
    query._commit(records, 0)
    assert release.bronze.version == 1
    assert next(commits_descending(release.bronze.spec.path)).metadata["topic_id"] == "topic-1"  # type: ignore[index]
