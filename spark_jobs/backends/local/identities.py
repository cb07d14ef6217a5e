"""Each identity once: which rows may share an identity, and which of them is the event (adr-0001).

The index finds rows of silver by the hash of the identity (adr-0006); rows that it lacks are found by the bounds of
their files. Every row of silver with the identity of a given row, within the horizon, is among the candidates.
After a crash the index is advanced from the version that it names, or rebuilt from silver's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from include.declare.dataset import Dataset
from include.declare.event_times import after, before
from include.declare.pipeline import Pipeline
from include.ground.delta_log import Commit, commit_content, read_commit
from include.ground.record_coordinates import COORDINATES, RANK
from include.state.json_file import StateFileUnreadable
from spark_jobs.backends.local.arrow_files import SUFFIX, arrow_bounds
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session, session_for
from spark_jobs.backends.local.identity_index import (
    Identities,
    IndexDamaged,
    IndexRecord,
    Segment,
    SegmentMerges,
    Words,
    are_in,
    boot_id,
    find_places,
    index_file,
    open_segment,
    packed_places,
    remove_other_segments,
    with_identities,
    with_segment,
    without_expired,
)
from spark_jobs.backends.local.silver_rows import RecentRows, rows_at
from spark_jobs.tables.data_files import Bounds, DataFile, bounds_of, chunks_by_rows
from spark_jobs.tables.delta_table import Table

PLACE_SQL = "_partition::bigint as _place_partition, _offset as _place_offset"
"""A contract has no column whose name begins with an underscore."""
PLACED = ("_hash", "_time", "_place_partition", "_place_offset")


@dataclass(frozen=True)
class PlacedRows:
    """Rows with some columns, their places, and identities of some of them in the order of their hashes."""

    rows: pa.Table
    places: Words
    identities: Identities


@dataclass(frozen=True)
class IdentifiedRows(PlacedRows):
    """Rows with the identities of all of them; `row_at` says which row each of these is of."""

    row_at: NDArray[np.int64]

    def rows_of(self, chosen: NDArray[np.bool_]) -> pa.Table:
        """Return the rows of the chosen identities."""
        return self.rows.take(self.row_at[chosen])

    def indexed_without(self, places: Words) -> PlacedRows:
        """Return the rows with the identities of those that are not at these sorted places.

        The others stay: rows are found by the places of identities, and to filter texts takes longer than all the rest.
        """
        is_left = ~are_in(self.identities.places, places)
        return PlacedRows(self.rows, self.places, self.identities.taken(is_left))


def identity_columns(dataset: Dataset) -> str:
    """Return the columns of an identity as SQL has them."""
    return ", ".join(f'"{name}"' for name in dataset.pipeline.identity)


def columns_with_identity(dataset: Dataset, others: Sequence[str]) -> list[str]:
    """Return the columns of an identity and the others, each once."""
    return list(dict.fromkeys([*dataset.pipeline.identity, *others]))


def identify_files(dataset: Dataset, silver: Table, accepted: Sequence[Path], count: int) -> IdentifiedRows:
    """Return the rows of files, at most `count`, with silver's columns: identity and coordinates of them."""
    with session_for(count) as duck:
        duck.view_files("accepted", accepted, silver.spec.data_schema)
        return identify_rows(duck, dataset, "accepted", columns_with_identity(dataset, COORDINATES))


def identify_rows(duck: DuckSession, dataset: Dataset, view: str, columns: Sequence[str] = ()) -> IdentifiedRows:
    """Return the identities and some columns of the rows of a view; one without event time counts as of 1970."""
    time = f'coalesce(epoch_us("{dataset.pipeline.event_time}"), 0)::bigint as _time'
    names = [f"hash({identity_columns(dataset)}) as _hash", time, PLACE_SQL, *(f'"{column}"' for column in columns)]
    rows = duck.arrow(f"select {', '.join(names)} from {view}")
    hashes, times, partitions, offsets = (rows[name].to_numpy() for name in PLACED)
    order, places = np.argsort(hashes), packed_places(partitions, offsets)
    identities = Identities(hashes[order], times[order], places[order])
    return IdentifiedRows(rows.select(columns).combine_chunks(), places, identities, order)


ROWS_AT_ONCE = 2_000_000
"""Rows of silver that are indexed at once when the index is built."""
LONGEST_CATCH_UP = 1_000
"""Commits; an index that is further behind is rebuilt."""


class IdentityLookup:
    """Finds candidates in one release's silver; keeps its index advanced to the table's version if it `owns` both."""

    def __init__(self, dataset: Dataset, silver: Table, folder: Path, *, owns: bool) -> None:
        self._dataset, self._silver, self._folder, self._owns = dataset, silver, folder, owns
        self._hashing = f"duckdb {duckdb.__version__}: {identity_columns(dataset)}"
        self._record: IndexRecord | None = None
        self._segments: list[Segment] = []
        self._merges = SegmentMerges(folder)
        self._written: tuple[frozenset[str], PlacedRows] | None = None
        """Paths of files that were just written, and their rows."""
        self._recent = RecentRows()

    def view_candidates(
        self, duck: DuckSession, name: str, given: Sequence[Path], rows: IdentifiedRows | None = None
    ) -> None:
        """Create a view of identity and rank of the rows of silver that may share an identity with others.

        These others are the rows of the files `given`, Parquet or Arrow, with silver's columns. `rows`: the same as
        `identify_files` returns them; a view `…_sharing` then has identity and coordinates of those of them that may
        share it with a candidate or with each other.
        """
        silver, columns = self._silver, columns_with_identity(self._dataset, RANK)
        places, shared, unindexed = self._places((rows or self._identified(duck, name, given)).identities)
        recent, others = self._recent.find(places)
        indexed = [file for file in silver.files() if file.path not in unindexed]
        newer = [file for file in silver.files() if file.path in unindexed]
        found = rows_at(others, silver, indexed, columns)
        duck.view_arrow(f"{name}_indexed", pa.concat_tables([found, *(each.cast(found.schema) for each in recent)]))
        duck.view_table(f"{name}_unindexed", silver, _files_within_bounds(newer, given, self._dataset.pipeline))
        names = ", ".join(f'"{column}"' for column in columns)
        duck.view_query(name, f"from {name}_indexed union all by name select {names} from {name}_unindexed")
        if rows is not None:
            sharing = rows.rows if newer else rows.rows_of(rows.identities.sharing(shared))
            duck.view_arrow(f"{name}_sharing", sharing)

    def _identified(self, duck: DuckSession, name: str, given: Sequence[Path]) -> IdentifiedRows:
        duck.view_files(f"{name}_given", given, self._silver.spec.data_schema)
        return identify_rows(duck, self._dataset, f"{name}_given")

    def note_written(self, files: Sequence[DataFile], rows: PlacedRows) -> None:
        """Note that these files, committed next, have these rows: the index gets them without reading files."""
        if self._owns:
            self._written = frozenset(file.path for file in files), rows

    def rebuild(self) -> int:
        """Build the index again from silver's files, as its owner; return the number of its entries."""
        self._build()
        return sum(segment.record.rows for segment in self._segments)

    def drop_expired(self, ends: Mapping[int, int]) -> None:
        """Drop segments mostly of records before these offsets by partition, which have expired, as the owner."""
        self._advance()
        assert self._record is not None
        segments = without_expired(self._folder, self._segments, ends)
        self._save(replace(self._record, segments=tuple(segment.record for segment in segments)), segments)

    def _save(self, record: IndexRecord, segments: list[Segment]) -> None:
        index_file(self._folder).write(record)
        self._record, self._segments = record, segments
        remove_other_segments(self._folder, {*self._merges.unfinished, *(segment.record.name for segment in segments)})

    def _places(self, identities: Identities) -> tuple[Words, Words, set[str]]:
        """Return the candidates' places, the hashes that they share, and silver's files that the index lacks."""
        unindexed = self._advance() if self._owns else self._open()
        horizon = self._dataset.pipeline.horizon // timedelta(microseconds=1)
        return *find_places(self._segments, identities, horizon), unindexed

    def _advance(self) -> set[str]:
        """Bring the index to silver's version; build it when it is missing, damaged or of another table."""
        if not index_file(self._folder).path.exists():
            self._record = None
        try:
            if self._record is None:
                self._load()
            assert self._record is not None
            if self._record.version < self._silver.version:
                self._catch_up(self._record.version)
        except (IndexDamaged, FileNotFoundError):
            self._build()
        return set()

    def _open(self) -> set[str]:
        """Open the index as its owner left it; return the files of silver that were committed since."""
        silver = self._silver
        try:
            self._load()
            assert self._record is not None
            return {path for path, _ in _added_paths(_commits_after(silver, self._record.version))}
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

    def _build(self) -> None:
        """Build the index from silver's files, some of them at a time."""
        self._folder.mkdir(parents=True, exist_ok=True)
        index_file(self._folder).remove()
        self._record, self._segments = None, []
        self._recent.clear()
        self._add(self._silver.files())

    def _catch_up(self, version: int) -> None:
        """Add the rows that silver's commits after a version added."""
        commits = _commits_after(self._silver, version)
        paths = [path for path, data_change in _added_paths(commits) if data_change]
        known, self._written = self._written, None
        has_removed_rows = any(map(_removes_rows, commits))
        if has_removed_rows:
            self._recent.clear()
        if known is not None and known[0] == frozenset(paths):
            written = known[1]
            segments = with_segment(self._folder, self._merges.applied(self._segments), written.identities)
            self._merges.begin(segments)
            self._save_added(segments)
            if not has_removed_rows:
                self._recent.add(written.places, written.rows.select(columns_with_identity(self._dataset, RANK)))
        else:
            # A patch may have added a record that is in memory as a duplicate, with another identity.
            if paths:
                self._recent.clear()
            self._add(_files_at(self._silver, paths))

    def _add(self, files: Iterable[DataFile]) -> None:
        segments = list(self._segments)
        for some in chunks_by_rows(files, ROWS_AT_ONCE):
            with duckdb_session() as duck:
                duck.view_table("added", self._silver, some)
                added = identify_rows(duck, self._dataset, "added").identities
                segments = with_identities(self._folder, segments, added)
        self._save_added(segments)

    def _save_added(self, segments: list[Segment]) -> None:
        """Save the segments as those of silver's version."""
        version = self._silver.version
        built = version if self._record is None else self._record.built
        records = tuple(segment.record for segment in segments)
        record = IndexRecord(self._hashing, built, version, self._digest(version), records, boot_id())
        self._save(record, segments)

    def _digest(self, version: int) -> str:
        """Return a digest of a commit file: after a rollback, another commit may have the version."""
        try:
            return sha256(commit_content(self._silver.spec.path, version)).hexdigest()
        except FileNotFoundError as error:
            raise IndexDamaged(str(error)) from error


def _commits_after(silver: Table, version: int) -> list[Commit]:
    """Return silver's commits after a version."""
    return [read_commit(silver.spec.path, each) for each in range(version + 1, silver.version + 1)]


def _removes_rows(commit: Commit) -> bool:
    """Return whether a commit removes rows; compaction only moves them."""
    return commit.removed > 0 and (not commit.added or commit.added[0].data_change)


def _added_paths(commits: Iterable[Commit]) -> Iterator[tuple[str, bool]]:
    """Yield path and dataChange of the files that commits added."""
    for commit in commits:
        for file in commit.added:
            yield unquote(file.path), file.data_change


def _files_at(silver: Table, paths: Sequence[str]) -> list[DataFile]:
    """Return files with their row counts. Raises FileNotFoundError when one was replaced and deleted."""
    return [DataFile(path, "", pq.read_metadata(silver.spec.path / path).num_rows, 0) for path in paths]


def _files_within_bounds(files: Sequence[DataFile], given: Sequence[Path], pipeline: Pipeline) -> list[DataFile]:
    """Return the files that may hold an identity of the given rows: by their bounds on it and on event time.

    Bounds of the given rows are those of row groups or batches, so that one old record does not open all of silver.
    """
    if not files:
        return []
    columns = (pipeline.event_time, pipeline.identity[0])
    spans = [bounds for path in given for bounds in _bounds_in(path, columns)]
    return [file for file in files if any(_may_share(file, low, high, pipeline) for low, high in spans)]


def _bounds_in(path: Path, columns: Sequence[str]) -> Iterable[tuple[Bounds, Bounds]]:
    return arrow_bounds(path, columns) if path.suffix == SUFFIX else bounds_of(path, columns)


def _may_share(file: DataFile, low: Bounds, high: Bounds, pipeline: Pipeline) -> bool:
    time, identity = pipeline.event_time, pipeline.identity[0]
    if time not in low or identity not in low:
        return True
    first, last = low[time], high[time]
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    near = file.overlaps(time, before(first, pipeline.horizon), after(last, pipeline.horizon))
    return near and file.overlaps(identity, low[identity], high[identity])


def find_duplicates(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates` as `rank_copies` does, of any number of rows.

    A hash of the identity finds the few suspects; they alone are compared in full, so a collision costs time and
    nothing else.
    """
    identity = identity_columns(dataset)
    duck.view_arrow("suspects", pa.table({"_mark": _suspects(duck, identity, fresh, known)}))
    for name, rows, columns in (("fresh", fresh, COORDINATES), ("known", known, RANK)):
        marked = f"select hash({identity}) as _mark, {identity}, {', '.join(columns)} from {rows}"
        duck.view_query(f"suspect_{name}", f"select * exclude (_mark) from ({marked}) semi join suspects using (_mark)")
    rank_copies(duck, dataset, "suspect_fresh", "suspect_known")


def rank_copies(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates`: coordinates of rows of `fresh` whose identity occurs earlier there or in `known`.

    Column `_winner` names the first one. Earlier means (ingest batch, partition, offset). All rows are sorted, so they
    should be those that may share an identity.
    """
    identity, rank = identity_columns(dataset), ", ".join(RANK)
    columns = {"identity": identity, "coordinates": ", ".join(COORDINATES), "rank": rank}
    duck.create_table("duplicates", COPIES.format(**columns, fresh=fresh, known=known))


def _suspects(duck: DuckSession, identity: str, fresh: str, known: str) -> Words:
    """Return the hashes that several rows of `fresh` have, or one of them and one of `known`.

    Sorting them finds the former in a tenth of the time that a group by takes.
    """
    marks = np.sort(duck.arrays(MARKS.format(identity=identity, rows=fresh))["_mark"])
    duck.view_arrow("marks", pa.table({"_mark": marks}))
    earlier = duck.arrays(f"{MARKS.format(identity=identity, rows=known)} semi join marks using (_mark)")["_mark"]
    return np.union1d(marks[1:][marks[1:] == marks[:-1]], earlier)


MARKS = "select _mark from (select hash({identity}) as _mark from {rows})"
COPIES = """
with compared as (
    select {identity}, {coordinates}, true as _fresh from {fresh}
    union all by name
    select {identity}, {rank}, false as _fresh from {known}
),
ranked as (
    select
        *,
        row_number() over same as _place,
        first(concat_ws('/', _batch_id, _partition, _offset)) over same as _winner
    from compared
    window same as (partition by {identity} order by {rank})
)
select * exclude (_fresh, _place) from ranked where _place > 1 and _fresh
"""
