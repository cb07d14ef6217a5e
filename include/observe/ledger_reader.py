"""Queries of the ledger. Nothing here writes, creates a database, or reads a table or Kafka."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, Table, func, select

from include.ground.settings import Settings
from include.observe.ledger_schema import (
    batches,
    corrections,
    gold_commits,
    ledger_missing,
    open_engine,
    publications,
    ranges,
    reasons,
    runs,
    sqlite_file,
    totals,
    translate_database_errors,
    validate_schema,
    verifications,
    warnings,
)


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
        return self.invalid + self.duplicate


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
    reference: str
    """JSON: name → version of each reference table that the batch is joined with."""
    ranges: tuple[OffsetRange, ...]


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
        c = runs.c
        ours = _of(runs, dataset, release) & c.event_time_max.is_not(None) & (c.last_batch > after)
        query = select(c.last_batch, c.event_time_max).where(ours).order_by(c.last_batch)
        with self._question() as connection:
            found = [(int(batch), str(text)) for batch, text in connection.execute(query)]
            return found, _verified(connection, dataset, release)

    def commit_times(self, dataset: str, release: str, runs_: Sequence[int]) -> dict[int, datetime]:
        """Return when silver got these runs of a release, by last batch."""
        c = runs.c
        ours = _of(runs, dataset, release) & c.last_batch.in_(runs_)
        found = self._rows(select(c.last_batch, c.silver_committed_at_ms).where(ours))
        return {int(batch): _utc(int(at)) for batch, at in found if at is not None}

    def run_counts(self, dataset: str, since: datetime | None = None, until: datetime | None = None) -> list[RunCounts]:
        """Return the runs of a dataset that were validated in [since, until), of all its releases, in order."""
        c = runs.c
        at = c.rejected_committed_at_ms
        query = select(c.release, c.first_batch, c.last_batch, at, c.rows_in)
        query = query.where(c.dataset == dataset, at.is_not(None)).order_by(at, c.last_batch)
        if since is not None:
            query = query.where(at >= int(since.timestamp() * 1000))
        if until is not None:
            query = query.where(at < int(until.timestamp() * 1000))
        with self._question() as connection:
            rejected, broken = _reasons(connection, dataset), _warnings(connection, dataset)
            return [
                RunCounts(
                    release,
                    int(first),
                    int(last),
                    _utc(int(ms)),
                    int(rows or 0),
                    rejected.get((release, last), {}),
                    broken.get((release, last), {}),
                )
                for release, first, last, ms, rows in connection.execute(query)
            ]

    def last_batch(self, dataset: str) -> int | None:
        """Return the number of a dataset's last bronze batch, None before the first."""
        ((found,),) = self._rows(select(func.max(batches.c.batch)).where(batches.c.dataset == dataset))
        return None if found is None else int(found)

    def batches_after(self, dataset: str, batch: int, count: int) -> list[BatchTimes]:
        c = batches.c
        columns = (c.batch, c.rows, c.committed_at_ms, c.first_timestamp_ms, c.last_timestamp_ms, c.reference)
        query = select(*columns).where(c.dataset == dataset, c.batch > batch).order_by(c.batch).limit(count)
        return [BatchTimes(*row) for row in self._rows(query)]

    def published_runs_after(self, dataset: str, release: str, batch: int, count: int) -> list[RecordedRun]:
        """Return at most `count` published runs of a release after `batch`, ascending."""
        c, p = runs.c, publications.c
        after = _runs(dataset, release, published=True).where(p.batch > batch, c.last_batch > batch)
        return self._with_counts(dataset, release, after.order_by(p.batch).limit(count))

    def runs_before(self, dataset: str, release: str, before: int | None, count: int) -> list[RecordedRun]:
        """Return the last `count` runs of a release that end before batch `before` (None: all), newest first."""
        last = runs.c.last_batch
        query = _runs(dataset, release).order_by(last.desc()).limit(count)
        return self._with_counts(dataset, release, query if before is None else query.where(last < before))

    def runs_after(self, dataset: str, release: str, after: int, count: int) -> list[RecordedRun]:
        """Return the first `count` runs of a release that end after batch `after`, newest first."""
        last = runs.c.last_batch
        query = _runs(dataset, release).where(last > after).order_by(last).limit(count)
        return self._with_counts(dataset, release, query)[::-1]

    def published_versions(self, dataset: str, release: str, batch: int) -> dict[str, int]:
        """Return the version of each table that a published batch committed, by full name; empty for another batch."""
        c = publications.c
        found = self._rows(select(c.tables).where(_of(publications, dataset, release), c.batch == batch))
        return dict(json.loads(found[0][0])) if found else {}

    def plan_corrections(self, dataset: str, release: str, plan: str, direction: int) -> list[tuple[str, int, int]]:
        """Return table, version and rows added of each commit of a plan's patch; `direction` is a `PatchDirection`."""
        c = corrections.c
        ours = _of(corrections, dataset, release) & (c.plan == plan) & (c.direction == direction)
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
            bounds = sorted((found[0].last_batch, found[-1].last_batch))
            counted = [_counts(connection, each, (dataset, release), bounds) for each in COUNTED]
        return [_run(release, row, [by_batch[row.last_batch] for by_batch in counted]) for row in found]

    @contextmanager
    def _question(self) -> Iterator[Connection]:
        file = sqlite_file(self._engine.url)
        if file is not None and not file.exists():
            raise ledger_missing(str(file))
        with translate_database_errors(self._engine.url), self._engine.begin() as connection:
            validate_schema(connection)
            yield connection


RUN_COLUMNS = (
    *(runs.c.first_batch, runs.c.last_batch, runs.c.rows_in, runs.c.accepted, runs.c.invalid, runs.c.duplicate),
    *(runs.c.rejected_committed_at_ms, publications.c.published_at_ms),
)
COUNTED = ((reasons, "reason", "rows"), (warnings, "rule", "violations"), (gold_commits, "gold", "rows"))
"""Tables with counts of a run: by which name, and which count."""


def _of(table: Table, dataset: str, release: str) -> ColumnElement[bool]:
    return (table.c.dataset == dataset) & (table.c.release == release)


def _runs(dataset: str, release: str, *, published: bool = False) -> Select[Any]:
    c, p = runs.c, publications.c
    same = (p.dataset == c.dataset) & (p.release == c.release) & (p.batch == c.last_batch)
    joined = runs.join(publications, same, isouter=not published)
    return select(*RUN_COLUMNS).select_from(joined).where(_of(runs, dataset, release))


def _counts(
    connection: Connection, counted: tuple[Table, str, str], owner: tuple[str, str], bounds: Sequence[int]
) -> dict[int, dict[str, int]]:
    table, name, amount = counted
    c = table.c
    query = select(c.last_batch, c[name], c[amount]).where(
        _of(table, *owner), c.last_batch.between(bounds[0], bounds[1])
    )
    by_batch: dict[int, dict[str, int]] = defaultdict(dict)
    for batch, key, count in connection.execute(query):
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


def open_reader(settings: Settings) -> LedgerReader:
    """Return a reader of the ledger that the settings name; the database is opened at the first question."""
    return LedgerReader(open_engine(settings))


def _datasets(connection: Connection) -> list[str]:
    return sorted(connection.execute(select(totals.c.dataset).distinct()).scalars())


def _last_batches(connection: Connection, dataset: str, count: int) -> list[Batch]:
    c = batches.c
    query = select(batches).where(c.dataset == dataset).order_by(c.batch.desc(), c.version.desc()).limit(count)
    found = list(connection.execute(query).mappings())[::-1]
    ranges = _ranges(connection, dataset, found[0]["batch"]) if found else {}
    fields = [name for name in Batch.__dataclass_fields__ if name != "ranges"]
    return [
        Batch(**{name: row[name] for name in fields}, ranges=tuple(ranges.get((row["generation"], row["batch"]), [])))
        for row in found
    ]


def _ranges(connection: Connection, dataset: str, since: int) -> dict[tuple[str, int], list[OffsetRange]]:
    c = ranges.c
    query = select(ranges).where(c.dataset == dataset, c.batch >= since).order_by(c.batch, c.partition)
    by_batch: dict[tuple[str, int], list[OffsetRange]] = defaultdict(list)
    for row in connection.execute(query):
        range_ = OffsetRange(row.partition, row.start_offset, row.end_offset, row.rows)
        by_batch[(row.generation, row.batch)].append(range_)
    return by_batch


def _all_totals(connection: Connection) -> dict[str, DatasetTotals]:
    """Return the totals of all datasets. Reads one row per total, and the last row of a few tables by their keys."""
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for dataset, release, kind, name, rows in connection.execute(select(totals)).tuples():
        found.setdefault(dataset, {}).setdefault(release, {}).setdefault(kind, {})[name] = rows
    return {dataset: _dataset_totals(connection, dataset, found[dataset]) for dataset in sorted(found)}


def _dataset_totals(
    connection: Connection, dataset: str, by_release: dict[str, dict[str, dict[str, int]]]
) -> DatasetTotals:
    last = connection.execute(select(func.max(batches.c.batch)).where(batches.c.dataset == dataset)).scalar()
    shared = by_release.pop("", {})
    bronze, expired = shared.get("bronze", {}).get("", 0), shared.get("expired", {}).get("bronze", 0)
    releases = {name: _release_totals(connection, dataset, name, by_release[name]) for name in sorted(by_release)}
    return DatasetTotals(dataset, last, bronze, releases, expired)


def _release_totals(
    connection: Connection, dataset: str, release: str, counts: Mapping[str, Mapping[str, int]]
) -> ReleaseTotals:
    c = runs.c
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
    c, k = verifications.c, corrections.c
    ours, later = _of(verifications, dataset, release), _of(corrections, dataset, release) & (k.batch == c.batch)
    corrected = select(k.batch).where(later & (k.committed_at_ms >= c.verified_at_ms)).exists()
    found = connection.execute(
        select(c.plan, c.since_ms, c.until_ms, c.batch, corrected).where(ours).order_by(c.batch, c.plan)
    )
    return [Verification(plan, _utc(low), _utc(high), batch - gone) for plan, low, high, batch, gone in found.tuples()]


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
