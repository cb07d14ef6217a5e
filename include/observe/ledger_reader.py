"""Queries of the ledger. Nothing here writes, creates a database, or reads a table or Kafka."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, func, select

from include.ground.settings import Settings
from include.observe.ledger_errors import LedgerMissing, translate_database_errors
from include.observe.ledger_schema import (
    batches,
    corrections,
    open_engine,
    publications,
    ranges,
    runs,
    sqlite_file,
    totals,
    validate_schema,
    verifications,
)
from include.observe.rule_counts import RunCounts, run_counts
from include.observe.run_history import (
    BatchTimes,
    RecordedRun,
    batches_after,
    last_batch,
    plan_corrections,
    published_runs_after,
    published_versions,
    runs_after,
    runs_before,
)


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
        """Records in rejected, by both dispositions."""
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
    """Every query raises LedgerMissing, LedgerUnavailable (Transient); LedgerDamaged, LedgerSchemaMismatch."""

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
        with self._question() as connection:
            c = runs.c
            ours = (c.dataset == dataset) & (c.release == release) & c.event_time_max.is_not(None)
            ours &= c.last_batch > after
            found = connection.execute(select(c.last_batch, c.event_time_max).where(ours).order_by(c.last_batch))
            return [(int(batch), str(text)) for batch, text in found.tuples()], _verified(connection, dataset, release)

    def commit_times(self, dataset: str, release: str, runs_: Sequence[int]) -> dict[int, datetime]:
        """Return when silver got these runs of a release, by last batch."""
        with self._question() as connection:
            c = runs.c
            ours = (c.dataset == dataset) & (c.release == release) & c.last_batch.in_(runs_)
            found = connection.execute(select(c.last_batch, c.silver_committed_at_ms).where(ours))
            return {int(batch): _utc(int(at)) for batch, at in found.tuples() if at is not None}

    def publication_times(self, dataset: str, release: str) -> list[tuple[int, int]]:
        """Return each published batch of a release, ascending, and when it was published, in milliseconds."""
        with self._question() as connection:
            c = publications.c
            ours = (c.dataset == dataset) & (c.release == release)
            found = connection.execute(select(c.batch, c.published_at_ms).where(ours).order_by(c.batch))
            return [(int(batch), int(at)) for batch, at in found.tuples()]

    def run_counts(self, dataset: str, since: datetime | None = None, until: datetime | None = None) -> list[RunCounts]:
        """Return what rules have counted in each run of a dataset that was validated in [since, until)."""
        with self._question() as connection:
            return run_counts(connection, dataset, since, until)

    def last_batch(self, dataset: str) -> int | None:
        """Return the number of a dataset's last bronze batch, None before the first."""
        with self._question() as connection:
            return last_batch(connection, dataset)

    def batches_after(self, dataset: str, batch: int, count: int) -> list[BatchTimes]:
        """Return at most `count` bronze batches after `batch`, ascending."""
        with self._question() as connection:
            return batches_after(connection, dataset, batch, count)

    def published_runs_after(self, dataset: str, release: str, batch: int, count: int) -> list[RecordedRun]:
        """Return at most `count` published runs of a release after `batch`, ascending."""
        with self._question() as connection:
            return published_runs_after(connection, dataset, release, batch, count)

    def runs_before(self, dataset: str, release: str, before: int | None, count: int) -> list[RecordedRun]:
        """Return the last `count` runs of a release that end before batch `before` (None: all), newest first."""
        with self._question() as connection:
            return runs_before(connection, dataset, release, before, count)

    def runs_after(self, dataset: str, release: str, after: int, count: int) -> list[RecordedRun]:
        """Return the first `count` runs of a release that end after batch `after`, newest first."""
        with self._question() as connection:
            return runs_after(connection, dataset, release, after, count)

    def published_versions(self, dataset: str, release: str, batch: int) -> dict[str, int]:
        """Return the version of each table that a published batch committed, by full name; empty for another batch."""
        with self._question() as connection:
            return published_versions(connection, dataset, release, batch)

    def plan_corrections(self, dataset: str, release: str, plan: str, direction: int) -> list[tuple[str, int, int]]:
        """Return table, version and rows added of each commit of a plan's patch; `direction` is a `PatchDirection`."""
        with self._question() as connection:
            return plan_corrections(connection, dataset, release, plan, direction)

    def close(self) -> None:
        """Close the connections; a later question opens new ones."""
        self._engine.dispose()

    @contextmanager
    def _question(self) -> Iterator[Connection]:
        file = sqlite_file(self._engine.url)
        if file is not None and not file.exists():
            raise LedgerMissing(str(file))
        with translate_database_errors(self._engine.url), self._engine.begin() as connection:
            validate_schema(connection)
            yield connection


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
    ours = (c.dataset == dataset) & (c.release == release)
    later = (k.dataset == dataset) & (k.release == release) & (k.batch == c.batch)
    corrected = select(k.batch).where(later & (k.committed_at_ms >= c.verified_at_ms)).exists()
    found = connection.execute(
        select(c.plan, c.since_ms, c.until_ms, c.batch, corrected).where(ours).order_by(c.batch, c.plan)
    )
    return [Verification(plan, _utc(low), _utc(high), batch - gone) for plan, low, high, batch, gone in found.tuples()]


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
