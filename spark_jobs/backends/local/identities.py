"""Each identity once: which rows may share an identity, and which of them is the event (adr-0001).

Rows of silver are found at places of Kafka records: in memory if this process wrote them last, else in row groups. Most
duplicates follow their original within a run or two.

The index finds rows of silver by the hash of the identity (adr-0006); rows that it lacks are found by the bounds of
their files. Every row of silver with the identity of a given row, within the horizon, is among the candidates.
After a crash the index is advanced from the version that it names, or rebuilt from silver's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from include.declare.dataset import Dataset
from include.declare.event_times import after, before
from include.declare.pipeline import Pipeline
from include.ground.record_coordinates import COORDINATES, POSITION, RANK
from include.ground.sql_quoting import sql_names
from spark_jobs.backends.local.arrow_files import SUFFIX, Words, are_in, arrow_bounds, packed_places, unpacked_places
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session, session_for
from spark_jobs.backends.local.identity_index import Change, Identities, IdentityIndex, Written
from spark_jobs.tables.data_files import Bounds, DataFile, bounds_of
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
        return self.rows.take(self.row_at[chosen])

    def indexed_without(self, places: Words) -> PlacedRows:
        """Return the rows with the identities of those that are not at these sorted places.

        The others stay: rows are found by the places of identities, and to filter texts takes longer than all the rest.
        """
        is_left = ~are_in(self.identities.places, places)
        return PlacedRows(self.rows, self.places, self.identities.taken(is_left))


def identity_columns(dataset: Dataset) -> str:
    """Return the columns of an identity as SQL has them."""
    return sql_names(dataset.pipeline.identity)


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


class IdentityLookup:
    """Finds candidates in one release's silver; keeps its index advanced to the table's version if it `owns` both."""

    def __init__(self, dataset: Dataset, silver: Table, folder: Path, *, owns: bool) -> None:
        self._dataset, self._silver, self._owns = dataset, silver, owns
        hashing = f"duckdb {duckdb.__version__}: {identity_columns(dataset)}"
        self._index = IdentityIndex(silver, folder, hashing, self._of_files, owns=owns)
        self._horizon_us = dataset.pipeline.horizon // timedelta(microseconds=1)
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
        identities = (rows or self._identified(duck, name, given)).identities
        found = self._index.find(identities, self._horizon_us, self._written_identities)
        places, shared, unindexed, change = found
        self._note_change(change)
        recent, others = self._recent.find(places)
        files = silver.files()
        indexed = [file for file in files if file.path not in unindexed]
        newer = [file for file in files if file.path in unindexed]
        older = rows_at(others, silver, indexed, columns)
        duck.view_arrow(f"{name}_indexed", pa.concat_tables([older, *(each.cast(older.schema) for each in recent)]))
        duck.view_table(f"{name}_unindexed", silver, _files_within_bounds(newer, given, self._dataset.pipeline))
        duck.view_query(
            name, f"from {name}_indexed union all by name select {sql_names(columns)} from {name}_unindexed"
        )
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
        self._recent.clear()
        return self._index.build()

    def drop_expired(self, ends: Mapping[int, int]) -> None:
        """Drop what the index has mostly of records before these offsets by partition, which have expired."""
        self._note_change(self._index.advance(self._written_identities))
        self._index.drop_expired(ends)

    @property
    def _written_identities(self) -> Written | None:
        return (self._written[0], self._written[1].identities) if self._written is not None else None

    def _note_change(self, change: Change) -> None:
        """Keep the rows just written in memory, unless a patch may have changed the identity of a record there."""
        if change == "nothing":
            return
        written, self._written = self._written, None
        if change == "written" and written is not None:
            rows = written[1].rows.select(columns_with_identity(self._dataset, RANK))
            self._recent.add(written[1].places, rows)
        else:
            self._recent.clear()

    def _of_files(self, files: Sequence[DataFile]) -> Identities:
        with duckdb_session() as duck:
            duck.view_table("added", self._silver, files)
            return identify_rows(duck, self._dataset, "added").identities


def _files_within_bounds(files: Sequence[DataFile], given: Sequence[Path], pipeline: Pipeline) -> list[DataFile]:
    """Return the files that may hold an identity of the given rows: by their bounds on it and on event time.

    Bounds of the given rows are those of row groups or batches, so that one old record does not open all of silver.
    """
    if not files:
        return []
    columns = (pipeline.event_time, pipeline.identity[0])
    spans = [
        bounds for path in given for bounds in (arrow_bounds if path.suffix == SUFFIX else bounds_of)(path, columns)
    ]
    return [file for file in files if any(_may_share(file, low, high, pipeline) for low, high in spans)]


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
        marked = f"select hash({identity}) as _mark, {sql_names(columns_with_identity(dataset, columns))} from {rows}"
        duck.view_query(f"suspect_{name}", f"select * exclude (_mark) from ({marked}) semi join suspects using (_mark)")
    rank_copies(duck, dataset, "suspect_fresh", "suspect_known")


def rank_copies(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates`: coordinates of rows of `fresh` whose identity occurs earlier there or in `known`.

    Column `_winner` names the first one. Earlier means (ingest batch, partition, offset). All rows are sorted, so they
    should be those that may share an identity.
    """
    columns = {
        "coordinates": sql_names(columns_with_identity(dataset, COORDINATES)),
        "ranks": sql_names(columns_with_identity(dataset, RANK)),
        "rank": ", ".join(RANK),
    }
    sql = COPIES.format(identity=identity_columns(dataset), **columns, fresh=fresh, known=known)
    duck.create_table("duplicates", sql)


def _suspects(duck: DuckSession, identity: str, fresh: str, known: str) -> Words:
    """Return hashes that `fresh` has twice, or shares with `known`. Sorting takes a tenth of a group by's time."""
    marks = np.sort(duck.arrays(MARKS.format(identity=identity, rows=fresh))["_mark"])
    duck.view_arrow("marks", pa.table({"_mark": marks}))
    earlier = duck.arrays(f"{MARKS.format(identity=identity, rows=known)} semi join marks using (_mark)")["_mark"]
    return np.union1d(marks[1:][marks[1:] == marks[:-1]], earlier)


MARKS = "select _mark from (select hash({identity}) as _mark from {rows})"
COPIES = """
with compared as (
    select {coordinates}, true as _fresh from {fresh}
    union all by name
    select {ranks}, false as _fresh from {known}
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


GROUPS_AT_ONCE = 32
MOST_PARTITIONS = 64
"""Up to so many partitions of a row group have a span each; a group of more is one, as most of it is read anyway."""
Offsets = Mapping[int, NDArray[np.int64]]
"""Sorted offsets by Kafka partition."""
Spans = NDArray[np.int64]
"""First partition and offset, last partition and offset: a row of four for each file, row group or part of one."""
ANYWHERE = (0, 0, 2**62, 2**62)


def rows_at(places: Words, table: Table, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
    """Return the rows of these files at the sorted places, with these columns."""
    whole = to_arrow_schema(table.spec.data_schema, timezone="UTC")
    schema = pa.schema([whole.field(name) for name in columns])
    by_partition = _by_partition(places)
    found = [schema.empty_table()]
    for number in np.flatnonzero(_may_have(by_partition, _spans([(file.low, file.high) for file in files]))).tolist():
        found.extend(_rows_of_file(table.spec.path / files[number].path, places, by_partition, schema))
    return pa.concat_tables(found, promote_options="permissive")


def _rows_of_file(path: Path, places: Words, by_partition: Offsets, schema: pa.Schema) -> Iterator[pa.Table]:
    groups = _groups_with(path, by_partition)
    if not groups:
        return
    with pq.ParquetFile(path, pre_buffer=False) as source:
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            chosen = groups[first : first + GROUPS_AT_ONCE]
            rows = source.read_row_groups(chosen, columns=schema.names, use_threads=False).select(schema.names)
            if pa.string_view() in rows.schema.types:
                # As delta-rs writes texts; Arrow cannot filter them.
                rows = rows.cast(schema)
            here = packed_places(*(rows[name].to_numpy() for name in POSITION))
            yield rows.filter(pc.is_in(pa.array(here), pa.array(places)))


def _groups_with(path: Path, by_partition: Offsets) -> list[int]:
    """Return the row groups of a file that may have one of the offsets.

    A group of several Kafka partitions counts by its span of each: one span over all has nearly every place, once the
    offsets of partitions are far apart.
    """
    spans = _group_spans(path)
    near = np.flatnonzero(_may_have(by_partition, spans)).tolist()
    is_mixed = spans[:, 0] != spans[:, 2]
    return [
        group for group in near if not is_mixed[group] or _may_have(by_partition, _spans_in_group(path, group)).any()
    ]


@lru_cache(maxsize=1_000)
def _group_spans(path: Path) -> Spans:
    return _spans(bounds_of(path, POSITION))


@lru_cache(maxsize=10_000)
def _spans_in_group(path: Path, group: int) -> Spans:
    """Return the spans of each Kafka partition in a row group, that of the group if it has very many."""
    partition, offset = POSITION
    with pq.ParquetFile(path, pre_buffer=False) as source:
        rows = source.read_row_group(group, columns=list(POSITION), use_threads=False)
    found = rows.group_by(partition).aggregate([(offset, "min"), (offset, "max")])
    if found.num_rows > MOST_PARTITIONS:
        return _group_spans(path)[group : group + 1]
    columns = (found[name] for name in (partition, f"{offset}_min", partition, f"{offset}_max"))
    return np.stack([column.to_numpy().astype(np.int64) for column in columns], axis=1)


def _spans(bounds: Sequence[tuple[Bounds, Bounds]]) -> Spans:
    """Return spans; one whose bounds are unknown has every place."""
    found = [
        tuple(int(str(side[name])) for side in (low, high) for name in POSITION)
        if all(name in low for name in POSITION)
        else ANYWHERE
        for low, high in bounds
    ]
    return np.array(found, np.int64).reshape(-1, 4)


def _by_partition(places: Words) -> Offsets:
    partitions, offsets = unpacked_places(places)
    return {int(partition): offsets[partitions == partition] for partition in np.unique(partitions)}


def _may_have(by_partition: Offsets, spans: Spans) -> NDArray[np.bool_]:
    """Return which of the spans may have one of the offsets."""
    first, start, last, end = spans.T
    found = np.zeros(len(spans), bool)
    for partition, offsets in by_partition.items():
        has_one = np.searchsorted(offsets, start) < np.searchsorted(offsets, end, side="right")
        found |= (first <= partition) & (partition <= last) & has_one
    return found


RECENT_BYTES = 64_000_000
"""Of all rows together, with their places; more than that at once leave none."""
SHARE_OF_CHUNK = 8
"""A chunk that has this share of the bytes is not merged any more: the oldest are forgotten by whole chunks."""


@dataclass(frozen=True)
class _Chunk:
    """Rows, their sorted places, and which row is at each of these."""

    places: Words
    rows: pa.Table
    row_at: NDArray[np.int64]
    size: int
    """Bytes of the columns."""


class RecentRows:
    """The rows that were added last, as many as have `most_bytes` together, by place of their Kafka record.

    Small chunks are merged, so that there are as many as the logarithm of the rows, however small runs are.
    """

    def __init__(self, most_bytes: int = RECENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._chunks: list[_Chunk] = []

    def add(self, places: Words, rows: pa.Table) -> None:
        """Add rows at these places; forget the oldest chunks that exceed the limit."""
        if not len(places):
            return
        chunks = [*self._chunks, _sorted(places, rows, np.arange(len(places)))]
        while len(chunks) > 1 and self._may_merge(*chunks[-2:]):
            last = chunks.pop()
            chunks[-1] = _merged(chunks[-1], last)
        size = sum(chunk.size for chunk in chunks)
        while size > self._most_bytes:
            size -= chunks.pop(0).size
        self._chunks = chunks

    def clear(self) -> None:
        self._chunks = []

    def find(self, places: Words) -> tuple[list[pa.Table], Words]:
        """Return the rows at some of these places, and the places that have none here."""
        found, missing = list[pa.Table](), places
        for chunk in self._chunks:
            at = np.searchsorted(chunk.places, missing)
            is_here = chunk.places.take(at, mode="clip") == missing
            if is_here.any():
                found.append(chunk.rows.take(chunk.row_at[at[is_here]]))
                missing = missing[~is_here]
        return found, missing

    def _may_merge(self, older: _Chunk, newer: _Chunk) -> bool:
        return len(older.places) <= 2 * len(newer.places) and older.size <= self._most_bytes // SHARE_OF_CHUNK


def _merged(older: _Chunk, newer: _Chunk) -> _Chunk:
    places, rows = np.concatenate([older.places, newer.places]), pa.concat_tables([older.rows, newer.rows])
    return _sorted(places, rows, np.concatenate([older.row_at, newer.row_at + older.rows.num_rows]))


def _sorted(places: Words, rows: pa.Table, row_at: NDArray[np.int64]) -> _Chunk:
    """Return a chunk of rows, which stay where they are: to gather texts takes longer than all the rest."""
    # A stable sort takes places that ascend in a few long runs as they are, and merges them.
    order, whole = np.argsort(places, kind="stable"), rows.combine_chunks()
    return _Chunk(places[order], whole, row_at[order], int(places.nbytes + whole.nbytes + order.nbytes))
