"""A dataset's history as its owner makes it, fast: real small files and commits, compaction, publication, ledger.

No Kafka and no Spark: rows come from pyarrow; everything else is the product's own code.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from include.declare.dataset import Dataset, declared_dataset
from include.declare.event_times import PROGRESS, WatermarkProgress
from include.declare.gold import AdditiveGold
from include.ground.commit_history import history_end
from include.ground.paths import gold_path, rejected_path, silver_path
from include.ground.settings import Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.read.publication import publish
from spark_jobs.backends.local.backend import LocalBackend
from spark_jobs.backends.release import Release, tables_of
from spark_jobs.layers.bronze import BronzeBatch, bronze_spec
from spark_jobs.layers.bronze import batch_metadata as bronze_metadata
from spark_jobs.layers.gold_layer import GoldTable
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.stream.compaction import compactable_tables
from spark_jobs.stream.progress import lag_seconds
from spark_jobs.stream.refine import publication_of
from spark_jobs.stream.upkeep import AutomaticCompaction, AutomaticHistory
from spark_jobs.tables.data_files import DataFile, TableSpec, written_file
from spark_jobs.tables.delta_table import Table

START = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS = 20
MEASURED = 500
TIME = pa.timestamp("us", tz="UTC")
SILVER = (
    StructType().add("event_id", StringType()).add("occurred_at", TimestampType())
    .add("_topic", StringType()).add("_partition", IntegerType()).add("_offset", LongType())
    .add("_timestamp", TimestampType()).add("_batch_id", LongType()).add("_month", StringType())
)  # fmt: skip
SILVER_FILE = pa.schema(
    [
        ("event_id", pa.string()),
        ("occurred_at", TIME),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", TIME),
        ("_batch_id", pa.int64()),
    ]
)
BRONZE_FILE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("_batch_id", pa.int64()),
    ]
)
HOUR = StructType().add("hour", TimestampType()).add("events", LongType()).add("_month", StringType())


@dataclass
class GrownHistory:
    """Grows by `add_batch`; `seconds` has the CPU seconds of each step by batch, of the last MEASURED batches.

    `partitions` of the topic: bronze gets a file of each in each batch. `moved`: commits moved into the history by
    batch, of the same batches.
    """

    settings: Settings
    partitions: int = 1
    name: str = "flights"
    dataset: Dataset = field(init=False)
    release: Release = field(init=False)
    seconds: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    moved: dict[int, int] = field(default_factory=dict)
    batches: int = 0
    progress: WatermarkProgress = field(default_factory=lambda: WatermarkProgress(timedelta()))

    def __post_init__(self) -> None:
        self.dataset = declared_dataset(self.settings, self.name)
        names = self.settings, self.dataset.name, self.dataset.release
        gold = next(each for each in self.dataset.pipeline.gold if isinstance(each, AdditiveGold))
        durable, bounded = self.settings.is_power_safe, ("occurred_at", "_batch_id")
        silver_is = TableSpec(f"silver.{self.name}", silver_path(*names), SILVER, "_month", bounded, durable)
        rejected_is = TableSpec(
            f"rejected.{self.name}", rejected_path(*names), SILVER, "_month", ("_batch_id",), durable
        )
        gold_is = TableSpec(f"gold.{gold.name}", gold_path(*names, gold.name), HOUR, "_month", ("hour",), durable)
        tables = [Table(spec) for spec in (bronze_spec(self.settings, self.name), silver_is, rejected_is)]
        nothing: Any = None
        writer = SilverTables(
            nothing,
            self.dataset,
            nothing,
            nothing,
            nothing,
            *tables,
            Path(),
            nothing,
            nothing,
            nothing,
        )
        app_id = f"{self.dataset.name}/{self.dataset.release}/gold/{gold.name}"
        self.release = Release(writer, (GoldTable(gold, Table(gold_is), nothing, app_id),), LocalBackend())
        self.ledger = open_writer(self.settings)
        self.compaction = AutomaticCompaction()
        # A batch stands for a second; made as fast as it goes, all commits would be of the last five minutes.
        self.moving = AutomaticHistory(clock=lambda: float(self.batches), age=timedelta(), next_check=0.0)

    @property
    def written(self) -> int:
        """The number of data files that batches have written, compaction apart: silver and gold get one each."""
        return self.batches * (self.partitions + 2)

    @property
    def commits(self) -> int:
        """The number of commits of batches in all tables, compaction apart."""
        return self.batches * 4

    @property
    def files(self) -> int:
        """The number of current files in all tables."""
        return sum(table.file_count for table in tables_of([self.release]))

    @property
    def historic(self) -> int:
        """The number of commits that are in the histories of all tables."""
        return sum(history_end(table.spec.path) for table in tables_of([self.release]))

    def add_batch(self, *, published: bool = True) -> None:
        """Ingest and refine one batch, compact what is due; then publish it and project it into the ledger."""
        writer, number = self.release.writer, self.batches
        with self._timed("commit"):
            self._commit_bronze(number)
        with self._timed("plan"):
            assert self.release.next_run(number, 100_000) == (number, number)
        with self._timed("lag"):
            assert lag_seconds(self._ingest(number), number - 1, {0: 1}, time.time()) is not None
        with self._timed("commit"):
            self._commit_refined(RefineRun(number, number, 1))
        if published:
            self._publish(number)
        self.compaction.note_run()
        with self._timed("compact"):
            while self.compaction.step(compactable_tables([self.release])):
                pass
        before = self.historic
        with self._timed("move"):
            while self.moving.step(self.settings, [self.release]):
                pass
        self.moved[number] = self.historic - before
        self.moved.pop(number - MEASURED, None)
        assert writer.silver.rows == writer.bronze.rows
        self.batches += 1

    def _publish(self, number: int) -> None:
        with self._timed("publish"):
            publish(self.settings, publication_of(self.settings, self.release, number))
        with self._timed("project"):
            project_dataset(self.ledger, self.settings, self.dataset.name)

    def _ingest(self, number: int) -> Any:
        ends = dict.fromkeys(range(self.partitions), self._offsets(number).stop)
        return SimpleNamespace(bronze=self.release.writer.bronze, ingested=ends)

    def _offsets(self, number: int) -> range:
        """Return the offsets that a batch has of each partition."""
        count = max(1, RECORDS // self.partitions)
        return range(number * count, (number + 1) * count)

    def _commit_bronze(self, number: int) -> None:
        bronze, offsets = self.release.writer.bronze, self._offsets(number)
        files = [self._write_bronze(number, part) for part in range(self.partitions)]
        facts = {"dataset": self.name, "topic": self.name, "topic_id": "t", "query_id": "q", "epoch": 1, "code": "c"}
        spans = dict.fromkeys(range(self.partitions), (offsets.start, offsets.stop))
        batch = BronzeBatch(number, f"{self.name}/bronze/g1", number, spans, facts)
        bronze.commit(batch.app_id, number, bronze_metadata(bronze, files, batch), files)

    def _write_bronze(self, number: int, part: int) -> DataFile:
        at, offsets = START + timedelta(seconds=number), self._offsets(number)
        count = len(offsets)
        columns = {
            "topic": ["flights"] * count,
            "partition": [part] * count,
            "offset": list(offsets),
            "timestamp": [at] * count,
            "timestamp_type": [0] * count,
            "key": [None] * count,
            "value": [b"{}"] * count,
            "headers": [None] * count,
            "_batch_id": [number] * count,
        }
        return _write(self.release.writer.bronze, number, f"{at:%Y-%m-%d}", pa.table(columns, BRONZE_FILE), part)

    def _commit_refined(self, run: RefineRun) -> None:
        writer, number, at = self.release.writer, run.last, START + timedelta(seconds=run.last)
        places = [(part, offset) for part in range(self.partitions) for offset in self._offsets(number)]
        count = len(places)
        columns = {
            "event_id": [f"{number}-{row}" for row in range(count)],
            "occurred_at": [at] * count,
            "_topic": ["flights"] * count,
            "_partition": [part for part, _ in places],
            "_offset": [offset for _, offset in places],
            "_timestamp": [at] * count,
            "_batch_id": [number] * count,
        }
        added = [_write(writer.silver, number, f"{at:%Y-%m}", pa.table(columns, SILVER_FILE))]
        times = {"0": at.isoformat().replace("+00:00", "Z")}
        self.progress.advance(number, json.dumps(times))
        facts = {"rows": count, "rows_in": count, "event_time_max": times, PROGRESS: self.progress.as_json()}
        self._commit(writer.silver, writer.app_ids["silver"], run, facts, added)
        nothing: dict[str, Any] = {"rows": 0, "reasons": {}, "dispositions": {}, "warnings": {}}
        self._commit(writer.rejected, writer.app_ids["rejected"], run, nothing, [])
        target, hour = self.release.gold[0], at.replace(minute=0, second=0)
        old = [file for file in target.table.files() if file.overlaps("hour", hour, hour)]
        rows = pa.table({"hour": pa.array([hour], TIME), "events": [number]})
        merged = [_write(target.table, number, f"{at:%Y-%m}", rows)]
        total = target.table.rows + 1 - len(old)
        gold_facts = {"rows": 1, "grains": 1, "total": total}
        self._commit(target.table, target.app_id, run, gold_facts, merged, old)

    def _commit(
        self,
        table: Table,
        app_id: str,
        run: RefineRun,
        facts: dict[str, Any],
        added: list[DataFile],
        removed: list[DataFile] | None = None,
    ) -> None:
        metadata = run.facts(self.dataset) | {"table": table.spec.name, "app_id": app_id} | facts
        table.commit(app_id, run.last, metadata, added, removed or [])

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        before = time.process_time()
        yield
        by_batch = self.seconds[step]
        by_batch[self.batches] = by_batch.get(self.batches, 0.0) + time.process_time() - before
        by_batch.pop(self.batches - MEASURED, None)


def _write(table: Table, number: int, partition: str, rows: pa.Table, part: int = 0) -> DataFile:
    folder = table.attempt_folder(f"b{number:08d}") / f"{table.spec.partition}={partition}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{part}.parquet"
    pq.write_table(rows, path)
    return written_file(table.spec, path)
