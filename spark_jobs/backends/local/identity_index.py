"""Index of identities: where silver has rows with a given hash. Derived from silver; no verdict depends on it.

A *place* is Kafka's partition and offset of a record in 64 bits. A *segment* is a set of (hash of the identity, place)
in two files, sorted by hash. Each addition is a segment; `FACTOR` segments of similar size are merged into one, as in
an LSM tree, so an index of n entries has O(log n + n / LARGEST) segments. Look-ups are binary searches in memory-mapped
files: memory is page cache. A place that silver has no longer costs one comparison. Segments of mostly expired records
are dropped. After a crash `index.json` names complete segments or is absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from include.state.json_file import JsonFile

Words = NDArray[np.uint64]
OFFSET_BITS = 48
PARTITIONS = (1 << 64 - OFFSET_BITS) - 1
NOWHERE = np.uint64(2**64 - 1)
"""The place of a row whose partition or offset is null or beyond any of Kafka's: no record is there."""


def packed_places(partitions: NDArray[np.int64], offsets: NDArray[np.int64]) -> Words:
    """Return the places of partitions below PARTITIONS and offsets of at most OFFSET_BITS bits."""
    return (partitions.astype(np.uint64) << np.uint64(OFFSET_BITS)) | offsets.astype(np.uint64)


def unpacked_places(places: Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return partitions and offsets of places."""
    offsets = places & np.uint64((1 << OFFSET_BITS) - 1)
    return (places >> np.uint64(OFFSET_BITS)).astype(np.int64), offsets.astype(np.int64)


def places_in(batch: pa.RecordBatch, names: Sequence[str]) -> Words:
    """Return the places of rows; `names` are their columns of partition and offset."""
    partitions, offsets = (pc.fill_null(batch[name], -1).to_numpy() for name in names)
    is_somewhere = (partitions >= 0) & (partitions < PARTITIONS) & (offsets >= 0) & (offsets < 1 << OFFSET_BITS)
    return np.where(is_somewhere, packed_places(partitions, offsets), NOWHERE)


def are_in(values: Words, in_order: Words) -> NDArray[np.bool_]:
    """Return which of the values are among those `in_order`."""
    if not len(in_order):
        return np.zeros(len(values), bool)
    return np.asarray(in_order.take(np.searchsorted(in_order, values), mode="clip") == values)


FACTOR = 8
SMALLEST = 4096
"""Segments below this size are of one tier."""
LARGEST = 16_000_000
"""Entries of the largest merged segment: merging one takes about a second."""
SLICE = 2_000_000
"""Entries that are in memory at once during a merge."""
BLOCK = 1024
"""Hashes that are searched for at once, in a part of a segment that the cache holds."""
DENSE = 256
"""Entries of a segment for each hash that is searched for, above which searching in blocks is slower."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Beyond every timestamp, and far from overflow of 64 bits.
LONGEST_HORIZON_US = 10**18


@dataclass(frozen=True)
class SegmentRecord:
    """One segment in `index.json`; `since` and `until` are the bounds of its event times, microseconds UTC."""

    name: str
    rows: int
    since: int
    until: int


@dataclass(frozen=True)
class IndexRecord:
    """`index.json`: how identities are hashed, and which versions of silver are covered.

    Rows of version `built` and all rows added up to `version` are indexed; `digest` is of that version's commit file.
    `boot`: of the machine that wrote it. Segments are not synced, so another boot may find them without content.
    """

    hashing: str
    built: int
    version: int
    digest: str
    segments: tuple[SegmentRecord, ...]
    boot: str = ""


@dataclass(frozen=True)
class Segment:
    """An open segment: its record and its two memory-mapped columns."""

    record: SegmentRecord
    hashes: Words
    places: Words


@dataclass(frozen=True)
class Identities:
    """Columns of equal length, sorted by hash: hash of the identity, event time in microseconds UTC, place."""

    hashes: Words
    times: NDArray[np.int64]
    places: Words

    def taken(self, chosen: NDArray[np.bool_]) -> Identities:
        """Return the chosen entries."""
        return Identities(self.hashes[chosen], self.times[chosen], self.places[chosen])

    def sharing(self, hashes: Words) -> NDArray[np.bool_]:
        """Return which entries have one of these sorted hashes, or that of another entry."""
        found = are_in(self.hashes, hashes)
        same = self.hashes[1:] == self.hashes[:-1]
        found[1:] |= same
        found[:-1] |= same
        return found


class IndexDamaged(Exception):
    """A segment's files do not have the entries that `index.json` names."""


def index_file(folder: Path) -> JsonFile[IndexRecord]:
    """Return the index's list of segments. Not durable: its segments are not either, and it can be derived again."""
    return JsonFile(folder / "index.json", IndexRecord, consequence="the index is rebuilt", durable=False)


def boot_id() -> str:
    """Return the id of this boot of the machine, "" where the system has none."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def find_places(segments: Sequence[Segment], given: Identities, horizon_us: int) -> tuple[Words, Words]:
    """Return the sorted places of entries that share a hash with `given` and may lie within the horizon of it.

    The second result are the sorted hashes that they share.
    """
    found, shared = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    if len(given.hashes):
        horizon = min(horizon_us, LONGEST_HORIZON_US)
        first, last = given.times.min(), given.times.max()
        for segment in segments:
            since, until = segment.record.since - horizon, segment.record.until + horizon
            if first > until or last < since:
                continue
            is_near = since <= first and last <= until
            hashes = given.hashes if is_near else given.hashes[(given.times >= since) & (given.times <= until)]
            places, hits = _places_in(segment, hashes)
            found.append(places)
            shared.append(hits)
    return np.unique(np.concatenate(found)), np.unique(np.concatenate(shared))


def _places_in(segment: Segment, hashes: Words) -> tuple[Words, Words]:
    """Return the places of a segment's entries that have one of these sorted hashes, and these hashes."""
    first = _positions(segment.hashes, hashes)
    hit = segment.hashes.take(first, mode="clip") == hashes
    first, shared = first[hit], hashes[hit]
    counts = np.searchsorted(segment.hashes, shared, side="right") - first
    start = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.asarray(segment.places[start + np.arange(counts.sum())]), shared


def _positions(column: Words, hashes: Words) -> NDArray[np.int64]:
    """Return `searchsorted` of sorted hashes; faster where they are few, and where they are dense in the column."""
    if len(hashes) * DENSE < len(column):
        return _interpolated_positions(column, hashes)
    found = np.empty(len(hashes), np.int64)
    edges = [*np.searchsorted(column, hashes[::BLOCK]).tolist(), len(column)]
    for block, (low, high) in enumerate(pairwise(edges)):
        chosen = slice(block * BLOCK, (block + 1) * BLOCK)
        found[chosen] = np.searchsorted(column[low:high], hashes[chosen]) + low
    return found


def _interpolated_positions(column: Words, hashes: Words) -> NDArray[np.int64]:
    """Return `searchsorted`, all hashes at once: uniform ones lie within a few square roots of where they are expected.

    The memory then answers many look-ups at a time instead of one after the other.
    """
    rows, reach = len(column), 64 + 4 * isqrt(len(column))
    expected = (hashes.astype(np.float64) * (rows / 2**64)).astype(np.int64)
    low, high = np.maximum(expected - reach, 0), np.minimum(expected + reach, rows)
    missed = (low > 0) & (column.take(low - 1, mode="clip") >= hashes)
    missed |= (high < rows) & (column.take(high, mode="clip") < hashes)
    while (low < high).any():
        middle = (low + high) >> 1
        is_less = column.take(middle, mode="clip") < hashes
        low, high = np.where(is_less & (low < high), middle + 1, low), np.where(is_less, high, middle)
    low[missed] = np.searchsorted(column, hashes[missed])
    return low


def with_identities(folder: Path, segments: Sequence[Segment], added: Identities) -> list[Segment]:
    """Write a segment with the added entries, merge what is due; return the segments then. Removes no file."""
    found = with_segment(folder, segments, added)
    while due := due_for_merge(found):
        found = with_merged(found, due, merged(folder, due, uuid4().hex))
    return found


def with_segment(folder: Path, segments: Sequence[Segment], added: Identities) -> list[Segment]:
    """Write a segment with the added entries, if there are any; return the segments then."""
    if not len(added.hashes):
        return list(segments)
    since, until = int(added.times.min()), int(added.times.max())
    return [*segments, _written(folder, since, until, added.hashes, added.places)]


def without_expired(folder: Path, segments: Sequence[Segment], ends: Mapping[int, int]) -> list[Segment]:
    """Return the segments without those of which most records lie before the `ends` of their Kafka partitions.

    What is left of such a segment becomes a new one. Removes no file.
    """
    kept: list[Segment] = []
    for segment in segments:
        is_left = ~_is_before(segment.places, ends)
        if 2 * np.count_nonzero(is_left) >= segment.record.rows:
            kept.append(segment)
        elif is_left.any():
            since, until = segment.record.since, segment.record.until
            kept.append(_written(folder, since, until, segment.hashes[is_left], segment.places[is_left]))
    return kept


def _is_before(places: Words, ends: Mapping[int, int]) -> NDArray[np.bool_]:
    found = np.zeros(len(places), bool)
    for partition, end in ends.items():
        first, last = packed_places(np.array([partition, partition]), np.array([0, end]))
        found |= (places >= first) & (places < last)
    return found


def _written(folder: Path, since: int, until: int, hashes: Words, places: Words) -> Segment:
    """Write a segment of entries that are sorted by hash."""
    record = SegmentRecord(uuid4().hex, len(hashes), since, until)
    _column(folder, record.name, "hashes").write_bytes(hashes.tobytes())
    _column(folder, record.name, "places").write_bytes(places.tobytes())
    return open_segment(folder, record)


def due_for_merge(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments of the lowest tier that has FACTOR of them, LARGEST entries at most; empty without such."""
    tiers: dict[int, list[Segment]] = {}
    for segment in segments:
        tiers.setdefault(_tier(segment.record.rows), []).append(segment)
    due = [found for _, found in sorted(tiers.items()) if len(found) >= FACTOR]
    return next((found for found in due if sum(segment.record.rows for segment in found) <= LARGEST), [])


def with_merged(segments: Sequence[Segment], parts: Sequence[Segment], whole: Segment) -> list[Segment]:
    """Return the segments with `whole` instead of its parts."""
    names = {segment.record.name for segment in parts}
    return [segment for segment in segments if segment.record.name not in names] + [whole]


def _tier(rows: int) -> int:
    tier = 0
    while rows > SMALLEST:
        rows, tier = rows // FACTOR, tier + 1
    return tier


def merged(folder: Path, segments: Sequence[Segment], name: str) -> Segment:
    """Write one segment of several, with this name.

    Hashes are uniform, so equal ranges of them are slices of about equal size.
    """
    rows = 0
    slices = 1 + sum(segment.record.rows for segment in segments) // SLICE
    edges = np.array([2**64 * number // slices for number in range(1, slices)], np.uint64)
    cuts = [[0, *np.searchsorted(s.hashes, edges).tolist(), s.record.rows] for s in segments]
    with _column(folder, name, "hashes").open("wb") as hash_file, _column(folder, name, "places").open("wb") as places:
        for number in range(slices):
            parts = [slice(cut[number], cut[number + 1]) for cut in cuts]
            hashes = np.concatenate([s.hashes[part] for s, part in zip(segments, parts, strict=True)])
            order = np.argsort(hashes, kind="stable")
            hashes = hashes[order]
            at = np.concatenate([s.places[part] for s, part in zip(segments, parts, strict=True)])[order]
            # A rewritten file of silver has its rows a second time.
            new = np.ones(len(hashes), bool)
            new[1:] = (hashes[1:] != hashes[:-1]) | (at[1:] != at[:-1])
            hash_file.write(hashes[new].tobytes())
            places.write(at[new].tobytes())
            rows += int(new.sum())
    since, until = (min(s.record.since for s in segments), max(s.record.until for s in segments))
    return open_segment(folder, SegmentRecord(name, rows, since, until))


def open_segment(folder: Path, record: SegmentRecord) -> Segment:
    """Open a segment. Raises IndexDamaged unless both files have its rows."""
    columns = [_opened_column(_column(folder, record.name, column), record.rows) for column in ("hashes", "places")]
    return Segment(record, columns[0], columns[1])


def _opened_column(path: Path, rows: int) -> Words:
    try:
        column = np.memmap(path, np.uint64, mode="r")
    except (OSError, ValueError) as error:
        raise IndexDamaged(str(error)) from error
    if len(column) != rows:
        raise IndexDamaged(f"{path} has {len(column)} entries instead of {rows}")
    # A plain array over the mapped pages: indexing a memmap costs more for each call.
    return np.asarray(column)


def _column(folder: Path, name: str, column: str) -> Path:
    return folder / f"{name}.{column}"


def remove_other_segments(folder: Path, names: Collection[str]) -> None:
    """Remove files of segments without one of these names. Processes that have them open keep reading them."""
    for path in folder.iterdir():
        if path.suffix in {".hashes", ".places"} and path.stem not in names:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Merge:
    """A merge of `parts` into the segment `name`, which is complete when `whole` is done."""

    name: str
    parts: tuple[Segment, ...]
    whole: Future[Segment]


class SegmentMerges:
    """Merges the segments of an index, one tier at a time, for the process that owns it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: _Merge | None = None

    @property
    def unfinished(self) -> set[str]:
        """The name of the segment that is being written; nothing else names its files."""
        return {self._running.name} if self._running is not None else set()

    def begin(self, segments: Sequence[Segment]) -> None:
        """Begin the merge that is due, unless one is running."""
        parts = due_for_merge(segments) if self._running is None else []
        if parts:
            name = uuid4().hex
            pool = ThreadPoolExecutor(1, "segment-merge")
            self._running = _Merge(name, tuple(parts), pool.submit(merged, self._folder, parts, name))
            pool.shutdown(wait=False)

    def applied(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments with a merged one instead of its parts, once it is complete. Raises what merging raised.

        A merge of segments that are no longer there is given up.
        """
        done = self._running
        if done is None or not done.whole.done():
            return list(segments)
        self._running, names = None, {segment.record.name for segment in segments}
        if not all(part.record.name in names for part in done.parts):
            return list(segments)
        return with_merged(segments, done.parts, done.whole.result())
