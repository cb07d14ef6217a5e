"""The files that a release has loaded, as sources of records beside the topic: read again, and compared with bronze.

A file that has changed since is a finding; of one that is gone only the ranges are checked, as of records that Kafka
has deleted. Which line is which record is decided by the reader that loads use (include/read/record_files.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import polars as pl
import pyarrow as pa

from include.audit.findings import Finding, FindingKind
from include.audit.kafka import RECORD, Chunk, Topic
from include.declare.file_sets import FileSet
from include.ground.record_coordinates import LOADED, offset_in_set
from include.ground.settings import Settings
from include.read.publication import Publication
from include.read.record_files import payloads
from include.read.record_stores import GONE, how_changed


@dataclass(frozen=True)
class FileSetCheck:
    """The files of a set, of which plan, and those that are gone or have changed since they were loaded."""

    plan: str
    partition: int
    files: int
    gone: Sequence[str]
    changed: Mapping[str, str]


@dataclass(frozen=True)
class LoadedFiles:
    """The sets of files of a release, as they are now."""

    settings: Settings
    sets: Mapping[int, FileSet]
    checks: tuple[FileSetCheck, ...]

    def published(self, publication: Publication) -> Publication:
        """Return a publication whose offsets have the ends of the sets too."""
        ends = {partition: each.end for partition, each in self.sets.items()}
        return replace(publication, offsets={**publication.offsets, **ends})

    def beside(self, topic: Topic) -> Topic:
        """Return a topic that has the sets as partitions."""

        def records(partition: int, start: int, end: int, chunk_ends: Iterable[int]) -> Iterator[Chunk]:
            if partition in self.sets:
                return self._chunks(self.sets[partition], start, end)
            return topic.records(partition, start, end, chunk_ends)

        starts, ends = dict.fromkeys(self.sets, 0), {partition: each.end for partition, each in self.sets.items()}
        return replace(topic, starts={**topic.starts, **starts}, ends={**topic.ends, **ends}, records=records)

    def _chunks(self, files: FileSet, start: int, end: int) -> Iterator[Chunk]:
        """Yield the records of the files that are as they were loaded."""
        unread = self._unread(files.partition)
        for number, file in enumerate(files.files):
            row = 0
            if file.address in unread or offset_in_set(number + 1) <= start or offset_in_set(number) >= end:
                continue
            for values in payloads(self.settings, file.address, files.form, files.literals):
                first, row = offset_in_set(number, row), row + len(values)
                if offset_in_set(number, row) > start:
                    yield Chunk(files.partition, first, offset_in_set(number, row), _records(files, first, values))

    def _unread(self, partition: int) -> set[str]:
        return {name for each in self.checks if each.partition == partition for name in (*each.gone, *each.changed)}

    def unread_spans(self, partition: int) -> list[tuple[int, int]]:
        """Return the offsets [start, end) of the files that cannot be compared."""
        unread = self._unread(partition)
        files = self.sets[partition].files if partition in self.sets else ()
        return [(offset_in_set(n), offset_in_set(n + 1)) for n, file in enumerate(files) if file.address in unread]

    def findings(self, table: str) -> Iterator[Finding]:
        """Yield each file that has changed."""
        for each in self.checks:
            numbers = {file.address: number for number, file in enumerate(self.sets[each.partition].files)}
            for address, how in each.changed.items():
                start, end = offset_in_set(numbers[address]), offset_in_set(numbers[address] + 1)
                detail = f"{address} has changed since {each.plan} loaded it: {how}; its records were not compared"
                yield Finding(FindingKind.different, table, 1, detail, each.partition, start, end)


def _records(files: FileSet, first: int, values: pa.Array) -> pl.DataFrame:
    """Return records with the columns of Kafka's."""
    frame = pl.DataFrame({"value": pl.Series(values, dtype=pl.Binary)})
    made = {
        "offset": pl.int_range(first, first + frame.height, dtype=pl.Int64),
        "timestamp": pl.lit(int(files.planned_at.timestamp() * 1000), pl.Int64),
        "timestamp_type": pl.lit(LOADED, pl.Int32),
    }
    columns = [
        made.get(name, pl.col("value") if name == "value" else pl.lit(None)).cast(kind).alias(name)
        for name, kind in RECORD.items()
    ]
    return frame.select(columns)


def loaded_files(settings: Settings, sets: Sequence[FileSet]) -> LoadedFiles:
    """Look at the files of the sets. Raises `files-unreadable`."""
    return LoadedFiles(settings, {each.partition: each for each in sets}, tuple(_check(settings, s) for s in sets))


def _check(settings: Settings, files: FileSet) -> FileSetCheck:
    found = {file.address: how_changed(settings, *astuple(file)) for file in files.files}
    gone = [address for address, how in found.items() if how == GONE]
    changed = {address: how for address, how in found.items() if how and how != GONE}
    return FileSetCheck(files.plan, files.partition, len(files.files), gone, changed)
