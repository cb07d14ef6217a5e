"""The counts of rules by run, for the reports of quality."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, select

from include.observe.ledger_schema import reasons, runs, warnings


@dataclass(frozen=True)
class RuleWarnings:
    """A rule that only warns, in one run: records validated, violations, and partition and offset of the `first`."""

    validated: int
    violations: int
    first: tuple[int, int] | None


@dataclass(frozen=True)
class RunCounts:
    """A refine run: its batches, when it was validated, records in, rejected by reason, and warnings by rule."""

    release: str
    first_batch: int
    last_batch: int
    validated_at: datetime
    rows_in: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    warnings: Mapping[str, RuleWarnings] = field(default_factory=dict)


def run_counts(connection: Connection, dataset: str, since: datetime | None, until: datetime | None) -> list[RunCounts]:
    """Return the runs of a dataset that were validated in [since, until), of all its releases, in order."""
    c = runs.c
    conditions: list[ColumnElement[bool]] = [c.dataset == dataset, c.rejected_committed_at_ms.is_not(None)]
    if since is not None:
        conditions.append(c.rejected_committed_at_ms >= int(since.timestamp() * 1000))
    if until is not None:
        conditions.append(c.rejected_committed_at_ms < int(until.timestamp() * 1000))
    columns = (c.release, c.first_batch, c.last_batch, c.rejected_committed_at_ms, c.rows_in)
    found = connection.execute(select(*columns).where(*conditions).order_by(c.rejected_committed_at_ms, c.last_batch))
    by_reason, by_rule = _reasons(connection, dataset), _warnings(connection, dataset)
    return [
        RunCounts(
            *(release, first, last, datetime.fromtimestamp(ms / 1000, UTC), int(rows or 0)),
            reasons=by_reason[release, last],
            warnings=by_rule[release, last],
        )
        for release, first, last, ms, rows in found.tuples()
    ]


def _reasons(connection: Connection, dataset: str) -> dict[tuple[str, int], dict[str, int]]:
    found: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    c = reasons.c
    query = select(c.release, c.last_batch, c.reason, c.rows).where(c.dataset == dataset).order_by(c.reason)
    for release, batch, reason, rows in connection.execute(query).tuples():
        found[release, batch][reason] = int(rows)
    return found


def _warnings(connection: Connection, dataset: str) -> dict[tuple[str, int], dict[str, RuleWarnings]]:
    found: dict[tuple[str, int], dict[str, RuleWarnings]] = defaultdict(dict)
    c = warnings.c
    query = select(warnings).where(c.dataset == dataset).order_by(c.rule)
    for row in connection.execute(query):
        first = None if row.first_offset is None else (int(row.first_partition), int(row.first_offset))
        found[row.release, row.last_batch][row.rule] = RuleWarnings(int(row.validated), int(row.violations), first)
    return found
