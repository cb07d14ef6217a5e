"""Index of identities: where silver has rows with a given hash. Derived from silver; no verdict depends on it.

A *segment* is a set of (hash of the identity, place)
in two files, sorted by hash. Each addition is a segment; `FACTOR` segments of similar size are merged into one, as in
an LSM tree, so an index of n entries has O(log n + n / LARGEST) segments. Look-ups are binary searches in memory-mapped
files: memory is page cache. A place that silver has no longer costs one comparison. Segments of mostly expired records
are dropped. After a crash `index.json` names complete segments or is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Literal
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from include.ground.delta_log import Commit, commit_content, read_commit
from include.state.json_file import JsonFile, StateFileUnreadable
from spark_jobs.backends.local.arrow_files import Words, are_in, packed_places
from spark_jobs.tables.data_files import DataFile, chunks_by_rows
from spark_jobs.tables.delta_table import Table

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
    """Return the sorted places that share a hash with `given` and may be within the horizon; and these hashes."""
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
    """Write one segment of several. Hashes are uniform, so equal ranges of them are slices of about equal size."""
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


LONGEST_CATCH_UP = 1_000
"""Commits; an index that is further behind is rebuilt."""
ROWS_AT_ONCE = 2_000_000
"""Rows of silver that are indexed at once when the index is built."""


Change = Literal["nothing", "written", "other"]
"""What silver's commits since the last look-up did: added the rows that were just written, or anything else."""
Found = tuple[Words, Words, Set[str], Change]
Identify = Callable[[Sequence[DataFile]], Identities]
Written = tuple[frozenset[str], Identities]
"""Paths of files that were just written, and the identities of their rows."""


class IdentityIndex:
    """The index of one release's silver: at the table's version if this process `owns` both, else as its owner left it.

    `identify` returns the identities of the rows of files; `hashing` says how it hashes them.
    """

    def __init__(self, silver: Table, folder: Path, hashing: str, identify: Identify, *, owns: bool) -> None:
        self._silver, self._folder, self._hashing, self._identify, self._owns = silver, folder, hashing, identify, owns
        self._record: IndexRecord | None = None
        self._segments: list[Segment] = []
        self._merges = SegmentMerges(folder)

    def find(self, given: Identities, horizon_us: int, written: Written | None) -> Found:
        """Return the sorted places of possible rows, the hashes shared, the files not indexed, what has changed."""
        change, unindexed = (self.advance(written), set[str]()) if self._owns else ("nothing", self._open())
        return *find_places(self._segments, given, horizon_us), unindexed, change

    def advance(self, written: Written | None = None) -> Change:
        """Bring the index to silver's version; build it when it is missing, damaged or of another table."""
        if not index_file(self._folder).path.exists():
            self._record = None
        try:
            if self._record is None:
                self._load()
            assert self._record is not None
            is_behind = self._record.version < self._silver.version
            return self._catch_up(self._record.version, written) if is_behind else "nothing"
        except (IndexDamaged, FileNotFoundError):
            self.build()
            return "other"

    def build(self) -> int:
        """Build the index from silver's files, some of them at a time; return the number of its entries."""
        self._folder.mkdir(parents=True, exist_ok=True)
        index_file(self._folder).remove()
        self._record, self._segments = None, []
        self._add(self._silver.files())
        return sum(segment.record.rows for segment in self._segments)

    def drop_expired(self, ends: Mapping[int, int]) -> None:
        """Drop segments mostly of records before these offsets by partition; the index is at silver's version."""
        assert self._record is not None
        segments = without_expired(self._folder, self._segments, ends)
        self._save(replace(self._record, segments=tuple(segment.record for segment in segments)), segments)

    def _catch_up(self, version: int, written: Written | None) -> Change:
        """Add the rows that silver's commits after a version added."""
        commits = [read_commit(self._silver.spec.path, each) for each in range(version + 1, self._silver.version + 1)]
        paths = [path for path, data_change in _added_paths(commits) if data_change]
        # Compaction only moves rows.
        removes_rows = any(each.removed and (not each.added or each.added[0].data_change) for each in commits)
        if written is not None and written[0] == frozenset(paths):
            segments = with_segment(self._folder, self._merges.applied(self._segments), written[1])
            self._merges.begin(segments)
            self._save_added(segments)
            return "other" if removes_rows else "written"
        self._add([DataFile(each, "", pq.read_metadata(self._silver.spec.path / each).num_rows, 0) for each in paths])
        return "other" if removes_rows or paths else "nothing"

    def _open(self) -> set[str]:
        """Open the index as its owner left it; return the files of silver that were committed since."""
        silver = self._silver
        try:
            self._load()
            assert self._record is not None
            since = range(self._record.version + 1, silver.version + 1)
            return {path for path, _ in _added_paths(read_commit(silver.spec.path, each) for each in since)}
        except IndexDamaged:
            self._record, self._segments = None, []
            return {file.path for file in silver.files()}

    def _load(self) -> None:
        """Open the index. Raises IndexDamaged when there is none for this table, as it is."""
        try:
            record = index_file(self._folder).read()
        except StateFileUnreadable as error:
            raise IndexDamaged(str(error)) from error
        if record is None or record.hashing != self._hashing:
            raise IndexDamaged("there is no index, or one of other hashes")
        if record.boot != boot_id():
            raise IndexDamaged("the machine has restarted, and segments are not synced")
        if record.version > self._silver.version if self._owns else record.built > self._silver.version:
            raise IndexDamaged("the table is older than the index")
        if self._silver.version - record.version > LONGEST_CATCH_UP or record.digest != self._digest(record.version):
            raise IndexDamaged("the table has other commits")
        self._segments = [open_segment(self._folder, segment) for segment in record.segments]
        self._record = record

    def _add(self, files: Iterable[DataFile]) -> None:
        segments = list(self._segments)
        for some in chunks_by_rows(files, ROWS_AT_ONCE):
            segments = with_identities(self._folder, segments, self._identify(some))
        self._save_added(segments)

    def _save_added(self, segments: list[Segment]) -> None:
        version = self._silver.version
        built = version if self._record is None else self._record.built
        records = tuple(segment.record for segment in segments)
        record = IndexRecord(self._hashing, built, version, self._digest(version), records, boot_id())
        self._save(record, segments)

    def _save(self, record: IndexRecord, segments: list[Segment]) -> None:
        index_file(self._folder).write(record)
        self._record, self._segments = record, segments
        remove_other_segments(self._folder, {*self._merges.unfinished, *(segment.record.name for segment in segments)})

    def _digest(self, version: int) -> str:
        """Return a digest of a commit file: after a rollback, another commit may have the version."""
        try:
            return sha256(commit_content(self._silver.spec.path, version)).hexdigest()
        except FileNotFoundError as error:
            raise IndexDamaged(str(error)) from error


def _added_paths(commits: Iterable[Commit]) -> Iterator[tuple[str, bool]]:
    for commit in commits:
        for file in commit.added:
            yield unquote(file.path), file.data_change
