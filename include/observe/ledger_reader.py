"""Queries of the ledger. Nothing here writes, creates a database, or reads a table or Kafka."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, RowMapping, Select, Table, func, select

from include.ground.settings import Settings
from include.observe import ledger_schema as ledger
from include.observe.ledger_schema import sqlite_file, translate_database_errors


@dataclass(frozen=True)
class RuleWarnings:
    """A rule that only warns, in one run: records validated, violations, and partition and offset of the `first`."""

    validated: int
    violations: int
    first: tuple[int, int] | None


@dataclass(frozen=True)
class RecordedRun:
    """A refine run as the ledger has it; `published_at_ms` is None before all tables of the release hold it.

    `reasons`: rejected records by reason. `warnings`: by rule. `gold`: rows written by table.
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
    warnings: Mapping[str, RuleWarnings] = field(default_factory=dict)
    gold: Mapping[str, int] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        return self.invalid + self.duplicate

    @property
    def warned(self) -> dict[str, int]:
        """Records that broke a rule which only warns, by rule."""
        return {rule: each.violations for rule, each in self.warnings.items() if each.violations}

    @property
    def validated_at(self) -> datetime:
        return _utc(self.committed_at_ms or 0)


@dataclass(frozen=True)
class OffsetRange:
    """Offsets [start, end) of a partition and the `rows` in them; offsets may have legal holes."""

    partition: int
    start: int
    end: int
    rows: int


@dataclass(frozen=True)
class Batch:
    """One bronze batch; all times are UTC milliseconds, first and last are Kafka's (None without rows)."""

    dataset: str
    batch: int
    generation: str
    epoch: int
    rows: int
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    version: int
    committed_at_ms: int
    reference: str = "{}"
    """JSON: name → version of each reference table that the batch is joined with."""
    ranges: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True)
class ReleaseTotals:
    """What a release's tables hold, in rows: `gold` per table, `reasons` per reason of rejection, `warned` per rule.

    `last_batch` is the last one refined, None before the first. `expired`: rows that silver and rejected had and have
    no longer, by layer.
    """

    release: str
    last_batch: int | None
    rows_in: int
    accepted: int
    invalid: int
    duplicate: int
    gold: Mapping[str, int]
    reasons: Mapping[str, int]
    warned: Mapping[str, int]
    expired: Mapping[str, int] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        return self.invalid + self.duplicate


@dataclass(frozen=True)
class DatasetTotals:
    """What a dataset's tables hold: `bronze` in rows up to `last_batch`, and its releases by name.

    `expired`: rows that bronze had and has no longer.
    """

    dataset: str
    last_batch: int | None
    bronze: int
    releases: Mapping[str, ReleaseTotals]
    expired: int = 0


@dataclass(frozen=True)
class Verification:
    """A range of event time [since, until) that a plan recomputed and found equal, as of batch `batch`."""

    plan: str
    since: datetime
    until: datetime
    batch: int


class LedgerReader:
    """Every query raises Transient (`ledger-missing`, `ledger-unavailable`); LedgerDamaged, Terminal (schema).

    No query of runs and batches reads more rows than it returns.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def last_batches(self, dataset: str | None = None, count: int = 10) -> list[Batch]:
        """Return the last `count` batches per dataset, or of one, ascending."""
        with self._question() as connection:
            names = [dataset] if dataset else _datasets(connection)
            return [batch for name in names for batch in _last_batches(connection, name, count)]

    def totals(self) -> dict[str, DatasetTotals]:
        """Return rows per layer, rejected by reason and last batches of every dataset, from one transaction."""
        with self._question() as connection:
            return _all_totals(connection)

    def event_times(
        self, dataset: str, release: str, after: int = -1
    ) -> tuple[list[tuple[int, str]], list[Verification]]:
        """Return each run's last batch and greatest event times (JSON by partition), and the verified ranges.

        Only runs whose last batch is greater than `after`.
        """
        c = ledger.runs.c
        ours = _of(ledger.runs, dataset, release) & c.event_time_max.is_not(None) & (c.last_batch > after)
        query = select(c.last_batch, c.event_time_max).where(ours).order_by(c.last_batch)
        with self._question() as connection:
            found = [(int(batch), str(text)) for batch, text in connection.execute(query)]
            return found, _verified(connection, dataset, release)

    def commit_times(self, dataset: str, release: str, runs_: Sequence[int]) -> dict[int, datetime]:
        """Return when silver got these runs of a release, by last batch."""
        c = ledger.runs.c
        ours = _of(ledger.runs, dataset, release) & c.last_batch.in_(runs_)
        found = self._rows(select(c.last_batch, c.silver_committed_at_ms).where(ours))
        return {int(batch): _utc(int(at)) for batch, at in found if at is not None}

    def run_counts(
        self, dataset: str, release: str, since: datetime | None = None, until: datetime | None = None
    ) -> list[RecordedRun]:
        """Return the runs of a release that were validated in [since, until), in order."""
        at = ledger.runs.c.rejected_committed_at_ms
        query = _runs(dataset, release).where(at.is_not(None)).order_by(at, ledger.runs.c.last_batch)
        if since is not None:
            query = query.where(at >= int(since.timestamp() * 1000))
        if until is not None:
            query = query.where(at < int(until.timestamp() * 1000))
        return self._with_counts(dataset, release, query)

    def last_batch(self, dataset: str) -> int | None:
        """Return the number of a dataset's last bronze batch, None before the first."""
        ((found,),) = self._rows(select(func.max(ledger.batches.c.batch)).where(ledger.batches.c.dataset == dataset))
        return None if found is None else int(found)

    def batches_after(self, dataset: str, batch: int, count: int) -> list[Batch]:
        """Return the first `count` batches after `batch`, ascending, without their ranges."""
        c = ledger.batches.c
        query = select(ledger.batches).where(c.dataset == dataset, c.batch > batch).order_by(c.batch).limit(count)
        with self._question() as connection:
            return [_batch(row) for row in connection.execute(query).mappings()]

    def published_runs_after(self, dataset: str, release: str, batch: int, count: int) -> list[RecordedRun]:
        """Return at most `count` published runs of a release after `batch`, ascending."""
        c, p = ledger.runs.c, ledger.publications.c
        after = _runs(dataset, release, published=True).where(p.batch > batch, c.last_batch > batch)
        return self._with_counts(dataset, release, after.order_by(p.batch).limit(count))

    def runs_before(self, dataset: str, release: str, before: int | None, count: int) -> list[RecordedRun]:
        """Return the last `count` runs of a release that end before batch `before` (None: all), newest first."""
        last = ledger.runs.c.last_batch
        query = _runs(dataset, release).order_by(last.desc()).limit(count)
        return self._with_counts(dataset, release, query if before is None else query.where(last < before))

    def runs_after(self, dataset: str, release: str, after: int, count: int) -> list[RecordedRun]:
        """Return the first `count` runs of a release that end after batch `after`, newest first."""
        last = ledger.runs.c.last_batch
        query = _runs(dataset, release).where(last > after).order_by(last).limit(count)
        return self._with_counts(dataset, release, query)[::-1]

    def published_versions(self, dataset: str, release: str, batch: int) -> dict[str, int]:
        """Return the version of each table that a published batch committed, by full name; empty for another batch."""
        c = ledger.publications.c
        found = self._rows(select(c.tables).where(_of(ledger.publications, dataset, release), c.batch == batch))
        return dict(json.loads(found[0][0])) if found else {}

    def plan_corrections(self, dataset: str, release: str, plan: str, direction: int) -> list[tuple[str, int, int]]:
        """Return table, version and rows added of each commit of a plan's patch; `direction` is a `PatchDirection`."""
        c = ledger.corrections.c
        ours = _of(ledger.corrections, dataset, release) & (c.plan == plan) & (c.direction == direction)
        found = self._rows(select(c.table, c.version, c.rows_added).where(ours).order_by(c.table))
        return [(str(table), int(version), int(rows or 0)) for table, version, rows in found]

    def close(self) -> None:
        self._engine.dispose()

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with self._question() as connection:
            return connection.execute(query).all()

    def _with_counts(self, dataset: str, release: str, query: Select[Any]) -> list[RecordedRun]:
        with self._question() as connection:
            found = connection.execute(query).all()
            if not found:
                return []
            batches = [row.last_batch for row in found]
            bounds = min(batches), max(batches)
            of = [_by_batch(connection, table, (dataset, release), bounds) for table in COUNTED]
        return [_run(release, row, *(rows[row.last_batch] for rows in of)) for row in found]

    @contextmanager
    def _question(self) -> Iterator[Connection]:
        file = sqlite_file(self._engine.url)
        if file is not None and not file.exists():
            raise ledger.ledger_missing(str(file))
        with translate_database_errors(self._engine.url), self._engine.begin() as connection:
            ledger.validate_schema(connection)
            yield connection


COUNTED = (ledger.reasons, ledger.warnings, ledger.gold_commits)
"""Tables with counts of a run, each by a name."""


def _of(table: Table, dataset: str, release: str) -> ColumnElement[bool]:
    return (table.c.dataset == dataset) & (table.c.release == release)


def _runs(dataset: str, release: str, *, published: bool = False) -> Select[Any]:
    c, p = ledger.runs.c, ledger.publications.c
    same = (p.dataset == c.dataset) & (p.release == c.release) & (p.batch == c.last_batch)
    joined = ledger.runs.join(ledger.publications, same, isouter=not published)
    counts = (c.rows_in, c.accepted, c.invalid, c.duplicate)
    columns = (c.first_batch, c.last_batch, *counts, c.rejected_committed_at_ms, p.published_at_ms)
    return select(*columns).select_from(joined).where(_of(ledger.runs, dataset, release))


def _by_batch(
    connection: Connection, table: Table, owner: tuple[str, str], bounds: Sequence[int]
) -> dict[int, list[Any]]:
    """Return the rows of a release by their last batch, which lies within the bounds."""
    within = _of(table, *owner) & table.c.last_batch.between(bounds[0], bounds[1])
    by_batch: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(select(table).where(within).order_by(*table.primary_key)):
        by_batch[row.last_batch].append(row)
    return by_batch


def _run(release: str, row: Any, reasons: Sequence[Any], warnings: Sequence[Any], gold: Sequence[Any]) -> RecordedRun:
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
        reasons={each.reason: each.rows for each in reasons if each.rows},
        warnings={each.rule: _rule_warnings(each) for each in warnings},
        gold={each.gold: each.rows for each in gold if each.rows},
    )


def _rule_warnings(row: Any) -> RuleWarnings:
    first = None if row.first_offset is None else (row.first_partition, row.first_offset)
    return RuleWarnings(row.validated, row.violations, first)


def open_reader(settings: Settings) -> LedgerReader:
    """Return a reader of the ledger that the settings name; the database is opened at the first question."""
    return LedgerReader(ledger.open_engine(settings))


def _datasets(connection: Connection) -> list[str]:
    return sorted(connection.execute(select(ledger.totals.c.dataset).distinct()).scalars())


def _last_batches(connection: Connection, dataset: str, count: int) -> list[Batch]:
    c = ledger.batches.c
    query = select(ledger.batches).where(c.dataset == dataset).order_by(c.batch.desc(), c.version.desc()).limit(count)
    found = list(connection.execute(query).mappings())[::-1]
    ranges = _ranges(connection, dataset, found[0]["batch"]) if found else {}
    return [_batch(row, ranges.get((row["generation"], row["batch"]), ())) for row in found]


def _batch(row: RowMapping, ranges: Sequence[OffsetRange] = ()) -> Batch:
    return Batch(**{each.name: row[each.name] for each in fields(Batch) if each.name in row}, ranges=tuple(ranges))


def _ranges(connection: Connection, dataset: str, since: int) -> dict[tuple[str, int], list[OffsetRange]]:
    c = ledger.ranges.c
    query = select(ledger.ranges).where(c.dataset == dataset, c.batch >= since).order_by(c.batch, c.partition)
    by_batch: dict[tuple[str, int], list[OffsetRange]] = defaultdict(list)
    for row in connection.execute(query):
        range_ = OffsetRange(row.partition, row.start_offset, row.end_offset, row.rows)
        by_batch[(row.generation, row.batch)].append(range_)
    return by_batch


def _all_totals(connection: Connection) -> dict[str, DatasetTotals]:
    """Return the totals of all datasets. Reads one row per total, and the last row of a few tables by their keys."""
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for dataset, release, kind, name, rows in connection.execute(select(ledger.totals)).tuples():
        found.setdefault(dataset, {}).setdefault(release, {}).setdefault(kind, {})[name] = rows
    return {dataset: _dataset_totals(connection, dataset, found[dataset]) for dataset in sorted(found)}


def _dataset_totals(
    connection: Connection, dataset: str, by_release: dict[str, dict[str, dict[str, int]]]
) -> DatasetTotals:
    last = connection.execute(
        select(func.max(ledger.batches.c.batch)).where(ledger.batches.c.dataset == dataset)
    ).scalar()
    shared = by_release.pop("", {})
    bronze, expired = shared.get("bronze", {}).get("", 0), shared.get("expired", {}).get("bronze", 0)
    releases = {name: _release_totals(connection, dataset, name, by_release[name]) for name in sorted(by_release)}
    return DatasetTotals(dataset, last, bronze, releases, expired)


def _release_totals(
    connection: Connection, dataset: str, release: str, counts: Mapping[str, Mapping[str, int]]
) -> ReleaseTotals:
    c = ledger.runs.c
    last = connection.execute(select(func.max(c.last_batch)).where(c.dataset == dataset, c.release == release)).scalar()
    rows_in, accepted, invalid, duplicate = (
        counts.get(kind, {}).get("", 0) for kind in ("rows_in", "accepted", "invalid", "duplicate")
    )
    return ReleaseTotals(
        release=release,
        last_batch=last,
        rows_in=rows_in,
        accepted=accepted,
        invalid=invalid,
        duplicate=duplicate,
        gold=dict(sorted(counts.get("gold", {}).items())),
        reasons={reason: rows for reason, rows in sorted(counts.get("reason", {}).items()) if rows},
        warned=dict(sorted(counts.get("warning", {}).items())),
        expired=counts.get("expired", {}),
    )


def _verified(connection: Connection, dataset: str, release: str) -> list[Verification]:
    """A correction at the same batch may be older or newer, so what that batch changed does not count as verified."""
    c, k = ledger.verifications.c, ledger.corrections.c
    same_batch = _of(ledger.corrections, dataset, release) & (k.batch == c.batch)
    corrected = select(k.batch).where(same_batch & (k.committed_at_ms >= c.verified_at_ms)).exists()
    query = select(c.plan, c.since_ms, c.until_ms, c.batch, corrected).where(
        _of(ledger.verifications, dataset, release)
    )
    found = connection.execute(query.order_by(c.batch, c.plan)).tuples()
    return [Verification(plan, _utc(low), _utc(high), batch - gone) for plan, low, high, batch, gone in found]


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
