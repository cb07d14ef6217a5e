"""Findings of an audit: the offsets of one partition, merged into half-open ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import polars as pl

from include.read.published_tables import layer_order


class FindingKind(StrEnum):
    """How two layers differ."""

    gap = "gap"
    """Records or offsets are missing: bronze lacks records of Kafka, or the ranges of commits leave a hole."""
    overlap = "overlap"
    """The same record, identity, grain or range of offsets occurs more than once."""
    surplus = "surplus"
    """Rows without a source in the layer before."""
    missing = "missing"
    """Rows of the layer before have no counterpart: silver and rejected against bronze, gold against silver."""
    different = "different"
    """The row exists with another value."""
    damaged = "damaged"
    """A file is missing, differs from the committed one, or cannot be read."""


@dataclass(frozen=True)
class Finding:
    """One difference. `table` is the wrong table (`silver.flights`).

    For records: `partition` and the half-open range [`start`, `end`) of offsets; `rows` of them are affected.
    For gold rows and whole tables: partition, start and end are None, and `detail` names the first row.
    """

    kind: FindingKind
    table: str
    rows: int
    detail: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None

    @property
    def layer(self) -> str:
        """The table's layer: bronze, silver, rejected or gold."""
        return self.table.split(".", 1)[0]

    def sentence(self) -> str:
        where = "" if self.partition is None else f" partition {self.partition} offsets [{self.start}, {self.end})"
        return f"{self.kind.value} in {self.table}{where}: {self.detail}"


def offset_findings(
    kind: FindingKind, table: str, partition: int, offsets: pl.Series, detail: str
) -> Iterator[Finding]:
    """Yield one finding for each run of consecutive offsets; `offsets` may repeat and be in any order."""
    distinct = offsets.drop_nulls().unique().sort().to_numpy()
    if len(distinct) == 0:
        return
    for run in np.split(distinct, np.flatnonzero(np.diff(distinct) > 1) + 1):
        yield Finding(kind, table, len(run), detail, partition, int(run[0]), int(run[-1]) + 1)


def position_findings(kind: FindingKind, table: str, rows: pl.DataFrame, detail: str) -> Iterator[Finding]:
    """Yield one finding for each run of offsets of rows (columns `partition`, `offset`), by partition, and one for all
    rows that lack one of the two.
    """
    known = rows.drop_nulls(["partition", "offset"])
    if known.height < rows.height:
        yield Finding(kind, table, rows.height - known.height, f"{detail}; without a partition or an offset")
    for (partition,), part in known.group_by(["partition"], maintain_order=True):
        yield from offset_findings(kind, table, int(str(partition)), part["offset"], detail)


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by layer, table, partition and end offset; equal findings of adjacent ranges become one."""
    result: list[Finding] = []
    for finding in sorted(findings, key=lambda each: (*_position(each), each.kind, each.detail, each.start or 0)):
        last = result[-1] if result else None
        if last is not None and finding.start is not None and _continues(last, finding):
            result[-1] = replace(last, rows=last.rows + finding.rows, end=finding.end)
        else:
            result.append(finding)
    return sorted(result, key=lambda each: (*_position(each), each.end or 0, each.kind, each.start or 0))


def _continues(last: Finding, finding: Finding) -> bool:
    same = (last.kind, last.table, last.partition, last.detail)
    return same == (finding.kind, finding.table, finding.partition, finding.detail) and last.end == finding.start


def _position(finding: Finding) -> tuple[int, str, int]:
    return (*layer_order(finding.table), -1 if finding.partition is None else finding.partition)
