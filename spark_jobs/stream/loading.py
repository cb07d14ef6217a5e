"""Loading: the owner commits records of files to bronze, in batches between those of the topic (layers/adr-0020).

Reads: the files, in their order, each as its plan has found it. Writes: bronze alone.
Guarantee: each record once. A batch's transaction is the offset that it ends with.
After a crash: the next request continues after the last batch; a file in the middle of which that lies is read again
from its beginning, and its first rows are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from include.declare.dataset import Dataset
from include.declare.file_sets import FileSet
from include.declare.reference_tables import current_versions
from include.ground.app_ids import load_app_id
from include.ground.record_coordinates import place_in_set
from include.ground.settings import Settings
from spark_jobs.backends.release import Release
from spark_jobs.layers.bronze import FOLLOWED, FOLLOWS, BronzeBatch, LoadedRows, refuse_changed
from spark_jobs.stream.preflight import BronzeHead, bronze_head, refuse_no_batch
from spark_jobs.tables.delta_table import Table

MOST_ROWS, MOST_BYTES = 250_000, 64 << 20
"""Of one batch: the topic's next one waits while it is written."""
LOAD_SECONDS = 2.0
"""How long one request loads while a stream runs; runs and upkeep have their turn before the next one."""


BronzeTurn = Callable[[], AbstractContextManager[BronzeHead]]
"""Gives the right to commit the batch after the last one of bronze, which it yields."""


def sole_turn(bronze: Table) -> BronzeTurn:
    """Return the turns of an owner beside which nobody commits to bronze."""

    @contextmanager
    def turn() -> Iterator[BronzeHead]:
        yield refuse_no_batch(bronze_head(bronze))

    return turn


@dataclass(frozen=True)
class LoadProgress:
    """What a request has loaded: its records, how many of the files are loaded, and bronze's last batch."""

    rows: int
    done: int
    of: int
    is_done: bool
    batch: int


@dataclass
class Loads:
    """What an owner has begun to load: the reader of a set stays open from one request to the next."""

    settings: Settings
    bronze: Table
    turn: BronzeTurn
    seconds: float = float("inf")
    """How long one request loads."""
    _begun: tuple[FileSet, int, Iterator[LoadedRows]] | None = field(default=None, init=False)
    """The last set, up to which offset bronze has it, and the rest of it."""

    @property
    def is_alone(self) -> bool:
        """Whether no stream runs beside it."""
        return self.seconds == float("inf")

    def advance(self, release: Release, files: FileSet) -> LoadProgress:
        """Commit the next records of a set, batch after batch, until it is loaded or the time is over."""
        rows, end = 0, time.monotonic() + self.seconds
        (position, batches), head = self._rest(release, files), bronze_head(self.bronze)
        batch = -1 if head is None else head.batch
        # What fails has read further than bronze.
        self._begun = None
        while position < files.end and (not rows or time.monotonic() < end):
            taken = next(batches)
            batch, rows, position = self._commit(release, taken), rows + taken.count, taken.end
        is_done = position >= files.end
        self._begun = None if is_done else (files, position, batches)
        return LoadProgress(rows, place_in_set(position)[0], len(files.files), is_done, batch)

    def _rest(self, release: Release, files: FileSet) -> tuple[int, Iterator[LoadedRows]]:
        """Return up to which offset bronze has a set, and the records from there on."""
        position = max(0, self.bronze.committed(load_app_id(release.dataset.name, files.partition)))
        if self._begun is not None and self._begun[:2] == (files, position):
            return self._begun[1:]
        return position, release.backend.loaded_rows(self.settings, files, position, (MOST_ROWS, MOST_BYTES))

    def _commit(self, release: Release, rows: LoadedRows) -> int:
        """Commit records as the next batch of bronze; return its number. Raises OwnershipLost, RowsUnaccounted."""
        with self.turn() as head:
            batch = loaded_batch(self.settings, release.dataset, head, rows)
            unchanged = partial(refuse_changed, self.settings, rows.files, rows.spans)
            release.backend.ingest(self.bronze, rows.records, batch, unchanged)
        return batch.number


def loaded_batch(settings: Settings, dataset: Dataset, head: BronzeHead, rows: LoadedRows) -> BronzeBatch:
    """Return the batch of these records that follows bronze's last one: of the topic it has nothing."""
    facts = {
        "dataset": dataset.name,
        "code": dataset.release,
        "epoch": head.epoch,
        "topic": dataset.pipeline.topic,
        "topic_id": head.topic_id,
        "reference": current_versions(settings, dataset.name),
        "query_id": head.query_id,
        FOLLOWS: head.transaction,
        FOLLOWED: head.app_id,
        "load": rows.files.plan,
        "files": rows.sources,
    }
    offsets = {partition: (end, end) for partition, end in head.ends.items()}
    offsets[rows.files.partition] = rows.start, rows.end
    app_id = load_app_id(dataset.name, rows.files.partition)
    return BronzeBatch(head.batch + 1, app_id, rows.end, offsets, facts, head.idle)
