"""Queries of runs and batches by key, page by page: no query reads more rows than it returns."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, func, select

from include.observe.ledger_schema import batches, corrections, gold_commits, publications, reasons, runs, warnings


@dataclass(frozen=True)
class BatchTimes:
    """A bronze batch: rows, commit time and the first and last Kafka time of its records (UTC milliseconds).

    `reference`: JSON, name → version of each reference table that the batch is joined with.
    """

    batch: int
    rows: int
    committed_at_ms: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    reference: str = "{}"


@dataclass(frozen=True)
class RecordedRun:
    """A refine run as the ledger has it; `published_at_ms` is None before all tables of the release hold it.

    `reasons`: rejected records by reason. `warned`: records that broke a rule which only warns, by rule. `gold`: rows
    written by table.
    """

    release: str
    first_batch: int
    last_batch: int
    rows_in: int
    accepted: int
    invalid: int
    duplicate: int
    committed_at_ms: int | None
    published_at_ms: int | None
    reasons: Mapping[str, int] = field(default_factory=dict)
    warned: Mapping[str, int] = field(default_factory=dict)
    gold: Mapping[str, int] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        """Records in rejected, by both dispositions."""
        return self.invalid + self.duplicate


def batches_after(connection: Connection, dataset: str, batch: int, count: int) -> list[BatchTimes]:
    """Return at most `count` bronze batches after `batch`, ascending."""
    c = batches.c
    columns = (c.batch, c.rows, c.committed_at_ms, c.first_timestamp_ms, c.last_timestamp_ms, c.reference)
    query = select(*columns).where(c.dataset == dataset, c.batch > batch).order_by(c.batch).limit(count)
    return [BatchTimes(*row) for row in connection.execute(query)]


def last_batch(connection: Connection, dataset: str) -> int | None:
    """Return the number of the last bronze batch in the ledger, None before the first."""
    found = connection.execute(select(func.max(batches.c.batch)).where(batches.c.dataset == dataset)).scalar()
    return None if found is None else int(found)


def published_runs_after(
    connection: Connection, dataset: str, release: str, batch: int, count: int
) -> list[RecordedRun]:
    """Return at most `count` published runs of a release after `batch`, ascending."""
    c, p = runs.c, publications.c
    query = _published(dataset, release).where(p.batch > batch, c.last_batch > batch).order_by(p.batch).limit(count)
    return _with_counts(connection, dataset, release, list(connection.execute(query)))


def published_versions(connection: Connection, dataset: str, release: str, batch: int) -> dict[str, int]:
    """Return the version of each table that a published batch committed, by full name; empty for another batch."""
    c = publications.c
    ours = (c.dataset == dataset) & (c.release == release) & (c.batch == batch)
    text = connection.execute(select(c.tables).where(ours)).scalar()
    return {} if text is None else dict(json.loads(text))


def plan_corrections(
    connection: Connection, dataset: str, release: str, plan: str, direction: int
) -> list[tuple[str, int, int]]:
    """Return table, version and rows added of each commit of a plan's patch; `direction` is a `PatchDirection`."""
    c = corrections.c
    ours = (c.dataset == dataset) & (c.release == release) & (c.plan == plan) & (c.direction == direction)
    found = connection.execute(select(c.table, c.version, c.rows_added).where(ours).order_by(c.table))
    return [(str(table), int(version), int(rows or 0)) for table, version, rows in found.tuples()]


def runs_before(
    connection: Connection, dataset: str, release: str, before: int | None, count: int
) -> list[RecordedRun]:
    """Return the last `count` runs of a release that end before batch `before` (None: all), newest first."""
    c = runs.c
    query = _runs(dataset, release).order_by(c.last_batch.desc()).limit(count)
    if before is not None:
        query = query.where(c.last_batch < before)
    return _with_counts(connection, dataset, release, list(connection.execute(query)))


def runs_after(connection: Connection, dataset: str, release: str, after: int, count: int) -> list[RecordedRun]:
    """Return the first `count` runs of a release that end after batch `after`, newest first."""
    c = runs.c
    query = _runs(dataset, release).where(c.last_batch > after).order_by(c.last_batch).limit(count)
    return _with_counts(connection, dataset, release, list(connection.execute(query)))[::-1]


RUN_COLUMNS = (
    *(runs.c.first_batch, runs.c.last_batch, runs.c.rows_in, runs.c.accepted, runs.c.invalid, runs.c.duplicate),
    *(runs.c.rejected_committed_at_ms, publications.c.published_at_ms),
)


def _published(dataset: str, release: str) -> Select[Any]:
    c, p = runs.c, publications.c
    same = (p.dataset == c.dataset) & (p.release == c.release) & (p.batch == c.last_batch)
    return select(*RUN_COLUMNS).select_from(runs.join(publications, same)).where(_ours(dataset, release))


def _runs(dataset: str, release: str) -> Select[Any]:
    c, p = runs.c, publications.c
    same = (p.dataset == c.dataset) & (p.release == c.release) & (p.batch == c.last_batch)
    return select(*RUN_COLUMNS).select_from(runs.outerjoin(publications, same)).where(_ours(dataset, release))


def _ours(dataset: str, release: str) -> Any:
    return (runs.c.dataset == dataset) & (runs.c.release == release)


def _with_counts(connection: Connection, dataset: str, release: str, found: Sequence[Any]) -> list[RecordedRun]:
    """Return the runs with their counts; `found` is ordered by the last batch, up or down."""
    if not found:
        return []
    bounds = sorted((found[0].last_batch, found[-1].last_batch))
    counted = [
        _counts(connection, table, column, amount, (dataset, release), bounds)
        for table, column, amount in (
            (reasons, "reason", "rows"),
            (warnings, "rule", "violations"),
            (gold_commits, "gold", "rows"),
        )
    ]
    return [_run(release, row, [by_batch[row.last_batch] for by_batch in counted]) for row in found]


def _counts(
    connection: Connection, table: Any, name: str, amount: str, owner: tuple[str, str], bounds: Sequence[int]
) -> dict[int, dict[str, int]]:
    c, (dataset, release) = table.c, owner
    ours = (c.dataset == dataset) & (c.release == release) & c.last_batch.between(*bounds)
    by_batch: dict[int, dict[str, int]] = defaultdict(dict)
    for batch, key, count in connection.execute(select(c.last_batch, c[name], c[amount]).where(ours)).tuples():
        if count:
            by_batch[batch][key] = int(count)
    return by_batch


def _run(release: str, row: Any, counts: Sequence[dict[str, int]]) -> RecordedRun:
    by_reason, by_rule, by_table = counts
    return RecordedRun(
        release=release,
        first_batch=row.first_batch,
        last_batch=row.last_batch,
        rows_in=row.rows_in or 0,
        accepted=row.accepted or 0,
        invalid=row.invalid or 0,
        duplicate=row.duplicate or 0,
        committed_at_ms=row.rejected_committed_at_ms,
        published_at_ms=row.published_at_ms,
        reasons=by_reason,
        warned=by_rule,
        gold=by_table,
    )
