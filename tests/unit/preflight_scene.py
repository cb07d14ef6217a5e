"""A dataset with batches in bronze, its checkpoint, and a broker whose answers a test chooses; no Spark, no Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_warehouse import BRONZE as SMALL_BRONZE

from include.declare.dataset import Dataset, declared_dataset
from include.ground.kafka import KafkaRecord, RecordReader
from include.ground.paths import checkpoint_path
from include.ground.settings import Settings
from spark_jobs.jobs import repair_job
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream import preflight, recovery
from spark_jobs.stream.preflight import bronze_head, refuse_lost_bronze, validated_generation
from spark_jobs.tables.checkpoint import Generation, read_generation, write_generation
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BATCHES = 4
BRONZE = pa.schema([field for field in SMALL_BRONZE if field.name != "_date"])
TEN = 10
"""Offsets that each batch takes of each of the two partitions."""


@dataclass
class Kafka:
    """The broker's answers."""

    id: str = "topic-1"
    starts: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    ends: dict[int, int] = field(default_factory=lambda: {0: 100, 1: 100})
    records: dict[tuple[int, int], KafkaRecord] = field(default_factory=dict)
    """By partition and offset."""
    compacted: bool = False

    @contextmanager
    def reader(self, *_: object) -> Iterator[RecordReader]:
        """What `record_reader` yields."""

        def read(partition: int, start: int, end: int) -> list[KafkaRecord]:
            return [r for (p, offset), r in sorted(self.records.items()) if p == partition and start <= offset < end]

        yield read


@dataclass
class Scene:
    """A dataset with `BATCHES` batches in bronze, its checkpoint, and Kafka's answers."""

    settings: Settings
    dataset: Dataset
    bronze: Table
    kafka: Kafka

    @property
    def folder(self) -> Path:
        return checkpoint_path(self.settings, "flights")

    @property
    def generation(self) -> Generation:
        found = read_generation(self.folder, "flights")
        assert found is not None
        return found

    def commit(self, number: int, generation: int = 1, base: int = 0) -> None:
        """Commit bronze batch `number`, one record per partition, which Kafka has too."""
        files = [self.written(p, number) for p in (0, 1)]
        spans = {str(p): [TEN * number, TEN * (number + 1)] for p in (0, 1)}
        metadata: dict[str, Any] = {
            "dataset": "flights",
            "table": "bronze.flights",
            "app_id": f"flights/bronze/{generation}",
            "epoch": 1,
            "batches": [number, number],
            "rows": 2,
            "rows_by_partition": {"0": 1, "1": 1},
            "timestamps": None,
            "offsets": spans,
            "query_id": f"query-{generation}",
            "topic_id": "topic-1",
        }
        self.bronze.commit(f"flights/bronze/{generation}", number - base, metadata, files)

    def written(self, partition: int, number: int) -> DataFile:
        """Write a batch's only record of a partition, three offsets before the end of its range."""
        record = record_of(TEN * (number + 1) - 3, partition)
        self.kafka.records[partition, record.offset] = record
        folder = self.bronze.attempt_folder(f"b{number:08d}-p{partition}")
        (folder / "_date=2026-11-21").mkdir(parents=True)
        row = {"topic": "flights", "partition": partition, "offset": record.offset, "timestamp": NOW}
        row |= {"timestamp_type": 1, "key": record.key, "value": record.value, "headers": None, "_batch_id": number}
        pq.write_table(pa.Table.from_pylist([row], schema=BRONZE), folder / "_date=2026-11-21/part-0.parquet")
        return self.bronze.written_files(folder)[0]

    def plan(self, batch: int, number: int, generation: int = 1, done: bool = True) -> None:
        """Write Spark's log of its `batch`, which is bronze's batch `number`."""
        place = self.folder / str(generation)
        ends = json.dumps({"flights": {str(p): TEN * (number + 1) for p in (0, 1)}})
        for name, text in (("offsets", f"v1\n{{}}\n{ends}"), ("commits", "v1\n{}")):
            (place / name).mkdir(parents=True, exist_ok=True)
            if done or name == "offsets":
                (place / name / str(batch)).write_text(text)
        (place / "metadata").write_text(json.dumps({"id": f"query-{generation}"}))

    def preflight(self) -> Generation:
        refuse_lost_bronze(self.settings, "flights")
        head = bronze_head(self.bronze)
        return validated_generation(self.settings, self.dataset, self.bronze, head, "broker")

    def repair(self, agreed: bool = True, accept_loss: bool = False) -> tuple[bool, list[str]]:
        shown: list[str] = []
        answers = {"confirm": lambda: agreed, "print_line": shown.append, "accept_loss": accept_loss}
        well = repair_job.repair(self.settings, "flights", now=NOW, **answers)  # type: ignore[arg-type]
        return well, shown


def record_of(offset: int, partition: int) -> KafkaRecord:
    return KafkaRecord(offset, int(NOW.timestamp() * 1000), b"key", f"value {partition}-{offset}".encode())


def open_scene(settings: Settings, monkeypatch: pytest.MonkeyPatch, batches: int = BATCHES) -> Scene:
    """Return a scene with that many batches; preflight and repair get the answers of its `kafka`."""
    kafka = Kafka()
    for module in (preflight, recovery):
        monkeypatch.setattr(module, "topic_id", lambda *_: kafka.id)
        monkeypatch.setattr(module, "log_start_offsets", lambda *_: dict(kafka.starts))
    monkeypatch.setattr(preflight, "log_end_offsets", lambda *_: dict(kafka.ends))
    monkeypatch.setattr(preflight, "record_reader", kafka.reader)
    monkeypatch.setattr(preflight, "is_compacted", lambda *_: kafka.compacted)
    monkeypatch.setattr(repair_job, "bootstrap_servers", lambda _: "broker")
    made = Scene(settings, declared_dataset(settings, "flights"), Table(bronze_spec(settings, "flights")), kafka)
    write_generation(made.folder, Generation(1, 0, {0: 0, 1: 0}, "flights", "topic-1", made.bronze.table_id))
    for number in range(batches):
        made.plan(number, number)
        made.commit(number)
    return made
