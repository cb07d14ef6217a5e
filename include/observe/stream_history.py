"""Rate, lag, freshness and rejected records of a stream by minute, from the ledger; each poll reads only new rows.

A batch counts in the minute of its first publication: rows of a rebuilt release, or of a shadow, are not counted again.
Minutes older than a day are merged into hours, so memory grows with time, not with runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from include.declare.contract_rules import RuleResult
from include.ground.durable_files import write_atomically
from include.ground.paths import quality_path
from include.ground.record_coordinates import arrivals
from include.ground.settings import Settings
from include.observe.ledger_reader import Batch, LedgerReader, RecordedRun

MINUTE_MS = 60_000
HOUR = 60
MINUTES_KEPT = 24 * 60
MOST_RUNS = 200_000
"""The first poll reads no runs before these: the figures begin there."""
STEP = 5_000


@dataclass
class Minute:
    """The figures of a minute, or of a past hour: records into bronze, and published runs.

    `lag_ms`: the greatest age that a run's oldest record had when it was published. `newest_ms`: the greatest Kafka
    time among all records that were published until its end.
    """

    ingested: int = 0
    published: int = 0
    runs: int = 0
    rejected: int = 0
    lag_ms: int | None = None
    newest_ms: int | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)

    def add(self, other: Minute) -> None:
        self.ingested += other.ingested
        self.published += other.published
        self.runs += other.runs
        self.rejected += other.rejected
        self.lag_ms = greatest(self.lag_ms, other.lag_ms)
        self.newest_ms = greatest(self.newest_ms, other.newest_ms)
        self.reasons.update(other.reasons)
        self.warned.update(other.warned)


def _arrivals(batch: Batch, now_ms: int) -> Sequence[int]:
    """Return when the first and the last record of a batch arrived, nothing if it has none."""
    first, last = batch.first_timestamp_ms, batch.last_timestamp_ms
    return () if first is None or last is None else arrivals((first, last), batch.committed_at_ms, now_ms)


def greatest(first: int | None, second: int | None) -> int | None:
    """Return the greater value; None does not count."""
    known = [value for value in (first, second) if value is not None]
    return max(known, default=None)


@dataclass(frozen=True)
class Interval:
    """Figures of [since, until), which is `seconds` long or shorter when it is not over; None: unknown.

    `lag_seconds` as in Minute; `freshness_seconds`: the age of the newest published record at the end.
    """

    since: datetime
    seconds: float
    minute: Minute
    lag_seconds: float | None
    freshness_seconds: float | None


@dataclass
class StreamHistory:
    """The history of one dataset; `advance` reads the rows that the ledger got since the last call."""

    dataset: str
    minutes: dict[int, Minute] = field(default_factory=dict)
    ingested_batch: int | None = None
    published_batch: int = -1
    newest_ms: int | None = None
    waiting: deque[Batch] = field(default_factory=deque)
    """Batches in bronze that no publication has passed yet, ascending."""

    def advance(self, ledger: LedgerReader, releases: Iterable[str]) -> bool:
        """Read new rows, some thousand at most; return whether there are more. Raises the ledger's errors."""
        if self.ingested_batch is None:
            last = ledger.last_batch(self.dataset)
            if last is None:
                return False
            self.ingested_batch = self.published_batch = max(-1, last - MOST_RUNS)
        batches = ledger.batches_after(self.dataset, self.ingested_batch, STEP)
        for batch in batches:
            self._ingest(batch)
        found = [ledger.published_runs_after(self.dataset, name, self.published_batch, STEP) for name in releases]
        # A run that ends after the batches read so far is read with them by the next call.
        known = [run for runs in found for run in runs if run.last_batch <= (self.ingested_batch or 0)]
        for run in sorted(known, key=lambda run: (run.published_at_ms or 0, run.last_batch)):
            self._publish(run)
        self._merge_hours()
        return len(batches) == STEP

    def _ingest(self, batch: Batch) -> None:
        if batch.batch != self.ingested_batch:
            self._minute(batch.committed_at_ms).ingested += batch.rows
            self.waiting.append(batch)
        self.ingested_batch = batch.batch

    def _publish(self, run: RecordedRun) -> None:
        if run.last_batch <= self.published_batch or run.published_at_ms is None:
            return
        passed = list(self._passed(run.last_batch))
        arrived = [time for batch in passed for time in _arrivals(batch, run.published_at_ms)]
        newest = max(arrived, default=None)
        self.newest_ms, self.published_batch = greatest(self.newest_ms, newest), run.last_batch
        lag = run.published_at_ms - min(arrived) if arrived else None
        minute = Minute(
            published=sum(batch.rows for batch in passed),
            runs=1,
            rejected=run.rejected,
            lag_ms=lag,
            newest_ms=self.newest_ms,
            reasons=Counter(run.reasons),
            warned=Counter(run.warned),
        )
        self._minute(run.published_at_ms).add(minute)

    def _passed(self, batch: int) -> Iterator[Batch]:
        while self.waiting and self.waiting[0].batch <= batch:
            yield self.waiting.popleft()

    def _minute(self, at_ms: int) -> Minute:
        return self.minutes.setdefault(at_ms // MINUTE_MS, Minute())

    def _merge_hours(self) -> None:
        newest = max(self.minutes, default=0)
        for number in sorted(n for n in self.minutes if n < newest - MINUTES_KEPT and n % HOUR):
            self.minutes.setdefault(number - number % HOUR, Minute()).add(self.minutes.pop(number))

    def intervals(self, until: datetime, length: timedelta, count: int) -> list[Interval]:
        """Return `count` intervals of whole minutes, oldest first; the last one contains `until`."""
        size = max(1, int(length.total_seconds()) // 60)
        last = int(until.timestamp()) // 60 // size * size
        starts = [last - size * back for back in reversed(range(count))]
        by_start: dict[int, Minute] = {start: Minute() for start in starts}
        newest: int | None = None
        for number in sorted(self.minutes):
            start = number // size * size
            if start in by_start:
                by_start[start].add(self.minutes[number])
            elif number < starts[0]:
                newest = greatest(newest, self.minutes[number].newest_ms)
        return list(_intervals(by_start, newest, size, until))


def _intervals(by_start: dict[int, Minute], newest: int | None, size: int, until: datetime) -> Iterator[Interval]:
    now = until.timestamp()
    for start, minute in by_start.items():
        newest = greatest(newest, minute.newest_ms)
        end = min((start + size) * 60.0, now)
        seconds = max(end - start * 60.0, 1.0)
        lag = None if minute.lag_ms is None else max(minute.lag_ms / 1000, 0.0)
        freshness = None if newest is None else max(end - newest / 1000, 0.0)
        yield Interval(datetime.fromtimestamp(start * 60, until.tzinfo), seconds, minute, lag, freshness)


MOST_KEPT = 500


@dataclass(frozen=True)
class StoredValidation:
    """The results of one validation, at one publication."""

    release: str
    batch: int
    checked_at: datetime
    checks: Sequence[RuleResult]


VALIDATIONS = TypeAdapter(StoredValidation)


def _validations_path(settings: Settings, dataset: str) -> Path:
    return quality_path(settings, dataset) / "validations.jsonl"


def store_validation(settings: Settings, dataset: str, validation: StoredValidation) -> None:
    """Add a validation; the oldest ones beyond MOST_KEPT go. Raises OSError."""
    path = _validations_path(settings, dataset)
    lines = path.read_bytes().splitlines() if path.is_file() else []
    lines = [*lines[1 - MOST_KEPT :], VALIDATIONS.dump_json(validation)]
    write_atomically(path, b"\n".join(lines) + b"\n", durable=False)


def stored_validations(settings: Settings, dataset: str, count: int) -> list[StoredValidation]:
    """Return the last validations, oldest first; a line that is none is left out."""
    path = _validations_path(settings, dataset)
    lines = path.read_bytes().splitlines()[-count:] if path.is_file() else []
    return [found for line in lines if (found := _parsed(line)) is not None]


def _parsed(line: bytes) -> StoredValidation | None:
    try:
        return VALIDATIONS.validate_json(line)
    except ValidationError:
        return None
