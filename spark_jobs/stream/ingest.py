"""Ingest: the streaming query from Kafka to bronze (docs/architecture.md §4, step 3).

The query plans each batch; `kafka_ranges.py` reads its records, on a cluster Spark's source. Batch N holds the records
of the offsets in the checkpoint's `offsets/N`, once, and of the topic whose id is in its commit. After a crash Spark
plans batch N again with the same offsets; bronze skips it if it is committed. No record is parsed here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.declare.dataset import Dataset
from include.declare.reference_tables import current_versions
from include.ground.durable_files import sync_files
from include.ground.errors import HeadraceError, Transient
from include.ground.kafka import BrokerUnreachable, TopicMissing, log_end_offsets, partition_ids
from include.ground.paths import checkpoint_path, reading_lock_path
from include.ground.settings import Settings
from include.state.lease import is_free
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.local.kafka_ranges import KafkaRanges
from spark_jobs.backends.release import chosen_backend, least_ahead
from spark_jobs.layers.bronze import (
    BronzeBatch,
    IdleSet,
    KafkaRecords,
    commit_quiet_batch,
    complete_source_options,
    fetch_options,
)
from spark_jobs.stream.pacing import (
    FULL,
    BatchLimit,
    BatchLimitChanged,
    BronzePacing,
    CommittedBatch,
    Tempo,
    newest_files,
    size_in_bronze,
    size_in_topic,
)
from spark_jobs.stream.preflight import BronzeHead, bronze_head, refuse_no_batch, refuse_replaced_topic
from spark_jobs.tables.checkpoint import Generation, planned_ranges
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table

LOOK_IS_OLD = 10.0
"""Seconds after which a look at the ends of the topic says nothing any more."""


@dataclass
class QuietPartitions:
    """How long each partition has been quiet, as this process has observed it; a restart begins to count anew.

    The thread that reports progress looks at the topic's ends, ingest notes what batches bring.
    """

    clock: Callable[[], float] = time.monotonic
    idle_after: timedelta | None = None
    """A partition that is quiet for so long is idle; None: never."""
    _since: dict[int, float] = field(default_factory=dict)
    """Since when a partition is known to be read to its end and has brought nothing."""
    lagging: frozenset[int] = frozenset()
    """Partitions that Kafka had more of, as last looked at: records to come, or those of an open transaction."""
    _looked: float | None = None
    _ends: Mapping[int, int] = field(default_factory=dict)

    def look(self, ingested: Mapping[int, int], log_ends: Mapping[int, int]) -> None:
        """Note the next offset of each partition in bronze, and in Kafka: with open transactions, which may follow."""
        now = self.clock()
        for partition, end in log_ends.items():
            if ingested.get(partition, 0) >= end:
                self._since.setdefault(partition, now)
            else:
                self._since.pop(partition, None)
        self.lagging = frozenset(log_ends) - self._since.keys()
        self._looked, self._ends = now, dict(log_ends)

    def forget(self) -> None:
        """Note that Kafka does not answer: what it has got meanwhile is not known."""
        self._since.clear()

    def bring(self, partitions: Collection[int]) -> None:
        """Note that a batch has records of these partitions."""
        for partition in partitions:
            self._since.pop(partition, None)

    def quiet(self) -> frozenset[int]:
        """Return the partitions that have been quiet for long enough."""
        return frozenset() if self.idle_after is None else self._quiet_for(self.idle_after)

    def resting(self, least: timedelta) -> Mapping[int, int]:
        """Return where each partition ends if all have been quiet for so long, else nothing."""
        ends = self._ends
        return ends if ends and self._quiet_for(least) >= ends.keys() else {}

    def _quiet_for(self, least: timedelta) -> frozenset[int]:
        now = self.clock()
        if self._looked is None or now - self._looked > LOOK_IS_OLD:
            return frozenset()
        seconds = least.total_seconds()
        return frozenset(partition for partition, since in list(self._since.items()) if now - since >= seconds)


DRAINED = "drained at the batch boundary"
JOB_INTERVAL = 1.0
"""Least seconds between batches while a job of a plan, a deep or a derived audit reads the dataset: it has the CPU."""
LOOK_SECONDS = 0.5
"""How often ingest looks whether a job still reads the dataset, while its interval lasts."""


@dataclass
class Ingest:
    """The ingest query of a dataset and its progress.

    `ingested`: next offset per partition. `reading`: the half-open ranges of offsets of the batch that was begun last.
    `rows`, `seconds`: of the last batch. `has_backlog`: that batch was full. `failure`: our error that ended the query,
    which Spark's exception would hide.
    """

    spark: SparkSession
    settings: Settings
    dataset: Dataset
    bronze: Table
    generation: Generation
    epoch: int
    stop: threading.Event
    tempo: Tempo = Tempo()
    failure: Exception | None = None
    pacing: BronzePacing | None = None
    """None: refine does not run, and no batch waits."""
    reader: KafkaRanges | None = field(default=None, init=False)
    """On a cluster it reads only what Spark's source cannot."""
    limit: BatchLimit = field(init=False)
    quiet: QuietPartitions = field(default_factory=QuietPartitions)
    idle: IdleSet = IdleSet()
    """The idle partitions at the end of the last batch."""
    transaction: int = -1
    """Spark's number of the last batch that it planned in this generation, -1 before the first."""
    quiet_batches: int = 0
    """Batches of this generation that Spark did not plan."""
    last_batch: int = -1
    ingested: dict[int, int] = field(default_factory=dict)
    reading: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0
    has_backlog: bool = False
    progress: float = field(default_factory=time.monotonic)
    """When it last committed, started, or had nothing to read (monotonic seconds)."""
    committed: float = field(default_factory=time.monotonic)
    """When it last committed a batch, or was created (monotonic seconds)."""

    _committing: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Two threads commit batches of bronze, one at a time: each continues the other's numbers."""

    def __post_init__(self) -> None:
        self.backend = chosen_backend(self.spark, self.settings)
        self.limit = BatchLimit(self.settings.batch_records, self.settings.batch_bytes)
        self.quiet.idle_after = self.dataset.pipeline.idle

    def continue_after(self, head: BronzeHead) -> None:
        """Continue after the last batch of bronze."""
        self.idle, self.ingested, self.last_batch = head.idle, dict(head.ends), head.batch
        if head.app_id == self.generation.app_id(self.dataset.name):
            self.transaction = head.transaction
            self.quiet_batches = head.batch - self.generation.base - head.transaction

    def _follow_bronze(self) -> None:
        """Continue after what bronze has: a batch that is committed already keeps its facts."""
        head = bronze_head(self.bronze)
        assert head is not None, "bronze has the batch"
        self.continue_after(head)

    def start(self, bootstrap: str) -> StreamingQuery:
        """Start the query against the broker at `bootstrap` (host:port)."""
        self.failure, self.progress = None, time.monotonic()
        self.spark.sparkContext.setLogLevel("WARN")
        if self.last_batch < 0:
            self._measure_first(bootstrap)
        options = self._source_options(bootstrap)
        # The consumers of an earlier query end.
        self.close()
        self.reader = KafkaRanges(self.spark, self.generation.topic, options, self.stop)
        reader = self.spark.readStream.format("kafka").options(**options)
        writer = reader.load().writeStream.queryName(f"ingest_{self.dataset.name}").foreachBatch(self._commit)
        checkpoint = str(self._checkpoint())
        # While there are no records, Spark polls Kafka so often.
        seconds = self.tempo.trigger if self.tempo.gate else min(self.tempo.trigger, self.settings.trigger_seconds)
        interval = f"{int(seconds * 1000)} milliseconds"
        return writer.option("checkpointLocation", checkpoint).trigger(processingTime=interval).start()

    def close(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    def _measure_first(self, bootstrap: str) -> None:
        """Measure records of earlier processes, or the records with which the first batch begins.

        A broker that does not answer leaves the limit as it is: the query waits for it.
        """
        topic, starts, files = self.generation.topic, self.generation.start, newest_files(self.bronze)
        with suppress(BrokerUnreachable):
            found = size_in_bronze(self.bronze, files) if files else size_in_topic(bootstrap, topic, starts)
            self.limit.measure(*found)

    def mute(self) -> None:
        """Turn Spark's log off before the query ends by an expected exception."""
        self.spark.sparkContext.setLogLevel("OFF")

    def _source_options(self, bootstrap: str) -> dict[str, str]:
        start = {str(p): offset for p, offset in self._starting_offsets(bootstrap).items()}
        chosen = {
            "subscribe": self.generation.topic,
            "startingOffsets": json.dumps({self.generation.topic: start}),
            "groupIdPrefix": f"headrace-{self.dataset.name}",
            "maxOffsetsPerTrigger": str(self.limit.apply()),
        }
        return complete_source_options(self.settings, bootstrap, chosen, fetch_options(len(start)))

    def _starting_offsets(self, bootstrap: str) -> dict[int, int]:
        """Return the first offset by partition: Spark wants all, also those added after the generation began."""
        added = dict[int, int]()
        with suppress(BrokerUnreachable, TopicMissing):
            added = dict.fromkeys(partition_ids(bootstrap, self.generation.topic), 0)
        return {**added, **self.generation.start}

    def _commit(self, records: DataFrame, number: int) -> None:
        """Commit one micro-batch; Spark calls it. During a drain it raises, so that the batch stays planned."""
        if self.stop.is_set():
            self.mute()
            raise RuntimeError(DRAINED)
        begun = time.monotonic()
        try:
            self.limit.refuse_outdated()
            with self.tempo.turn(), self._committing:
                batch = self._batch(number)
                self.reading = batch.offsets
                self._sync_plan(number)
                is_repeated = self.bronze.committed(batch.app_id) >= number
                files = self.backend.ingest(self.bronze, self._rows(records, batch), batch, self._refuse_replaced_topic)
                if is_repeated:
                    self.quiet.bring(_partitions(files))
                    self._follow_bronze()
                else:
                    self._note_batch(batch, files)
        except Exception as error:
            self.failure = error
            if isinstance(error, BatchLimitChanged):
                self.mute()
            raise
        self.rows, self.seconds = sum(file.rows for file in files), time.monotonic() - begun
        self.limit.measure(*size_in_bronze(self.bronze, files))
        self.has_backlog = self._fills(batch.offsets)
        self.progress = time.monotonic()
        if not self.has_backlog:
            self.wait_for_next(batch.number, begun)

    def _note_batch(self, batch: BronzeBatch, files: Sequence[DataFile]) -> None:
        brought = _partitions(files)
        self.quiet.bring(brought)
        self.idle = batch.idle_set(brought)
        self.ingested = {partition: end for partition, (_, end) in batch.offsets.items()}
        self.last_batch, self.transaction, self.committed = batch.number, batch.transaction, time.monotonic()

    def _fills(self, offsets: Mapping[int, tuple[int, int]]) -> bool:
        """Whether a batch has about as many offsets as it may have: then Kafka probably has more."""
        return sum(end - start for start, end in offsets.values()) >= FULL * self.limit.offsets

    def commit_quiet(self, quiet: frozenset[int], after: int) -> bool:
        """Commit a batch without records, after which these partitions are idle; return whether there is one.

        There is none while Spark commits a batch, which says it as well, or if batch `after` is not the last any more,
        or before this generation's first. Raises TopicReplaced, TopicMissing, BrokerUnreachable, OwnershipLost.
        """
        if self.transaction < 0:
            return False
        # The broker may be slow, and Spark's next batch must not wait for it.
        self._refuse_replaced_topic()
        if not self._committing.acquire(blocking=False):
            return False
        try:
            app_id, number = self.generation.app_id(self.dataset.name), self.last_batch + 1
            # A commit whose end this process has not seen is followed when Spark repeats its batch.
            if self.last_batch != after or self.bronze.committed(app_id) != self.transaction:
                return False
            ends = {partition: (end, end) for partition, end in self.ingested.items()}
            lagging = self.quiet.lagging
            batch = BronzeBatch(number, app_id, self.transaction, ends, self._facts(), self.idle, quiet, lagging)
            commit_quiet_batch(self.bronze, batch)
            self.quiet_batches += 1
            self._note_batch(batch, [])
        finally:
            self._committing.release()
        return True

    @contextmanager
    def turn(self) -> Iterator[BronzeHead]:
        """Yield the last batch of bronze for another one to be committed after it; Spark's next one waits meanwhile.

        Raises Transient while this generation has no batch, or one whose commit this process has not seen.
        """
        with self._committing:
            app_id = self.generation.app_id(self.dataset.name)
            head = refuse_no_batch(bronze_head(self.bronze) if self.transaction >= 0 else None)
            if self.bronze.committed(app_id) != self.transaction:
                raise Transient(
                    f"{self.dataset.name}: a batch of the topic is being repeated", "the same command again"
                )
            yield replace(head, epoch=self.epoch)
            self._follow_bronze()
            self.committed = time.monotonic()

    def _rows(self, records: DataFrame, batch: BronzeBatch) -> KafkaRecords:
        """Return the rows of a batch; the query's frame is not executed where this process reads Kafka itself."""
        assert self.reader is not None
        return KafkaRecords(records, partial(self.reader.write, batch.offsets))

    def wait_for_next(self, number: int, begun: float) -> None:
        """Return when the batch after `number`, which was begun at `begun`, is to be planned, or at once in a drain."""
        while not self.stop.is_set() and (remaining := begun + self._interval() - time.monotonic()) > 0:
            self.stop.wait(min(remaining, LOOK_SECONDS))
        if self.pacing is not None:
            is_large = self.rows >= least_ahead(self.settings.refine_records)
            self.pacing.wait(CommittedBatch(number, self.seconds, is_large), self.stop)

    def _interval(self) -> float:
        """Return the least seconds from one batch to the next; a job that reads the dataset lengthens them."""
        least = self.settings.trigger_seconds
        # A file system that does not answer must not end the query after its commit.
        with suppress(OSError):
            if least < JOB_INTERVAL and not is_free(reading_lock_path(self.settings, self.dataset.name)):
                return JOB_INTERVAL
        return least

    def _sync_plan(self, number: int) -> None:
        """Force the planned offsets to disk before bronze has the batch: the next start plans nothing else."""
        if self.settings.is_power_safe:
            checkpoint = self._checkpoint()
            files = [checkpoint / "metadata", checkpoint / "offsets" / str(number)]
            done = checkpoint / "commits" / str(number - 1)
            sync_files([*files, *([done] if done.exists() else [])], checkpoint.parent)

    def _refuse_replaced_topic(self) -> None:
        """Raise TopicReplaced when the topic was created again: Spark would continue at the same offsets."""
        refuse_replaced_topic(self.dataset.name, self.generation, bootstrap_servers(self.settings))

    def _batch(self, number: int) -> BronzeBatch:
        name, generation = self.dataset.name, self.generation
        ranges = planned_ranges(self._checkpoint(), number, generation.topic, name, generation.start)
        facts = self._facts()
        if number == 0 and generation.lost:
            facts["lost"] = {str(p): list(span) for p, span in generation.lost.items()}
        fresh = frozenset(ranges) - self.ingested.keys()
        quiet = frozenset[int]() if self._fills(ranges) else self.quiet.quiet()
        before = self.idle if self.last_batch < 0 else self.idle.with_new(fresh)
        numbered = generation.base + number + self.quiet_batches
        lagging = self._lagging(ranges) if before.partitions | quiet | fresh else frozenset[int]()
        return BronzeBatch(numbered, generation.app_id(name), number, ranges, facts, before, quiet | fresh, lagging)

    def _lagging(self, ranges: Mapping[int, tuple[int, int]]) -> frozenset[int]:
        """Return the partitions of which Kafka has more than the batch ends with, by the ends that it has now.

        If Kafka does not answer, the last look counts, and no partition becomes idle.
        """
        ends = {partition: end for partition, (_, end) in ranges.items()}
        try:
            log_ends = log_end_offsets(bootstrap_servers(self.settings), self.generation.topic, timeout=2.0)
        except HeadraceError:
            self.quiet.forget()
        else:
            self.quiet.look(ends, log_ends)
        return self.quiet.lagging

    def _facts(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.name,
            "code": self.dataset.release,
            "epoch": self.epoch,
            "topic": self.generation.topic,
            "topic_id": self.generation.topic_id,
            "reference": current_versions(self.settings, self.dataset.name),
            "query_id": json.loads((self._checkpoint() / "metadata").read_text("utf-8"))["id"],
        }

    def _checkpoint(self) -> Path:
        return self.generation.checkpoint(checkpoint_path(self.settings, self.dataset.name))


def _partitions(files: Sequence[DataFile]) -> set[int]:
    """Return the partitions of bronze's files of a batch: each has records of one."""
    return {int(str(file.low["partition"])) for file in files}
