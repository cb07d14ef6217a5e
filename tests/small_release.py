"""A release without a broker or a driver: records go into bronze, batches are refined, tables are read.

The only module of the tests that calls `commit_bronze`, `open_release` and `refine`: cases, parity and architecture
build on it. Records are shaped as Spark's Kafka source hands them over, with made-up offsets.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from include.declare.dataset import Dataset, declared_dataset, load_dataset
from include.declare.reference_tables import current_versions
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.read.publication import find_publication, publish, published_tables
from include.read.published_tables import PinnedTables
from spark_jobs.backends.local.arrow_files import SUFFIX, added_files
from spark_jobs.backends.local.runs import NextRun
from spark_jobs.backends.release import Release, open_bronze, open_release, tables_of
from spark_jobs.layers.bronze import SOURCE, ArrowRecords, BronzeBatch, IdleSet, KafkaRecords, commit_quiet_batch
from spark_jobs.layers.gold_files import PiecePolicy
from spark_jobs.stream.refine import RunReport, publication_of, refine, refresh_due

# Ten seconds before a month ends: bronze gets two dates, and rejected two months, in any case of some length.
ARRIVED = datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC)
Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Record:
    """One Kafka record; offset and timestamp are assigned when it is ingested."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    headers: Sequence[Header] | None = None
    hole: int = 0
    """Offsets before it that hold no record: transaction markers, or compacted records."""


@dataclass
class SmallRelease:
    """The tables of one release, owned by this process; `restart` acts as a new process with the next epoch."""

    spark: SparkSession
    settings: Settings
    dataset: Dataset
    epoch: int = 1
    ends: dict[int, int] = field(default_factory=lambda: {0: 100, 1: 5_000})
    """Next offset by partition: not 0, and far apart, so that no count is taken for an offset."""
    batches: int = 0
    idle: IdleSet = IdleSet(frozenset({0, 1}))
    """The partitions that are idle after the last batch."""
    topic_id: str = ""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Discard every handle and reopen the tables."""
        self.epoch += 1
        self.bronze = open_bronze(self.settings, self.dataset.name)
        self.release: Release = open_release(self.spark, self.settings, self.dataset, self.bronze)
        claimed = [table for table in tables_of([self.release]) if table.needs_claim]
        self.epoch = max([self.epoch, *(table.claimed_epoch + 1 for table in claimed)])
        for table in claimed:
            table.claim(self.epoch)

    def cut_gold(self) -> None:
        """From now on, until a restart, cut each gold file into pieces, however small it is."""
        eager = PiecePolicy(smallest=1_500, uncut=0, rewritten=0)
        gold = tuple(replace(target, pieces=eager) for target in self.release.gold)
        self.release = replace(self.release, gold=gold)

    def ingest(self, records: Sequence[Record]) -> int:
        """Commit the records as the next bronze batch, at the partitions' ends; return its number.

        They come as from the backend's own reader of Kafka: as Arrow files, or as rows of Spark's source.
        """
        rows, ends = self._next_rows(records)
        by_spark = self.settings.computes_with_spark
        return self.commit(self._source(rows) if by_spark else partial(arrow_files, rows), ends)

    def commit(self, source: DataFrame | ArrowRecords | KafkaRecords, ends: dict[int, int]) -> int:
        """Commit a source's records, from the partitions' ends up to others, as the next batch; return its number."""
        number, starts = self.batches, self.ends
        ranges = {partition: (starts[partition], ends[partition]) for partition in ends}
        app_id = f"{self.dataset.name}/bronze/1"
        batch = BronzeBatch(number, app_id, number, ranges, self._facts(), self.idle)
        files = self.release.backend.ingest(self.bronze, source, batch)
        self.idle = batch.idle_set({int(str(file.low["partition"])) for file in files})
        self.ends, self.batches = ends, number + 1
        return number

    def ingest_quiet(self, *partitions: int) -> int:
        """Commit a bronze batch without records, after which these partitions are idle; return its number."""
        number, app_id = self.batches, f"{self.dataset.name}/bronze/1"
        ranges = {partition: (end, end) for partition, end in self.ends.items()}
        batch = BronzeBatch(number, app_id, number, ranges, self._facts(), self.idle, frozenset(partitions))
        commit_quiet_batch(self.bronze, batch)
        self.idle, self.batches = batch.idle_set([]), number + 1
        return number

    def source(self, records: Sequence[Record]) -> DataFrame:
        """Return the records as the Kafka source's next batch, without a commit."""
        return self._source(self._next_rows(records)[0])

    def _next_rows(self, records: Sequence[Record]) -> tuple[list[dict[str, Any]], dict[int, int]]:
        ends, rows = dict(self.ends), []
        for place, record in enumerate(records):
            at = ARRIVED + timedelta(seconds=7 * self.batches, milliseconds=place)
            offset = ends[record.partition] + record.hole
            rows.append(self._row(record, offset, at))
            ends[record.partition] = offset + 1
        return rows, ends

    def refine(self, first: int, last: int, now: float | None = None, following: NextRun | None = None) -> RunReport:
        """Refine bronze batches [first, last] and publish; `now` is the time for gold with an interval.

        `following` validates the next run meanwhile.
        """
        return refine(self.settings, self.release, first, last, self.epoch, now=now, following=following)

    def take(self, records: Sequence[Record], now: float | None = None) -> int:
        """Ingest one batch and refine it."""
        number = self.ingest(records)
        self.refine(number, number, now)
        return number

    def refresh(self, now: float) -> bool:
        """Bring gold up to date whose interval is over, and publish, as a driver does between two runs."""
        done = refresh_due(self.release, self.epoch, now)
        publish(self.settings, publication_of(self.settings, self.release, self.refined()))
        return done

    def begun(self) -> tuple[int, int] | None:
        """Return the bounds of an unfinished run, None if there is none."""
        return self.release.unfinished_run

    def refined(self) -> int:
        """Return the last batch that all tables have, -1 for none."""
        return self.release.refined_batch

    def catch_up_publication(self) -> None:
        """Publish what all tables have, as a driver does at its start."""
        done, published = self.refined(), find_publication(self.settings, self.dataset.name)
        if done >= 0 and self.begun() is None and (published is None or published.batch < done):
            publish(self.settings, publication_of(self.settings, self.release, done))

    def read(self, table: str) -> pl.DataFrame:
        """Return all rows of a published table."""
        return PinnedTables(published_tables(self.settings)).read(table).collect()

    def silver(self) -> pl.DataFrame:
        """Return published silver in the total order of its records."""
        return self.read(f"silver.{self.dataset.name}").sort("_batch_id", "_partition", "_offset")

    def rejected(self) -> pl.DataFrame:
        """Return published rejected in the total order of its records."""
        return self.read(f"rejected.{self.dataset.name}").sort("_batch_id", "_partition", "_offset")

    def versions(self) -> dict[str, int]:
        """Return the version of each table except bronze in its owner's memory."""
        tables = [self.release.writer.silver, self.release.writer.rejected, *[g.table for g in self.release.gold]]
        return {table.spec.name: table.version for table in tables}

    def _source(self, rows: list[dict[str, Any]]) -> DataFrame:
        """One task per Kafka partition, in order of the offsets, as the Kafka source reads."""
        frame = self.spark.createDataFrame(pa.Table.from_pylist(rows, schema=SOURCE))
        tasks = max((row["partition"] for row in rows), default=0) + 1
        return frame.repartitionById(tasks, "partition").sortWithinPartitions("offset")

    def _row(self, record: Record, offset: int, at: datetime) -> dict[str, Any]:
        headers = record.headers
        return {
            "key": record.key,
            "value": record.value,
            "topic": self.dataset.pipeline.topic,
            "partition": record.partition,
            "offset": offset,
            "timestamp": at,
            "timestampType": 1,
            "headers": None if headers is None else [{"key": key, "value": value} for key, value in headers],
        }

    def _facts(self) -> dict[str, Any]:
        name = self.dataset.pipeline.topic
        return {"dataset": self.dataset.name, "code": self.dataset.release, "epoch": self.epoch} | {
            "topic": name,
            "topic_id": self.topic_id or f"{name}-id",
            "query_id": f"{name}-query",
            "reference": current_versions(self.settings, self.dataset.name),
        }


def arrow_files(rows: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Add rows of the Kafka source to a folder, a file for each partition, as `KafkaRanges` does; return the files."""
    table = pa.Table.from_pylist(rows, schema=SOURCE)

    def write(unfinished: Path) -> None:
        for partition in sorted(set(table["partition"].to_pylist())):
            with pa.ipc.new_file(unfinished / f"{partition:05d}{SUFFIX}", SOURCE) as file:
                file.write_table(table.filter(pc.field("partition") == partition))

    return added_files(folder, write)


EMPTY_TABLES = TemporaryDirectory(prefix="empty tables ")


def small_release(spark: SparkSession, settings: Settings, dataset: str, folder: Path | None = None) -> SmallRelease:
    """Open a release of a dataset of the project's, or of one whose folder is given.

    The first one of a content validates the code and creates tables; the next ones copy them, which saves 5 seconds.
    """
    declared = load_dataset(dataset, folder) if folder else declared_dataset(settings, dataset)
    empty, tables = Path(EMPTY_TABLES.name, declared.release), warehouse(settings)
    is_new = not (tables / dataset).exists()
    if is_new and empty.exists():
        shutil.copytree(empty, tables / dataset)
    release = SmallRelease(spark, settings, declared)
    if is_new and not empty.exists():
        shutil.copytree(tables / dataset, empty)
    return release
