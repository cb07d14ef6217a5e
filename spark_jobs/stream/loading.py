"""Loading: the owner commits records of files to bronze, in batches between those of the topic (layers/adr-0020).

Reads: the files, in their order, each as its plan has found it. Writes: bronze alone.
Guarantee: each record once. A batch's transaction is the offset that it ends with.
After a crash: the next request continues after the last batch; a file in the middle of which that lies is read again
from its beginning, and its first rows are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from include.declare.dataset import Dataset
from include.declare.file_sets import FileSet, RecordFile
from include.declare.reference_tables import current_versions
from include.ground.app_ids import load_app_id
from include.ground.record_coordinates import offset_in_set, place_in_set
from include.ground.settings import Settings
from include.read.record_files import checksum, file_changed, found_now, payloads
from spark_jobs.backends.backend import Backend
from spark_jobs.backends.release import Release
from spark_jobs.layers.bronze import FOLLOWED, FOLLOWS, SOURCE, BronzeBatch
from spark_jobs.stream.preflight import BronzeHead, bronze_head, refuse_no_batch
from spark_jobs.tables.delta_table import Table

MOST_ROWS, MOST_BYTES = 250_000, 64 << 20
"""Of one batch: the topic's next one waits while it is written."""
LOAD_SECONDS = 2.0
"""How long one request loads while a stream runs; runs and upkeep have their turn before the next one."""


@dataclass(frozen=True)
class Piece:
    """Payloads of a file that follow one another, from `row` on."""

    file: int
    row: int
    values: pa.Array

    @property
    def end(self) -> int:
        return offset_in_set(self.file, self.row + len(self.values))


@dataclass(frozen=True)
class LoadedRows:
    """The records of offsets [start, end) of a set of files."""

    files: FileSet
    start: int
    end: int
    pieces: Sequence[Piece]

    @property
    def count(self) -> int:
        return sum(len(piece.values) for piece in self.pieces)

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Which rows [start, end) of which files these are."""
        spans: dict[int, tuple[int, int]] = {}
        for piece in self.pieces:
            first, _ = spans.get(piece.file, (piece.row, 0))
            spans[piece.file] = first, piece.row + len(piece.values)
        return [
            {"file": self.files.files[n].address, "sha256": self.files.files[n].sha256, "rows": list(span)}
            for n, span in spans.items()
        ]

    def write(self, folder: Path) -> list[Path]:
        """Add the records to a folder as an Arrow file with the columns of Spark's Kafka source."""
        if not self.count:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid4().hex}.arrow"
        with pa.ipc.new_file(str(path), SOURCE) as writer:
            for piece in self.pieces:
                writer.write_batch(self._records(piece))
        return [path]

    def refuse_changed(self, settings: Settings) -> None:
        for number in dict.fromkeys(piece.file for piece in self.pieces):
            refuse_changed_file(settings, self.files.files[number])

    def _records(self, piece: Piece) -> pa.RecordBatch:
        rows = len(piece.values)
        first = offset_in_set(piece.file, piece.row)
        columns: Mapping[str, Any] = {
            "value": piece.values,
            "topic": _same(self.files.files[piece.file].address, rows),
            "partition": _same(self.files.partition, rows),
            "offset": pa.array(np.arange(first, first + rows)),
            "timestamp": _same(self.files.planned_at, rows),
            "timestampType": _same(LOADED, rows),
        }
        arrays = [
            columns[each.name].cast(each.type) if each.name in columns else pa.nulls(rows, each.type) for each in SOURCE
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SOURCE)


def _same(value: object, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)


LOADED = -1
"""The type of the time of a record that no Kafka had: Kafka's own are 0 and 1."""


class SetReader:
    """Reads a set of files from an offset on. Raises file_changed before anything of a changed file is returned."""

    def __init__(self, settings: Settings, files: FileSet, position: int) -> None:
        self.files, self.position = files, position
        self._settings = settings
        self._pieces = self._read(*place_in_set(position))
        self._rest: Piece | None = None

    @property
    def is_done(self) -> bool:
        return self.position >= self.files.end

    def take(self, most_rows: int, most_bytes: int) -> LoadedRows:
        """Return the next records, fewer than the bounds only at the end."""
        start, pieces, rows, size = self.position, list[Piece](), 0, 0
        while rows < most_rows and size < most_bytes and (piece := self._next()) is not None:
            share = min(most_rows - rows, len(piece.values))
            if share < len(piece.values):
                self._rest = Piece(piece.file, piece.row + share, piece.values[share:])
            pieces.append(Piece(piece.file, piece.row, piece.values[:share]))
            rows, size = rows + share, size + int(pieces[-1].values.nbytes)
        is_full = rows >= most_rows or size >= most_bytes
        self.position = pieces[-1].end if is_full else self.files.end
        return LoadedRows(self.files, start, self.position, pieces)

    def _next(self) -> Piece | None:
        rest, self._rest = self._rest, None
        return rest if rest is not None else next(self._pieces, None)

    def _read(self, first: int, skipped: int) -> Iterator[Piece]:
        for number, file in list(enumerate(self.files.files))[first:]:
            refuse_changed_file(self._settings, file)
            row, begin = 0, skipped if number == first else 0
            for values in payloads(self._settings, file.address, self.files.form, self.files.literals):
                after = row + len(values)
                if after > begin:
                    new = max(row, begin)
                    yield Piece(number, new, values[new - row :])
                row = after
            # A file that was replaced while it was read is found before its last rows are committed.
            refuse_changed_file(self._settings, file)


def refuse_changed_file(settings: Settings, file: RecordFile) -> None:
    """Raise file_changed unless a file has the bytes that were planned; equal size and time of change say so."""
    now = found_now(settings, file.address)
    if now is None:
        raise file_changed(file.address, "it is gone")
    if now.size != file.size:
        raise file_changed(file.address, f"it had {file.size:,} bytes and has {now.size:,}")
    if now.modified_ns != file.modified_ns and checksum(settings, file.address) != file.sha256:
        raise file_changed(file.address, f"its SHA-256 was {file.sha256[:12]}… and is another one")


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
    _reader: SetReader | None = field(default=None, init=False)

    @property
    def is_alone(self) -> bool:
        """Whether no stream runs beside it."""
        return self.seconds == float("inf")

    def advance(self, release: Release, files: FileSet) -> LoadProgress:
        """Commit the next records of a set, batch after batch, until it is loaded or the time is over."""
        dataset, rows, end = release.dataset, 0, time.monotonic() + self.seconds
        reader, head = self._reader_of(dataset.name, files), bronze_head(self.bronze)
        batch = -1 if head is None else head.batch
        # What fails leaves the reader ahead of bronze.
        self._reader = None
        while not reader.is_done and (not rows or time.monotonic() < end):
            taken = reader.take(MOST_ROWS, MOST_BYTES)
            batch, rows = self._commit(release.backend, dataset, taken), rows + taken.count
        self._reader = reader
        return LoadProgress(rows, place_in_set(reader.position)[0], len(files.files), reader.is_done, batch)

    def _reader_of(self, dataset: str, files: FileSet) -> SetReader:
        """Return the reader of a set, where bronze ends of it."""
        position = max(0, self.bronze.committed(load_app_id(dataset, files.partition)))
        known = self._reader
        if known is None or known.files != files or known.position != position:
            return SetReader(self.settings, files, position)
        return known

    def _commit(self, backend: Backend, dataset: Dataset, rows: LoadedRows) -> int:
        """Commit records as the next batch of bronze; return its number. Raises OwnershipLost, RowsUnaccounted."""
        with self.turn() as head:
            batch = loaded_batch(self.settings, dataset, head, rows)
            backend.ingest(self.bronze, rows.write, batch, partial(rows.refuse_changed, self.settings))
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
