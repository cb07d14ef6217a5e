"""Preflight: a driver starts only when checkpoint, tables and topic agree (docs/architecture.md §4, step 2).

It writes nothing; each error names the command that repairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from include.declare.dataset import Dataset
from include.ground.app_ids import generation_app_id, release_app_id
from include.ground.delta_log import LOG, commits_descending, transaction_version
from include.ground.errors import Terminal, Transient
from include.ground.kafka import KafkaRecord, is_compacted, log_end_offsets, log_start_offsets, record_reader, topic_id
from include.ground.paths import bronze_path, checkpoint_path, silver_path
from include.ground.record_coordinates import FIRST_MS, LAST_MS, kafka_ends, kafka_time
from include.ground.settings import Settings
from include.ground.stored_path import arrow_source
from include.read.publication import fence_publication
from spark_jobs.layers.bronze import FOLLOWED, FOLLOWS, IdleSet, read_idle_set
from spark_jobs.tables.checkpoint import (
    CheckpointUnusable,
    Generation,
    OffsetLogDamaged,
    logged_batches,
    planned_ends,
    read_generation,
    validate_log,
)
from spark_jobs.tables.commit_log import take_over_tables
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table


def last_records(bronze: Table, partitions: Iterable[int]) -> dict[int, KafkaRecord]:
    """Return the record of the highest offset by partition; none for a partition without rows."""
    files = bronze.files()
    found = {partition: _last_record(bronze.spec.path, files, partition) for partition in partitions}
    return {partition: record for partition, record in found.items() if record is not None}


def _last_record(table: Path, files: list[DataFile], partition: int) -> KafkaRecord | None:
    path, last = None, -1
    own = (file for file in files if file.overlaps("partition", partition, partition))
    for file in sorted(own, key=_highest_offset, reverse=True):
        if _highest_offset(file) <= last:
            break
        offset = _last_offset(table / file.path, partition)
        if offset > last:
            path, last = table / file.path, offset
    return None if path is None else _record(path, partition, last)


def _highest_offset(file: DataFile) -> int:
    return int(str(file.high["offset"]))


def _last_offset(path: Path, partition: int) -> int:
    """Return the highest offset that a file has of a partition, -1 for none."""
    source, chosen = arrow_source(path), pc.field("partition") == partition
    rows = pq.read_table(source, columns=["offset"], filters=chosen, partitioning=None)
    found = pc.max(rows["offset"]).as_py()
    return -1 if found is None else int(found)


def _record(path: Path, partition: int, offset: int) -> KafkaRecord:
    chosen = (pc.field("partition") == partition) & (pc.field("offset") == offset)
    columns = ["timestamp", "key", "value", "headers"]
    found = pq.read_table(arrow_source(path), columns=columns, filters=chosen, partitioning=None).slice(0, 1)
    (row,), (micros,) = found.to_pylist(), found["timestamp"].cast(pa.int64()).to_pylist()
    return KafkaRecord(offset, kafka_time(micros, row["headers"]), row["key"], row["value"])


class CheckpointMissing(CheckpointUnusable):
    """Bronze has batches, and the checkpoint that wrote them is missing."""

    def __init__(self, dataset: str, path: Path, batch: int) -> None:
        why = f"and bronze.{dataset} has batches up to {batch}; a new checkpoint would skip or duplicate records"
        super().__init__(f"{path} is missing, {why}; nothing was read", dataset)
        self.path = path


class CheckpointDisagrees(CheckpointUnusable):
    """Checkpoint and bronze disagree (lost, copied, or restored from another time); `why` says in what."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was read", dataset)
        self.why = why


class CheckpointAhead(CheckpointDisagrees):
    """The checkpoint has planned or committed what bronze or Kafka has lost, as after a power cut."""


class TopicReplaced(Terminal):
    """The topic was deleted and created again, so its offsets now name other records."""

    def __init__(self, dataset: str, topic: str, known: str, found: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created again (id {found}, bronze.{dataset} is of id {known}); nothing of"
            " the new topic was committed, and what is published stays readable",
            f"HEADRACE_STATE=NEW_FOLDER headrace up {dataset}   (reads the new topic from its start)",
        )
        self.known = known
        self.found = found


class TablesDisagree(Terminal):
    """Bronze, Kafka or silver lacks what another of them has; no new checkpoint repairs that. `why` names it."""

    def __init__(self, dataset: str, why: str, remedy: str = "") -> None:
        super().__init__(
            f"{dataset}: {why}; nothing was read",
            remedy or f"headrace audit --full --dataset {dataset} names what is missing; restore it from a backup",
        )
        self.why = why


class OffsetsExpired(Terminal):
    """Kafka has expired records that bronze lacks: `missing` maps partitions to half-open offset ranges."""

    def __init__(self, dataset: str, topic: str, missing: Mapping[int, tuple[int, int]]) -> None:
        ranges = ", ".join(f"partition {p} offsets [{start}, {end})" for p, (start, end) in sorted(missing.items()))
        super().__init__(
            f"bronze.{dataset} lacks {ranges} of topic {topic}, and Kafka has expired them; nothing was changed",
            f"headrace repair {dataset} --accept-loss   (continues without these records and records their offsets),"
            " or restore them from a backup",
        )
        self.missing = dict(missing)


class RecordsReplaced(Terminal):
    """Kafka has another record, or none, at an offset that bronze has: it lost records and used their offsets again.

    `bronze` is bronze's last record of the partition, `kafka` the record that Kafka has there or after it.
    """

    def __init__(self, dataset: str, partition: int, bronze: KafkaRecord, kafka: KafkaRecord | None) -> None:
        other = "no record" if kafka is None else f"another record (offset {kafka.offset}, {_written(kafka)})"
        super().__init__(
            f"{dataset}: Kafka lost records that bronze has and used their offsets again: at partition {partition},"
            f" offset {bronze.offset}, bronze has the record of {_written(bronze)}, Kafka has {other}; nothing was"
            " read, because the new records below bronze's end would be skipped",
            f"headrace audit --full --dataset {dataset} lists the records that differ; HEADRACE_STATE=NEW_FOLDER"
            f" headrace up {dataset} reads what Kafka has into new tables",
        )
        self.dataset, self.partition, self.bronze, self.kafka = dataset, partition, bronze, kafka


def _written(record: KafkaRecord) -> str:
    if not FIRST_MS <= record.timestamp_ms <= LAST_MS:
        return f"{record.timestamp_ms} ms"
    return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class BronzeHead:
    """The last batch of bronze; `ends`: next offset per partition.

    `transaction`: version of its app id, of a batch that Spark did not plan that of the one before.
    """

    batch: int
    epoch: int
    app_id: str
    transaction: int
    ends: Mapping[int, int]
    query_id: str
    topic_id: str
    idle: IdleSet = IdleSet()


def bronze_head(bronze: Table) -> BronzeHead | None:
    """Return the last committed batch, None for an empty bronze."""
    return bronze_head_at(bronze.spec.path)


def bronze_head_at(path: Path, version: int | None = None) -> BronzeHead | None:
    """Return the last batch committed to the table at `path` in versions up to `version` (default: all)."""
    for commit in commits_descending(path, version):
        if commit.metadata and commit.app_id and commit.app_version is not None and "offsets" in commit.metadata:
            meta = commit.metadata
            return BronzeHead(
                batch=meta["batches"][1],
                epoch=meta["epoch"],
                app_id=meta.get(FOLLOWED) or generation_app_id(commit.app_id),
                transaction=int(meta.get(FOLLOWS, commit.app_version)),
                ends=kafka_ends(meta["offsets"]),
                query_id=meta["query_id"],
                topic_id=meta["topic_id"],
                idle=read_idle_set(meta),
            )
    return None


def refuse_no_batch(head: BronzeHead | None) -> BronzeHead:
    """Raise Transient for a bronze without a batch of the topic, after which a loaded one could come."""
    if head is None:
        raise Transient("no batch of the topic is in bronze yet; nothing was loaded", "headrace up, then try again")
    return head


def refuse_lost_bronze(settings: Settings, dataset: str) -> None:
    """Raise TablesDisagree when a checkpoint exists and bronze does not: an empty table must not replace it."""
    path = bronze_path(settings, dataset)
    if (checkpoint_path(settings, dataset) / "generation.json").exists() and not (path / LOG).is_dir():
        raise TablesDisagree(dataset, f"the checkpoint exists, and the table that it wrote is gone from {path}")


def validated_generation(
    settings: Settings, dataset: Dataset, bronze: Table, head: BronzeHead | None, bootstrap: str
) -> Generation:
    """Return the generation to continue with; the first one, from the topic's start, when bronze is empty.

    Raises CheckpointUnusable, which `headrace repair` repairs; OffsetsExpired, which it repairs with `--accept-loss`;
    TopicReplaced, TablesDisagree, RecordsReplaced, which it does not.
    """
    topic = dataset.pipeline.topic
    found_id = topic_id(bootstrap, topic)
    log_ends = log_end_offsets(bootstrap, topic)
    _validate_tables(settings, dataset, head, found_id, log_ends)
    if head is not None:
        refuse_replaced_records(dataset, bronze, head, bootstrap)
    folder = checkpoint_path(settings, dataset.name)
    known = read_generation(folder, dataset.name)
    if known is None:
        if head is not None:
            raise CheckpointMissing(dataset.name, folder / "generation.json", head.batch)
        known = Generation(1, 0, log_start_offsets(bootstrap, topic), topic, found_id, bronze.table_id)
    if head is None and known.topic_id != found_id:
        why = f"topic {topic} was deleted and created again (id {found_id}, the checkpoint is of id {known.topic_id})"
        raise CheckpointDisagrees(dataset.name, f"{why}, and bronze has nothing of either")
    _refuse_other_id(dataset.name, known, found_id)
    if known.bronze_id != bronze.table_id:
        why = f"bronze is table {bronze.table_id}, its checkpoint wrote table {known.bronze_id}"
        raise TablesDisagree(dataset.name, why)
    _validate_checkpoint(dataset.name, known, known.checkpoint(folder), head)
    _refuse_lost_plan(dataset.name, known, known.checkpoint(folder), log_ends)
    refuse_expired_offsets(dataset.name, known, head, bootstrap)
    return known


def refuse_expired_offsets(dataset: str, generation: Generation, head: BronzeHead | None, bootstrap: str) -> None:
    """Raise OffsetsExpired unless Kafka has what bronze lacks: retention may overtake a stream that was down.

    A partition that was added after the generation began is read from offset 0.
    """
    is_own = head is not None and head.app_id == generation.app_id(dataset)
    starts = log_start_offsets(bootstrap, generation.topic)
    follows = {**dict.fromkeys(starts, 0), **generation.start, **(head.ends if head and is_own else {})}
    missing = {p: (end, starts[p]) for p, end in follows.items() if end < starts.get(p, 0)}
    if missing:
        raise OffsetsExpired(dataset, generation.topic, missing)


def _validate_tables(
    settings: Settings, dataset: Dataset, head: BronzeHead | None, topic: str, log_ends: Mapping[int, int]
) -> None:
    """Raise unless the topic is bronze's, Kafka has bronze's offsets, and bronze has silver's batches."""
    name = dataset.name
    if head is not None and head.topic_id != topic:
        raise TopicReplaced(name, dataset.pipeline.topic, head.topic_id, topic)
    refuse_lost_records(name, head, log_ends)
    refined, last = _silver_batch(settings, dataset), head.batch if head else -1
    if refined > last:
        why = f"silver has batches up to {refined}, bronze only up to {last}, as after a power cut"
        raise TablesDisagree(name, why, f"headrace repair {name}")


def refuse_replaced_topic(dataset: str, generation: Generation, bootstrap: str) -> None:
    """Raise TopicReplaced unless the topic has the id that `generation` reads; TopicMissing, BrokerUnreachable."""
    _refuse_other_id(dataset, generation, topic_id(bootstrap, generation.topic))


def refuse_changed_topic(dataset: Dataset, bronze: Table, generation: Generation, bootstrap: str) -> None:
    """Raise TopicReplaced, OffsetsExpired, TablesDisagree or RecordsReplaced when ingest must not continue."""
    refuse_replaced_topic(dataset.name, generation, bootstrap)
    head = bronze_head(bronze)
    refuse_expired_offsets(dataset.name, generation, head, bootstrap)
    if head is not None:
        refuse_lost_records(dataset.name, head, log_end_offsets(bootstrap, generation.topic))
        refuse_replaced_records(dataset, bronze, head, bootstrap)


def _refuse_other_id(dataset: str, generation: Generation, found: str) -> None:
    if generation.topic_id != found:
        raise TopicReplaced(dataset, generation.topic, generation.topic_id, found)


def refuse_lost_records(dataset: str, head: BronzeHead | None, log_ends: Mapping[int, int]) -> None:
    """Raise TablesDisagree unless Kafka has all offsets of bronze."""
    for partition, end in (head.ends if head else {}).items():
        if log_ends.get(partition, -1) < end:
            why = f"bronze has partition {partition} up to {end}, Kafka only up to {log_ends.get(partition, 'nothing')}"
            remedy = f"headrace audit --full --dataset {dataset} names what Kafka lost; HEADRACE_STATE=NEW_FOLDER"
            raise TablesDisagree(dataset, why, f"{remedy} headrace up {dataset} reads what Kafka has into new tables")


def refuse_replaced_records(dataset: Dataset, bronze: Table, head: BronzeHead, bootstrap: str) -> None:
    """Raise RecordsReplaced unless Kafka has bronze's last record of each partition, and no other up to bronze's end.

    Offsets alone do not show that Kafka lost its tail once producers have sent as many records again.
    """
    topic = dataset.pipeline.topic
    starts, own = log_start_offsets(bootstrap, topic), last_records(bronze, head.ends)
    # What Kafka has expired cannot be compared.
    comparable = {partition: record for partition, record in own.items() if record.offset >= starts.get(partition, 0)}
    if not comparable:
        return
    compacted = is_compacted(bootstrap, topic)
    with record_reader(bootstrap, topic) as read:
        for partition, record in sorted(comparable.items()):
            found = read(partition, record.offset, head.ends[partition])
            if found != [record] and not (compacted and not found):
                other = next((each for each in found if each != record), None)
                raise RecordsReplaced(dataset.name, partition, record, other)


def _silver_batch(settings: Settings, dataset: Dataset) -> int:
    """Return the last batch of the release's silver, -1 for none."""
    path = silver_path(settings, dataset.name, dataset.release)
    if not (path / LOG).is_dir():
        return -1
    try:
        found = transaction_version(path, release_app_id(dataset.name, dataset.release, "silver"))
    except DeltaError as error:
        why = f"silver at {path} cannot be opened ({str(error).splitlines()[0]})"
        raise TablesDisagree(dataset.name, why, f"headrace repair {dataset.name}") from error
    return -1 if found is None else found


def _refuse_lost_plan(dataset: str, generation: Generation, checkpoint: Path, log_ends: Mapping[int, int]) -> None:
    """Raise CheckpointAhead when the last planned batch has offsets that Kafka lost: Spark would fail at each start."""
    for batch in logged_batches(checkpoint / "offsets")[-1:]:
        ends = planned_ends(checkpoint, batch, generation.topic, dataset)
        lost = {p: end for p, end in ends.items() if log_ends.get(p, -1) < end}
        if lost:
            raise CheckpointAhead(dataset, f"{checkpoint} has planned offsets up to {lost}, Kafka ends before them")


def _validate_checkpoint(dataset: str, generation: Generation, checkpoint: Path, head: BronzeHead | None) -> None:
    validate_log(checkpoint, dataset)
    planned = logged_batches(checkpoint / "offsets")
    query_id = _query_id(dataset, checkpoint / "metadata", needed=bool(planned))
    for number in planned[-2:]:
        planned_ends(checkpoint, number, generation.topic, dataset)
    if head is not None and head.app_id == generation.app_id(dataset):
        _validate_progress(dataset, generation, checkpoint, head)
        if query_id != head.query_id:
            why = f"the checkpoint is of query {query_id}, bronze was written by query {head.query_id}"
            raise CheckpointDisagrees(dataset, why)
    else:
        _validate_start(dataset, generation, checkpoint, head)


def _validate_progress(dataset: str, generation: Generation, checkpoint: Path, head: BronzeHead) -> None:
    """Bronze's last batch is of this generation: the checkpoint planned its offsets, and at most one batch after it."""
    planned, done = logged_batches(checkpoint / "offsets"), logged_batches(checkpoint / "commits")
    if not planned:
        raise CheckpointMissing(dataset, checkpoint / "offsets", head.batch)
    if planned[-1] < head.transaction:
        raise OffsetLogDamaged(checkpoint / "offsets" / str(head.transaction), dataset, "is missing")
    if (done and done[-1] > head.transaction) or planned[-1] > head.transaction + 1:
        far = f"planned up to batch {planned[-1]}, committed up to {done[-1] if done else 'none'}"
        raise CheckpointAhead(dataset, f"{checkpoint} has {far}, bronze has {head.transaction}")
    ends = planned_ends(checkpoint, head.transaction, generation.topic, dataset)
    if ends != dict(head.ends):
        why = f"batch {head.batch} ends at {dict(head.ends)} in bronze, at {ends} in {checkpoint}"
        raise CheckpointDisagrees(dataset, why)


def _validate_start(dataset: str, generation: Generation, checkpoint: Path, head: BronzeHead | None) -> None:
    """Bronze has no batch of this generation: it starts where bronze ends, and has planned one batch at most."""
    planned = logged_batches(checkpoint / "offsets")
    follows = 0 if head is None else head.batch + 1
    if logged_batches(checkpoint / "commits") or (planned and planned[-1] > 0):
        problem = CheckpointAhead if generation.base >= follows else CheckpointDisagrees
        raise problem(dataset, f"{checkpoint} has committed batches that bronze does not have")
    ends = dict(head.ends) if head else {}
    # Offsets between the two are lost, and that was accepted.
    starts = {p: generation.lost[p][0] if p in generation.lost else start for p, start in generation.start.items()}
    if generation.base != follows or any(starts.get(p) != end for p, end in ends.items()):
        start = f"generation {generation.number} starts with batch {generation.base} at {dict(generation.start)}"
        raise CheckpointDisagrees(dataset, f"{start}, bronze ends before batch {follows} at {ends}")


def _query_id(dataset: str, path: Path, needed: bool) -> str | None:
    if not path.exists() and not needed:
        return None
    try:
        return str(json.loads(path.read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OffsetLogDamaged(path, dataset, f"cannot be read ({type(error).__name__})") from error


def fence_earlier_owner(settings: Settings, dataset: str, epoch: int) -> None:
    """Take over bronze and the publication; a release takes its tables over when they are opened.

    Only leases that expire need a claim, and a publication that fails: a file lock is free only when its holder has
    ended.
    """
    if settings.lease_url:
        fence_publication(settings, dataset)
    take_over_tables([bronze_path(settings, dataset)], epoch, leases_expire=bool(settings.lease_url))
