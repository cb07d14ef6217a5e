"""How many offsets the next ingest batch may have, and when it is planned.

Spark's Kafka source limits a batch by offsets only, and reads the limit when the query starts. The driver divides the
wanted bytes by the mean size of a record: uncompressed, in the last batch, and before the first batch in a few records
of the topic. When a batch is measured, Spark has already planned the next one: a limit that is wrong by a factor of two
costs one batch and a restart.

The next batch is planned just in time for refine's next run (adr-0008): records of one that is committed during a run
age until the run ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from include.ground.kafka import record_reader
from include.ground.stored_path import arrow_source
from spark_jobs.backends.local.runs import Validations
from spark_jobs.backends.spark_session import Opened
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table

SAMPLED = 20
"""Records of each partition."""
WRONG_BY = 2


class BatchLimitChanged(Exception):
    """The query must be started again to read the new limit; the planned batch stays planned."""


@dataclass
class BatchLimit:
    """The limit in `offsets`, at most `most_offsets`; `measured` is the limit that fits the last batch's records."""

    most_offsets: int
    most_bytes: int
    offsets: int = field(init=False)
    measured: int = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = self.measured = self.most_offsets

    def measure(self, rows: int, size: int) -> None:
        """Note that `rows` records had `size` bytes."""
        if rows and size:
            self.measured = max(1, min(self.most_offsets, self.most_bytes * rows // size))

    def apply(self) -> int:
        """Make the measured limit the one of the query that starts now; return it."""
        self.offsets = self.measured
        return self.offsets

    def refuse_outdated(self) -> None:
        """Raise BatchLimitChanged when the query's limit is wrong by a factor of two."""
        least, most = sorted((self.offsets, self.measured))
        if most >= WRONG_BY * least:
            raise BatchLimitChanged(f"its batches get at most {self.measured:,} offsets instead of {self.offsets:,}")


def size_in_bronze(bronze: Table, files: Sequence[DataFile]) -> tuple[int, int]:
    """Return the rows of files, and their bytes before compression."""
    footers = [pq.read_metadata(arrow_source(bronze.spec.path / file.path)) for file in files]
    groups = [footer.row_group(number) for footer in footers for number in range(footer.num_row_groups)]
    return sum(footer.num_rows for footer in footers), sum(group.total_byte_size for group in groups)


def newest_files(bronze: Table) -> list[DataFile]:
    """Return bronze's files with its last batch. Reads the list of all files."""
    newest = max((file.last_batch for file in bronze.files()), default=-1)
    return bronze.batch_files(newest, newest) if newest >= 0 else []


def size_in_topic(bootstrap: str, topic: str, starts: Mapping[int, int]) -> tuple[int, int]:
    """Return the number of a few records from these offsets on, and their bytes. Raises BrokerUnreachable."""
    with record_reader(bootstrap, topic) as read:
        records = [one for partition, start in starts.items() for one in read(partition, start, start + SAMPLED)]
    return len(records), sum(len(one.key or b"") + len(one.value or b"") for one in records)


LONGEST_TURN = 30.0
"""After it the next dataset goes on beside: one whose run hangs or is long holds up no other."""


@dataclass
class Gate:
    """Lets the datasets of a process work one by one."""

    clock: Callable[[], float] = time.monotonic
    _holder: object = None
    _since: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def enter(self) -> object:
        """Wait for the turn; return the token that ends it."""
        token = object()
        with self._changed:
            while self._holder is not None and (left := self._since + LONGEST_TURN - self.clock()) > 0:
                self._changed.wait(left)
            self._holder, self._since = token, self.clock()
        return token

    def leave(self, token: object) -> None:
        """End the turn, unless another dataset has passed."""
        with self._changed:
            if self._holder is token:
                self._holder = None
                self._changed.notify()


@dataclass(frozen=True)
class Tempo:
    """How often a driver looks for work, seconds; with a `gate`, what runs of datasets of one process pass one by one.

    `loop`: least pause of an idle main loop. `trigger`: between two polls of Kafka. `report`: between two reports.
    """

    loop: float = 0.0
    trigger: float = 0.1
    report: float = 1.0
    gate: Gate | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Work while no other dataset of the process does."""
        token = self.gate.enter() if self.gate else None
        try:
            yield
        finally:
            if self.gate:
                self.gate.leave(token)


@dataclass(frozen=True)
class DriverProcess:
    """What a dataset's driver gets from its process: `stop` drains it, `opened` returns the session.

    `pid`: the dataset's own process beside a shared driver, 0 for this one.
    """

    stop: threading.Event
    opened: Opened
    tempo: Tempo = Tempo()
    pid: int = 0


def shared_tempo() -> Tempo:
    """Return the tempo of many small streams: none needs to be fast, and looking must cost next to nothing."""
    return Tempo(loop=1.0, trigger=5.0, report=5.0, gate=Gate())


SLOW_PACE = 2.0
"""Seconds from one batch to the next while refine takes none, because it is halted or a run is long."""
FULL = 0.9
"""Above this share of the largest batch, more records probably wait in Kafka: the next batch follows at once."""


@dataclass(frozen=True)
class CommittedBatch:
    """A batch of bronze; writing it took `seconds`. A large one is validated while the run before is written."""

    number: int
    seconds: float
    is_large: bool = False


@dataclass
class BronzePacing(Validations):
    """The state that ingest and refine share: the last batch that refine takes, and how long a run lasts."""

    clock: Callable[[], float] = time.monotonic
    taken: int = -1
    seconds: float = 0.0
    """How long the last run took."""
    _begun: float | None = None
    _is_validating: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def begin_run(self, last: int, *, is_validated: bool = False) -> None:
        """Note that refine looks for a run up to batch `last`, and validates its records unless they are already."""
        with self._changed:
            self.taken, self._begun, self._is_validating = last, self.clock(), not is_validated
            self._changed.notify_all()

    def begin_validation(self, last: int) -> None:
        """Note that the records of the next run, up to batch `last`, are validated during the current one."""
        with self._changed:
            self.taken, self._is_validating = last, True
            self._changed.notify_all()

    def end_validation(self) -> None:
        """Note that these records are validated, so that Spark is idle."""
        with self._changed:
            self._is_validating = False
            self._changed.notify_all()

    def end_run(self, *, has_run: bool) -> None:
        """Note that the run ended, or that there was nothing to do."""
        with self._changed:
            if has_run and self._begun is not None:
                self.seconds = self.clock() - self._begun
            self._begun, self._is_validating = None, False
            self._changed.notify_all()

    def wait(self, batch: CommittedBatch, stop: threading.Event) -> None:
        """Return when the batch after `batch` is to be planned."""
        slow = self.clock() + SLOW_PACE
        with self._changed:
            while not stop.is_set() and (remaining := self.remaining(batch, slow)) > 0:
                self._changed.wait(min(remaining, 0.1))

    def remaining(self, batch: CommittedBatch, slow: float) -> float:
        """Return the seconds until the batch after `batch` is to be planned, at the latest at `slow`; 0 for now."""
        now = self.clock()
        if self.taken < batch.number:
            return slow - now
        if self._begun is None:
            return 0.0
        if batch.is_large:
            return slow - now if self._is_validating else 0.0
        return min(slow, self._begun + self.seconds - batch.seconds) - now
