"""Rejected records with the start of their payload, which stays in bronze."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from include.reading.tables import Reading

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Reason:
    """One rule that a record broke: the rule's name, the column ('' for the record as a whole), what was seen."""

    rule: str
    column: str
    detail: str | None


@dataclass(frozen=True)
class RejectedRecord:
    """A record that is not in silver. `payload` is the value as it came, None for a record without one."""

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


def rejected_datasets(reading: Reading) -> list[str]:
    """Return the datasets that have a published table of rejected records."""
    return sorted(name.split(".", 1)[1] for name in reading.tables if name.startswith("rejected."))


def rejected_records(
    reading: Reading, dataset: str, *, reason: str | None = None, disposition: str | None = None, limit: int | None = 20
) -> list[RejectedRecord]:
    """Return rejected records, newest first; `reason` is a rule's name. Payloads are read for these records only."""
    found = _chosen(reading, dataset, reason, disposition)
    newest = found.sort("_batch_id", "_partition", "_offset", descending=True)
    rows = (newest if limit is None else newest.head(limit)).collect()
    payloads = _payloads(reading, dataset, rows)
    return [_record(dataset, row, payloads) for row in rows.iter_rows(named=True)]


def reason_counts(reading: Reading, dataset: str) -> pl.DataFrame:
    """Return how many records each rule rejected: columns disposition, rule, column, records, most first.

    A record that breaks several rules counts under each of them.
    """
    import polars as pl

    reasons = reading.read(f"rejected.{dataset}", columns=["disposition", "reasons"]).explode("reasons")
    named = reasons.select("disposition", pl.col("reasons").struct.field("rule", "column"))
    counted = named.group_by("disposition", "rule", "column").agg(records=pl.len())
    return counted.sort(["records", "rule", "column"], descending=[True, False, False]).collect()


def _chosen(reading: Reading, dataset: str, reason: str | None, disposition: str | None) -> pl.LazyFrame:
    import polars as pl

    rows = reading.read(f"rejected.{dataset}")
    if disposition is not None:
        rows = rows.filter(pl.col("disposition") == disposition)
    if reason is not None:
        rows = rows.filter(pl.col("reasons").list.eval(pl.element().struct.field("rule") == reason).list.any())
    return rows


def _payloads(reading: Reading, dataset: str, rows: pl.DataFrame) -> dict[tuple[int, int], bytes | None]:
    import pyarrow.compute as pc

    found: dict[tuple[int, int], bytes | None] = {}
    bronze = reading.arrow(f"bronze.{dataset}")
    for (partition,), part in rows.group_by(["_partition"]):
        offsets: Sequence[int] = part["_offset"].to_list()
        batches: Any = part["_batch_id"].to_list()
        near = (pc.field("_batch_id") >= min(batches)) & (pc.field("_batch_id") <= max(batches))
        between = (pc.field("offset") >= min(offsets)) & (pc.field("offset") <= max(offsets))
        wanted = near & between & (pc.field("partition") == partition) & pc.field("offset").isin(offsets)
        table = bronze.to_table(columns=["offset", "value"], filter=wanted)
        pairs = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
        found.update({(int(str(partition)), offset): value for offset, value in pairs})
    return found


def _record(dataset: str, row: dict[str, Any], payloads: dict[tuple[int, int], bytes | None]) -> RejectedRecord:
    return RejectedRecord(
        dataset=dataset,
        topic=row["_topic"],
        partition=row["_partition"],
        offset=row["_offset"],
        batch=row["_batch_id"],
        disposition=row["disposition"],
        reasons=tuple(Reason(each["rule"], each["column"], each["detail"]) for each in row["reasons"] or ()),
        contract_version=row["contract_version"],
        first_seen=row["first_seen"],
        payload=payloads.get((row["_partition"], row["_offset"])),
    )
