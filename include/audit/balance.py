"""Audit one dataset: compare Kafka, bronze, silver, rejected and gold of one publication (invariants I1–I5).

Reads: Kafka (read_committed), the Delta logs and files of the published versions, the publication, the release's
snapshot.  Writes: nothing.
Does not: use Spark, the ledger, or any count that a driver reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from include.audit.audit_findings import Finding, FindingKind, merge_findings
from include.audit.bronze_findings import (
    CommittedRange,
    batch_ranges,
    batch_row_findings,
    bronze_commits,
    bronze_frame,
    lost_ranges,
    range_findings,
    record_findings,
    topic_findings,
)
from include.audit.gold_findings import GoldCheck, UncheckedTable, gold_check
from include.audit.kafka_records import Topic
from include.audit.silver_findings import identity_findings, layer_counts, register_fixes, split_findings
from include.catalog.dataset import Dataset
from include.catalog.pipeline import Gold
from include.reading.publication import Publication
from include.reading.published_sql import memory_database
from include.reading.published_tables import PinnedTables

Progress = Callable[[str], None]
MEMORY = "3GB"


@dataclass(frozen=True)
class PartitionBalance:
    """Records of one partition in each layer, up to the published end offset.

    `kafka`: records that Kafka still has; `expired`: rows of bronze whose records Kafka has deleted, so that only the
    offset ranges can be checked; `later`: offsets in Kafka after the published end.
    """

    partition: int
    published_end: int
    kafka: int
    expired: int
    bronze: int
    silver: int
    rejected: int
    later: int


@dataclass(frozen=True)
class DatasetAudit:
    """The result for one dataset; `release` and `batch` are None when it has no publication.

    `unchecked`: gold tables that DuckDB could not recompute. All others were checked. `lost`: offsets that Kafka
    expired before they were read, accepted by `headrace repair`.
    """

    dataset: str
    release: str | None
    batch: int | None
    partitions: tuple[PartitionBalance, ...]
    gold: tuple[GoldCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[UncheckedTable, ...] = ()
    lost: tuple[CommittedRange, ...] = ()

    @property
    def balanced(self) -> bool:
        """Whether every table was checked and nothing is wrong."""
        return not self.findings and not self.unchecked


@dataclass
class _KafkaCounts:
    """Per partition: records read from Kafka, rows of bronze that Kafka has deleted; `lost`: ranges never read."""

    kafka: dict[int, int] = field(default_factory=dict)
    expired: dict[int, int] = field(default_factory=dict)
    lost: list[CommittedRange] = field(default_factory=list)


def unpublished_audit(dataset: str, topic: Topic | None) -> DatasetAudit:
    """Return the audit of a dataset without a publication: the offsets in Kafka, and no findings."""
    waiting = {} if topic is None else topic.ends
    balances = (PartitionBalance(p, 0, 0, 0, 0, 0, 0, end - topic.starts[p]) for p, end in waiting.items() if topic)
    return DatasetAudit(dataset, None, None, tuple(balances))


def dataset_audit(
    dataset: Dataset,
    publication: Publication,
    tables: PinnedTables,
    topic: Topic,
    fixes: Mapping[tuple[int, int], bytes],
    progress: Progress = lambda _: None,
) -> DatasetAudit:
    """Audit one dataset: `tables` are those of its publication, `topic` is Kafka's side.

    `fixes` are corrected payloads of rejected records by partition and offset. `progress`
    receives the name of each step. Raises AuditUnavailable when Kafka cannot be read to the end.
    """
    name, counted = dataset.name, _KafkaCounts()
    with _database(tables, name) as database:
        register_fixes(database, fixes)
        progress(f"{name}: bronze against Kafka and its commits")
        findings = list(_bronze_findings(database, publication, tables, topic, counted))
        progress(f"{name}: silver and rejected against bronze")
        findings += split_findings(database, name, publication.batch)
        findings += identity_findings(database, name, dataset.pipeline)
        checks: list[GoldCheck | UncheckedTable] = []
        for gold in dataset.pipeline.gold:
            progress(f"{name}: gold.{gold.name} against silver")
            check, wrong = _gold_findings(database, tables, gold)
            checks.append(check)
            findings += wrong
        balances = _balances(layer_counts(database), publication, topic, counted)
    return DatasetAudit(
        name,
        publication.release,
        publication.batch,
        balances,
        tuple(check for check in checks if isinstance(check, GoldCheck)),
        tuple(merge_findings(findings)),
        tuple(check for check in checks if isinstance(check, UncheckedTable)),
        tuple(counted.lost),
    )


def _database(tables: PinnedTables, dataset: str) -> Any:
    database = memory_database()
    database.execute(f"set memory_limit = '{MEMORY}'")
    for layer in ("bronze", "silver", "rejected"):
        database.register(layer, tables.arrow(f"{layer}.{dataset}"))
    return database


def _bronze_findings(
    database: Any, publication: Publication, tables: PinnedTables, topic: Topic, counted: _KafkaCounts
) -> Iterator[Finding]:
    table = f"bronze.{publication.dataset}"
    metadata = bronze_commits(tables.table(table))
    ranges = batch_ranges(metadata)
    counted.lost = lost_ranges(metadata)
    yield from range_findings([*ranges, *counted.lost], publication.offsets, table)
    yield from batch_row_findings(database, ranges, table)
    recreated = list(topic_findings(metadata, topic, table))
    yield from recreated
    for partition, end in sorted(publication.offsets.items()):
        if not recreated:
            counted.expired[partition] = _rows_before(database, partition, min(end, topic.starts.get(partition, 0)))
            yield from _kafka_findings(tables, table, topic, partition, end, counted)


def _rows_before(database: Any, partition: int, offset: int) -> int:
    sql = 'select count(*) from bronze where partition = ? and "offset" < ?'
    return int(database.execute(sql, [partition, offset]).fetchall()[0][0])


def _kafka_findings(
    tables: PinnedTables, table: str, topic: Topic, partition: int, end: int, counted: _KafkaCounts
) -> Iterator[Finding]:
    """Compare Kafka's records of a partition below the published end with bronze, chunk by chunk."""
    rows, start = tables.arrow(table), topic.starts.get(partition, 0)
    log_end = topic.ends.get(partition, 0)
    if log_end < end:
        detail = f"published up to {end}, but Kafka's log ends at {log_end}"
        yield Finding(FindingKind.surplus, table, end - log_end, detail, partition, log_end, end)
    counted.kafka[partition] = 0
    for chunk in topic.records(partition, start, min(end, log_end)):
        counted.kafka[partition] += chunk.records.height
        yield from record_findings(chunk, bronze_frame(rows, partition, chunk.start, chunk.end), table)


def _gold_findings(database: Any, tables: PinnedTables, gold: Gold) -> tuple[GoldCheck | UncheckedTable, list[Finding]]:
    name = f"gold.{gold.name}"
    if name not in tables.tables:
        return GoldCheck(name, 0, 0), [
            Finding(FindingKind.missing, name, 0, "declared by the release but not published")
        ]
    database.register("published", tables.arrow(name))
    return gold_check(database, gold)


def _balances(
    counts: pl.DataFrame, publication: Publication, topic: Topic, counted: _KafkaCounts
) -> tuple[PartitionBalance, ...]:
    layers: Mapping[int, Any] = {row["partition"]: row for row in counts.iter_rows(named=True)}
    found = []
    for p in sorted(set(layers) | set(publication.offsets) | set(topic.ends)):
        end, row = publication.offsets.get(p, 0), layers.get(p, {})
        later = max(0, topic.ends.get(p, 0) - max(end, topic.starts.get(p, 0)))
        bronze, silver, rejected = (int(row.get(layer, 0)) for layer in ("bronze", "silver", "rejected"))
        kafka, expired = counted.kafka.get(p, 0), counted.expired.get(p, 0)
        found.append(PartitionBalance(p, end, kafka, expired, bronze, silver, rejected, later))
    return tuple(found)
