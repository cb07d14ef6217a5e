"""Batches that have expired by the declared age (`retention`) and are not compared, and whether their counts agree.

Expiry removes whole batches, the oldest first, so the tables are compared from a batch on. The owner's commits name the
rows that expired: bronze's must equal the rows of its batches, and those of silver and rejected together must be as
many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from include.audit.audit_findings import Finding, FindingKind, position_findings
from include.audit.bronze_findings import CommittedRange
from include.ground.delta_log import commits
from include.read.expired_batches import first_unexpired_batch
from include.read.publication import PublishedTable
from include.read.published_tables import PublishedVersionGone

COORDINATES = {"bronze": 'partition, "offset"', "silver": "_partition, _offset", "rejected": "_partition, _offset"}


@dataclass(frozen=True)
class ExpiredBatches:
    """The first unexpired batch of each layer; rows and end offsets of bronze's expired batches, by partition."""

    kept: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def complete(self) -> int:
        """The first batch of which all layers have all rows."""
        return max(self.kept.values(), default=0)

    def of(self, layer: str) -> int:
        """Return the first batch that has not expired from a layer."""
        return self.kept.get(layer, 0)


def expired_batches(layers: Mapping[str, PublishedTable], ranges: Sequence[CommittedRange]) -> ExpiredBatches:
    """Return what has expired from tables by layer; `ranges` are those of bronze's commits."""
    kept = {layer: _kept_from(table) for layer, table in layers.items()}
    rows, ends = Counter[int](), dict[int, int]()
    for each in ranges:
        if each.batch < kept.get("bronze", 0):
            rows[each.partition] += each.rows
            ends[each.partition] = max(each.end, ends.get(each.partition, 0))
    return ExpiredBatches(kept, rows, ends)


def _kept_from(table: PublishedTable) -> int:
    try:
        return first_unexpired_batch(table)
    except PublishedVersionGone:
        # The table is named as damaged, and nothing is compared with it.
        return 0


def expiry_findings(
    layers: Mapping[str, PublishedTable], expired: ExpiredBatches, ranges: Sequence[CommittedRange]
) -> Iterator[Finding]:
    """Yield where the rows that expiry commits name are not those that bronze's commits count."""
    removed = {layer: _removed(table) if expired.of(layer) else Counter() for layer, table in layers.items()}
    yield from _unequal(layers["bronze"].name, removed["bronze"], _counted(ranges, expired.of("bronze")))
    if expired.of("silver") == expired.of("rejected"):
        both = removed["silver"] + removed["rejected"]
        yield from _unequal(layers["silver"].name, both, _counted(ranges, expired.of("silver")))


def _removed(table: PublishedTable) -> Counter[int]:
    """Return the rows that a table's expiry commits name, by partition."""
    rows = Counter[int]()
    for commit in takewhile(lambda commit: commit.version <= table.version, commits(table.path)):
        metadata: Mapping[str, Any] = commit.metadata or {}
        if "expired" in metadata:
            rows.update({int(partition): count for partition, count in metadata["rows_by_partition"].items()})
    return rows


def _counted(ranges: Sequence[CommittedRange], before: int) -> Counter[int]:
    rows = Counter[int]()
    for each in ranges:
        rows[each.partition] += each.rows if each.batch < before else 0
    return rows


def _unequal(table: str, removed: Counter[int], counted: Counter[int]) -> Iterator[Finding]:
    for partition in sorted(removed | counted):
        if removed[partition] != counted[partition]:
            detail = f"{removed[partition]} rows expired, the batches that expired had {counted[partition]} records"
            yield Finding(FindingKind.different, table, abs(removed[partition] - counted[partition]), detail, partition)


def left_over_findings(database: Any, dataset: str, expired: ExpiredBatches) -> Iterator[Finding]:
    """Yield rows of batches that have expired, by layer; `database` is a DuckDB connection with a view of each."""
    for layer, before in expired.kept.items():
        if before:
            sql = f"select {COORDINATES[layer]} from {layer} where _batch_id < {before} order by all"
            found = database.sql(sql).pl()
            found.columns = ["partition", "offset"]
            detail = f"of a batch before {before}, which have expired"
            yield from position_findings(FindingKind.surplus, f"{layer}.{dataset}", found, detail)
