"""Records with any time, key, header, size and compression are stored, judged, audited and read again as sent.

The expected rows are computed from the list of what was sent.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from any_records import FIRST_MS, LAST_MS, PARTITIONS, AnyRecord, any_records, create_topic, send
from pyspark.sql import SparkSession
from readings import GOLD, readings
from recovery_site import TEMPLATE, copy_dataset
from small_release import SmallRelease, small_release

from include.audit.audit_run import audit_dataset
from include.audit.kafka_records import open_topic
from include.audit.verified_history import full_scope
from include.catalog.dataset import snapshot_dataset
from include.catalog.history_slice import KAFKA, Slice, Span
from include.clients.kafka import log_end_offsets, topic_id
from include.kafka_times import HEADER
from include.reading.bronze_ranges import batch_offsets
from include.settings import Settings
from include.state.broker_address import bootstrap_servers
from spark_jobs.engine.bronze_tail import last_records
from spark_jobs.jobs.slice_job import write_kafka_records
from spark_jobs.layers.kafka_source import complete_source_options
from spark_jobs.storage.kafka_ranges import KafkaRanges

SEED = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
COUNT = int(os.environ.get("HEADRACE_TEST_RECORDS", "400"))
DATASET = "anything"
FUTURE_MS = timedelta(days=1) // timedelta(milliseconds=1)


@dataclass
class Scene:
    """A release that reads a topic, and the committed records of the topic by partition and offset."""

    settings: Settings
    release: SmallRelease
    chance: random.Random
    sent: dict[tuple[int, int], AnyRecord] = field(default_factory=dict)
    batch_of: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return bootstrap_servers(self.settings)

    def send(self, first: int, count: int) -> None:
        plain = (each for each in readings(first, 2 * count) if each.fate == "silver")
        valid = ((first + number, each.value.encode()) for number, each in enumerate(plain))
        self.sent |= send(self.bootstrap, DATASET, self.chance, list(any_records(self.chance, valid, count)))

    def take(self, batches: int) -> None:
        """Read what is new in the topic, in some batches, and refine each run of them."""
        options = complete_source_options(self.settings, self.bootstrap, {}, {})
        reader = KafkaRanges(self.release.spark, DATASET, options, threading.Event())
        ends = log_end_offsets(self.bootstrap, DATASET)
        first = self.release.batches
        for left in reversed(range(batches)):
            until = {p: end if left == 0 else self._some(self.release.ends[p], end) for p, end in ends.items()}
            number = self._take_batch(reader, until)
            if left == 0 or self.chance.random() < 0.5:
                self.release.refine(first, number)
                first = number + 1
        reader.close()

    def _some(self, start: int, end: int) -> int:
        return self.chance.randint(start, end)

    def _take_batch(self, reader: KafkaRanges, until: dict[int, int]) -> int:
        starts = self.release.ends
        ranges = {p: (starts[p], until[p]) for p in until}
        number = self.release.commit(partial(reader.write, ranges), until)
        inside = (place for place in self.sent if starts[place[0]] <= place[1] < until[place[0]])
        self.batch_of |= dict.fromkeys(inside, number)
        return number

    def audit(self, **scope: Any) -> list[str]:
        opened = partial(open_topic, self.bootstrap, jars=self.settings.jars)
        return [each.sentence() for each in audit_dataset(self.settings, DATASET, opened, **scope).findings]


@pytest.fixture
def scene(spark: SparkSession, broker_settings: Settings) -> Scene:
    settings = broker_settings
    copy_dataset(TEMPLATE, settings.datasets / DATASET, DATASET)
    create_topic(bootstrap_servers(settings), DATASET)
    snapshot_dataset(settings, DATASET)
    release = small_release(spark, settings, DATASET)
    release.ends = dict.fromkeys(range(PARTITIONS), 0)
    release.topic_id = topic_id(bootstrap_servers(settings), DATASET)
    return Scene(settings, release, random.Random(SEED))


@pytest.mark.timeout(3600)
def test_any_record_is_stored_judged_audited_and_read_again(scene: Scene, tmp_path: Path) -> None:
    scene.send(0, COUNT // 2)
    scene.take(3)
    assert scene.audit(scope=full_scope) == []
    assert_as_sent(scene)
    scene.release.restart()
    scene.send(COUNT, COUNT - COUNT // 2)
    scene.take(2)
    assert scene.audit() == []
    assert_as_sent(scene)
    assert_last_records(scene)
    assert_read_again(scene, tmp_path / "again")


def assert_as_sent(scene: Scene) -> None:
    """Assert that bronze, silver, rejected and gold are what the records must give."""
    bronze = {(row["partition"], row["offset"]): row for row in rows_of(scene, "bronze")}
    assert set(bronze) == set(scene.sent)
    for place, row in bronze.items():
        assert content_of(row) == expected_content(scene.sent[place]), place
    fates = expected_fates(scene)
    silver = {(row["_partition"], row["_offset"]): row for row in rows_of(scene, "silver")}
    rejected = {(row["_partition"], row["_offset"]): row for row in rows_of(scene, "rejected")}
    assert set(silver) == {place for place, fate in fates.items() if fate == "silver"}
    assert set(rejected) == set(fates) - set(silver)
    for place, row in rejected.items():
        assert_reason(row, fates[place], scene.sent[place])
    assert_gold(scene, pl.DataFrame(list(silver.values())))


def assert_reason(row: Mapping[str, Any], fate: str, record: AnyRecord) -> None:
    rules = [(reason["rule"], reason["detail"]) for reason in row["reasons"]]
    if fate == "kafka_timestamp":
        assert rules == [(fate, f"{record.time}")]
    elif fate == "invalid":
        assert (row["disposition"], "kafka_timestamp" in dict(rules)) == ("invalid", False)
    else:
        assert [rule for rule, _ in rules] == [fate]


def expected_fates(scene: Scene) -> dict[tuple[int, int], str]:
    """Return silver or the reason, by the total order of the records; `invalid` if the value is no reading."""
    fates, accepted = dict[tuple[int, int], str](), set[int]()
    for place in sorted(scene.sent, key=lambda each: (scene.batch_of[each], each)):
        fates[place] = expected_fate(scene.sent[place], accepted)
    return fates


def expected_fate(record: AnyRecord, accepted: set[int]) -> str:
    if not FIRST_MS <= record.time <= LAST_MS:
        return "kafka_timestamp"
    if record.reading is None:
        return "invalid"
    if read_at_ms(record) - record.time > FUTURE_MS:
        return "future_ts"
    if record.reading in accepted:
        return "duplicate"
    accepted.add(record.reading)
    return "silver"


def read_at_ms(record: AnyRecord) -> int:
    assert record.value is not None
    return round(datetime.fromisoformat(json.loads(record.value)["read_at"]).timestamp() * 1000)


def expected_content(record: AnyRecord) -> tuple[Any, ...]:
    headers = [(name.decode(errors="replace"), value) for name, value in record.headers]
    return record.key, record.value, record.time, headers


def content_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key, value, time and headers that a row of bronze says that Kafka has."""
    headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
    time = row["timestamp"]
    if time % 1000:
        (name, number), headers = headers[-1], headers[:-1]
        assert name == HEADER
        return row["key"], row["value"], int(number), headers
    return row["key"], row["value"], time // 1000, headers


def rows_of(scene: Scene, layer: str) -> Iterator[dict[str, Any]]:
    frame = scene.release.read(f"{layer}.{DATASET}")
    times = pl.selectors.by_name("timestamp", require_all=False).dt.timestamp("us")
    return frame.with_columns(times).iter_rows(named=True)


def assert_gold(scene: Scene, silver: pl.DataFrame) -> None:
    database = duckdb.connect()
    database.execute("set timezone = 'UTC'")
    database.register("sent", silver.to_arrow())
    for name, query in GOLD.items():
        wanted = database.sql(query).pl()
        found = scene.release.read(f"gold.{DATASET}_{name}").select(wanted.columns)
        assert sorted(map(str, found.rows())) == sorted(map(str, wanted.rows())), name


def assert_last_records(scene: Scene) -> None:
    """Preflight compares the last record of each partition with Kafka's: the time is the number that was sent."""
    last: dict[int, int] = defaultdict(int)
    for partition, offset in scene.sent:
        last[partition] = max(last[partition], offset)
    for partition, found in last_records(scene.release.bronze, range(PARTITIONS)).items():
        record = scene.sent[partition, last[partition]]
        assert (found.offset, found.timestamp_ms, found.key) == (last[partition], record.time, record.key)


def assert_read_again(scene: Scene, folder: Path) -> None:
    """A replay gets the rows of bronze from Kafka."""
    release, ends = scene.release, scene.release.ends
    spans = [Span(p, start, end, KAFKA) for p in ends for start, end in ((0, ends[p] // 3), (ends[p] // 3, ends[p]))]
    known = batch_offsets(release.bronze.spec.path, release.batches)
    write_kafka_records(scene.settings, release.release, Slice(spans), known, folder)
    again = pl.read_parquet(list(folder.glob("*.parquet"))).sort("partition", "offset")
    stored = release.read(f"bronze.{DATASET}").sort("partition", "offset").select(again.columns)
    assert again.cast(stored.schema).equals(stored)
