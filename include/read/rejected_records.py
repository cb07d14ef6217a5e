"""Rejected records with their payload, which stays in bronze, and the decisions about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from include.read.decision_log import DecidedRecord, Decision, Position
from include.read.published_tables import PinnedTables

if TYPE_CHECKING:
    import polars as pl


OPEN, FIXED, DISCARDED, DUPLICATE, REINSTATED = "open", "fixed", "discarded", "duplicate", "reinstated"
WINNER = re.compile(r"\d+/\d+/\d+")
"""How `rejected` names the record whose identity a duplicate has: batch, partition, offset."""
NOTHING: Mapping[Position, DecidedRecord] = MappingProxyType({})


@dataclass(frozen=True)
class Reason:
    """One rule that a record broke: the rule's name, the column ('' for the record as a whole), what was found."""

    rule: str
    column: str
    detail: str | None

    @property
    def found(self) -> str:
        """What was found, for people: of a duplicate, the place of the record that has the identity."""
        if self.rule != DUPLICATE or not self.detail or not WINNER.fullmatch(self.detail):
            return self.detail or ""
        batch, partition, offset = map(int, self.detail.split("/"))
        return f"the first one is partition {partition}, offset {offset:,}, batch {batch:,}"


@dataclass(frozen=True)
class RejectedRecord:
    """A record that is not in silver. `payload` is the unchanged value, None for a record without one.

    `status`: see `status_of`; `fix` is the payload that is validated instead; `decisions` is all that was decided.
    """

    dataset: str
    topic: str
    partition: int
    offset: int
    batch: int
    disposition: str
    reasons: tuple[Reason, ...]
    contract_version: str
    first_seen: datetime
    payload: bytes | None
    status: str = OPEN
    fix: bytes | None = None
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class RejectedFilter:
    """A selection of rejected records: all given conditions must hold.

    `reason` is a rule's name, `column` one it was broken in; [`since`, `until`) are times in Kafka; `offsets` ranges
    [start, end) by partition; `status` is one that `status_of` returns.
    """

    reason: str | None = None
    column: str | None = None
    disposition: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    offsets: Mapping[int, tuple[int, int]] | None = None


ALL_REJECTED = RejectedFilter()


def status_of(disposition: str, record: DecidedRecord | None) -> str:
    """Return the status of a record in `rejected`.

    OPEN: no decision, or it was reinstated and rejected again; FIXED: it has a fix, not validated yet or invalid;
    DISCARDED: it stays rejected; DUPLICATE: another record of its identity was first, and no decision is possible.
    """
    if disposition != "invalid":
        return DUPLICATE
    if record is None:
        return OPEN
    if record.is_discarded:
        return DISCARDED
    return OPEN if record.payload is None else FIXED


def rejected_datasets(reading: PinnedTables) -> list[str]:
    """Return the datasets that have a published table of rejected records."""
    return sorted(name.split(".", 1)[1] for name in reading.tables if name.startswith("rejected."))


def rejected_records(
    reading: PinnedTables,
    dataset: str,
    selection: RejectedFilter = ALL_REJECTED,
    decided: Mapping[Position, DecidedRecord] = NOTHING,
    limit: int | None = 20,
) -> list[RejectedRecord]:
    """Return rejected records, newest first. Payloads are read for these records only."""
    found = _chosen(reading, dataset, selection).sort("_batch_id", "_partition", "_offset", descending=True)
    if selection.status is None:
        rows = (found if limit is None else found.head(limit)).collect()
    else:
        rows = _with_status(found.collect(), decided, selection.status)
        rows = rows if limit is None else rows.head(limit)
    payloads = _payloads(reading, dataset, rows)
    return [_record(dataset, row, payloads, decided) for row in rows.iter_rows(named=True)]


def rejected_coordinates(
    reading: PinnedTables, dataset: str, selection: RejectedFilter, decided: Mapping[Position, DecidedRecord]
) -> dict[Position, int]:
    """Return the partition and offset of each such record, with its batch; no payload is read."""
    columns = ("_partition", "_offset", "_batch_id", "disposition")
    rows = _chosen(reading, dataset, selection).select(columns).collect()
    if selection.status is not None:
        rows = _with_status(rows, decided, selection.status)
    return {(partition, offset): batch for partition, offset, batch, _ in rows.iter_rows()}


def reason_counts(reading: PinnedTables, dataset: str) -> pl.DataFrame:
    """Return how many records each rule rejected: columns disposition, rule, column, records, most first.

    A record that breaks several rules counts under each of them.
    """
    import polars as pl

    reasons = reading.read(f"rejected.{dataset}", columns=["disposition", "reasons"]).explode("reasons")
    named = reasons.select("disposition", pl.col("reasons").struct.field("rule", "column"))
    counted = named.group_by("disposition", "rule", "column").agg(records=pl.len())
    return counted.sort(["records", "rule", "column"], descending=[True, False, False]).collect()


def _chosen(reading: PinnedTables, dataset: str, selection: RejectedFilter) -> pl.LazyFrame:
    import polars as pl

    rows = reading.read(f"rejected.{dataset}")
    if selection.disposition is not None:
        rows = rows.filter(pl.col("disposition") == selection.disposition)
    for name, value in (("rule", selection.reason), ("column", selection.column)):
        if value is not None:
            rows = rows.filter(pl.col("reasons").list.eval(pl.element().struct.field(name) == value).list.any())
    if selection.since is not None:
        rows = rows.filter(pl.col("first_seen") >= selection.since)
    if selection.until is not None:
        rows = rows.filter(pl.col("first_seen") < selection.until)
    if selection.offsets is not None:
        inside = (
            (pl.col("_partition") == part) & (pl.col("_offset") >= start) & (pl.col("_offset") < end)
            for part, (start, end) in selection.offsets.items()
        )
        rows = rows.filter(pl.any_horizontal(*inside))
    return rows


def _with_status(rows: pl.DataFrame, decided: Mapping[Position, DecidedRecord], status: str) -> pl.DataFrame:
    import polars as pl

    facts = rows.select("disposition", "_partition", "_offset").iter_rows()
    return rows.filter(pl.Series([status_of(d, decided.get((p, o))) == status for d, p, o in facts], dtype=pl.Boolean))


def _payloads(reading: PinnedTables, dataset: str, rows: pl.DataFrame) -> dict[Position, bytes | None]:
    import pyarrow.compute as pc

    found: dict[Position, bytes | None] = {}
    bronze = reading.arrow(f"bronze.{dataset}")
    for (partition,), part in rows.group_by(["_partition"]):
        offsets: Sequence[int] = part["_offset"].to_list()
        batches: Any = part["_batch_id"].to_list()
        near = (pc.field("_batch_id") >= min(batches)) & (pc.field("_batch_id") <= max(batches))
        between = (pc.field("offset") >= min(offsets)) & (pc.field("offset") <= max(offsets))
        selection = near & between & (pc.field("partition") == partition) & pc.field("offset").isin(offsets)
        table = bronze.to_table(columns=["offset", "value"], filter=selection)
        pairs = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
        found.update({(int(str(partition)), offset): value for offset, value in pairs})
    return found


def _record(
    dataset: str,
    row: dict[str, Any],
    payloads: dict[Position, bytes | None],
    decided: Mapping[Position, DecidedRecord],
) -> RejectedRecord:
    position = (row["_partition"], row["_offset"])
    record = decided.get(position)
    return RejectedRecord(
        dataset=dataset,
        topic=row["_topic"],
        partition=position[0],
        offset=position[1],
        batch=row["_batch_id"],
        disposition=row["disposition"],
        reasons=tuple(Reason(each["rule"], each["column"], each["detail"]) for each in row["reasons"] or ()),
        contract_version=row["contract_version"],
        first_seen=row["first_seen"],
        payload=payloads.get(position),
        status=status_of(row["disposition"], record),
        fix=None if record is None else record.payload,
        decisions=() if record is None else tuple(record.decisions),
    )
