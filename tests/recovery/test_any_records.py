"""Records with any time, key, header, size and compression are stored, judged, audited and read again as sent.

The expected rows are computed from the list of what was sent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from any_records import NOW_MS, PARTITIONS, AnyRecord, any_records, create_topic, send
from any_records_oracle import Place, assert_as_sent, content_of, expected_content
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from readings import readings
from recovery_site import TEMPLATE, Site, copy_dataset
from small_release import SmallRelease, small_release

from include.audit.kafka import open_topic
from include.audit.run import audit_dataset
from include.audit.verified_history import full_scope
from include.declare.dataset import snapshot_dataset
from include.declare.history_slice import KAFKA, Slice, Span
from include.ground.kafka import log_end_offsets, record_reader, topic_id
from include.ground.settings import Settings
from include.read.published_tables import batch_offsets
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.local.kafka_ranges import KafkaRanges
from spark_jobs.jobs.slice_job import write_kafka_records
from spark_jobs.layers.bronze import KafkaRecords, complete_source_options
from spark_jobs.stream.preflight import last_records

SEED = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
COUNT = int(os.environ.get("HEADRACE_TEST_RECORDS", "400"))
DATASET, BY_SPARK = "anything", "by_spark"


@dataclass
class Scene:
    """A release that reads a topic, and the committed records of the topic by partition and offset."""

    settings: Settings
    release: SmallRelease
    chance: random.Random
    sent: dict[tuple[int, int], AnyRecord] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return bootstrap_servers(self.settings)

    def send(self, first: int, count: int) -> None:
        self.sent |= sent_readings(self.bootstrap, DATASET, self.chance, first, count)

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
        ranges = {p: (self.release.ends[p], until[p]) for p in until}
        return self.release.commit(partial(reader.write, ranges), until)

    def audit(self, **scope: Any) -> list[str]:
        opened = partial(open_topic, self.bootstrap, jars=self.settings.jars)
        return [each.sentence() for each in audit_dataset(self.settings, DATASET, opened, **scope).findings]


def sent_readings(bootstrap: str, topic: str, chance: random.Random, first: int, count: int) -> dict[Place, AnyRecord]:
    """Send `count` records, of which the valid readings begin with number `first`; return the committed by place."""
    plain = (each for each in readings(first, 2 * count) if each.fate == "silver")
    valid = ((first + number, each.value.encode()) for number, each in enumerate(plain))
    return send(bootstrap, topic, chance, list(any_records(chance, valid, count)))


def new_scene(spark: SparkSession, settings: Settings, dataset: str) -> Scene:
    copy_dataset(TEMPLATE, settings.datasets / dataset, dataset)
    create_topic(bootstrap_servers(settings), dataset)
    snapshot_dataset(settings, dataset)
    release = small_release(spark, settings, dataset)
    release.ends = dict.fromkeys(range(PARTITIONS), 0)
    release.topic_id = topic_id(bootstrap_servers(settings), dataset)
    return Scene(settings, release, random.Random(SEED))


@pytest.fixture(scope="module")
def by_spark(spark: SparkSession, broker_settings: Settings) -> Scene:
    """Return a release whose batches Spark writes, where it can; each test adds one."""
    return new_scene(spark, broker_settings.model_copy(update={"backend": "spark"}), BY_SPARK)


@pytest.fixture
def scene(spark: SparkSession, broker_settings: Settings) -> Scene:
    return new_scene(spark, broker_settings, DATASET)


@pytest.mark.timeout(3600)
def test_any_record_is_stored_judged_audited_and_read_again(scene: Scene, tmp_path: Path) -> None:
    scene.send(0, COUNT // 2)
    scene.take(3)
    assert scene.audit(scope=full_scope) == []
    assert_as_sent(scene.settings, DATASET, scene.sent)
    scene.release.restart()
    scene.send(COUNT, COUNT - COUNT // 2)
    scene.take(2)
    assert scene.audit() == []
    assert_as_sent(scene.settings, DATASET, scene.sent)
    assert_last_records(scene)
    assert_read_again(scene, tmp_path / "again")


ON_A_CLUSTER = {
    "milliseconds": (NOW_MS, True),
    "none": (-1, True),
    "before the calendar's reform": (-14_831_769_600_000, False),
    "microseconds": (NOW_MS * 1000, False),
    "nanoseconds": (NOW_MS * 1_000_000, False),
}


@pytest.mark.parametrize(
    "unit", [pytest.param(unit, marks=[pytest.mark.extended] * (unit == "milliseconds")) for unit in ON_A_CLUSTER]
)
def test_batch_that_sparks_source_cannot_hold_is_read_by_the_driver(
    spark: SparkSession, by_spark: Scene, unit: str
) -> None:
    time, is_held = ON_A_CLUSTER[unit]
    scene, read = by_spark, list[Path]()
    records = [AnyRecord(partition, at, b"k", b"v") for partition in range(PARTITIONS) for at in (NOW_MS, time)]
    sent = send(scene.bootstrap, BY_SPARK, scene.chance, records)
    starts, ends = scene.release.ends, log_end_offsets(scene.bootstrap, BY_SPARK)
    ranges = {partition: (starts[partition], end) for partition, end in ends.items()}
    options = complete_source_options(scene.settings, scene.bootstrap, {}, {})
    with closing(KafkaRanges(spark, BY_SPARK, options, threading.Event())) as reader:

        def here(folder: Path) -> list[Path]:
            read.append(folder)
            return reader.write(ranges, folder)

        bounds = {"startingOffsets": json.dumps({BY_SPARK: starts}), "endingOffsets": json.dumps({BY_SPARK: ends})}
        source = complete_source_options(scene.settings, scene.bootstrap, {"subscribe": BY_SPARK, **bounds}, {})
        source.pop("minOffsetsPerTrigger", None)
        frame = spark.read.format("kafka").options(**source).load()
        number = scene.release.commit(KafkaRecords(frame, here), ends)
    assert bool(read) != is_held
    found = DeltaTable(str(scene.release.bronze.spec.path)).to_pyarrow_table(filters=[("_batch_id", "=", number)])
    rows = pl.DataFrame(pl.from_arrow(found)).with_columns(pl.col("timestamp").dt.timestamp("us"))
    assert {(row["partition"], row["offset"]): content_of(row) for row in rows.iter_rows(named=True)} == {
        place: expected_content(record) for place, record in sent.items()
    }


@pytest.mark.extended
@pytest.mark.timeout(7200)
def test_stream_takes_any_record_across_a_restart_and_reads_it_again(broker_settings: Settings) -> None:
    site, chance = Site(broker_settings, "any_stream"), random.Random(SEED + 1)
    create_topic(site.bootstrap, site.dataset)
    site.prepare()
    sent = sent_readings(site.bootstrap, site.dataset, chance, 0, COUNT // 2)
    try:
        driver = site.start_driver()
        site.wait_published(driver)
        assert done(site, "audit", "--full", "--dataset", site.dataset) == 0
        driver.send(signal.SIGKILL)
        driver.wait()
        sent |= sent_readings(site.bootstrap, site.dataset, chance, COUNT, COUNT - COUNT // 2)
        site.wait_published(site.start_driver())
        assert_as_sent(site.settings, site.dataset, sent)
        assert done(site, "audit", "--dataset", site.dataset) == 0
        from_kafka = ("replay", "run", "--dataset", site.dataset, "--source", "kafka", "--yes")
        offsets = {p: [0, max(offset for partition, offset in sent if partition == p) + 1] for p in range(PARTITIONS)}
        assert done(site, *from_kafka, "--offsets", json.dumps(offsets)) == 0
        assert (
            done(
                site, *from_kafka, "--from-timestamp", "0001-01-02T00:00:00Z", "--to-timestamp", "9999-12-30T00:00:00Z"
            )
            == 0
        )
        assert_as_sent(site.settings, site.dataset, sent)
        assert done(site, "audit", "--full", "--dataset", site.dataset) == 0
    finally:
        site.kill_all()


def done(site: Site, *words: str) -> int:
    """Run a command and return its exit code; its output is shown if the test fails."""
    ended = site.command(*words)
    print(ended.stdout[-2000:], ended.stderr[-2000:])
    return ended.returncode


def assert_last_records(scene: Scene) -> None:
    """Preflight compares the last record of each partition with Kafka's: the time is the number that was sent."""
    last: dict[int, int] = defaultdict(int)
    for partition, offset in scene.sent:
        last[partition] = max(last[partition], offset)
    with record_reader(scene.bootstrap, DATASET) as read:
        for partition, found in last_records(scene.release.bronze, range(PARTITIONS)).items():
            record = scene.sent[partition, last[partition]]
            assert (found.offset, found.timestamp_ms, found.key) == (last[partition], record.time, record.key)
            assert read(partition, found.offset, found.offset + 1) == [found]


def assert_read_again(scene: Scene, folder: Path) -> None:
    """A replay gets the rows of bronze from Kafka."""
    release, ends = scene.release, scene.release.ends
    spans = [Span(p, start, end, KAFKA) for p in ends for start, end in ((0, ends[p] // 3), (ends[p] // 3, ends[p]))]
    known = batch_offsets(release.bronze.spec.path, release.batches)
    write_kafka_records(scene.settings, release.release, Slice(spans), known, folder)
    again = pl.read_parquet(list(folder.glob("*.parquet"))).sort("partition", "offset")
    stored = release.read(f"bronze.{DATASET}").sort("partition", "offset").select(again.columns)
    assert again.cast(stored.schema).equals(stored)
