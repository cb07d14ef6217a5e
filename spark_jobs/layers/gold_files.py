"""Which files of a gold table a change rewrites, and how its new files are cut (adr-0007).

A *piece* is a small file of one range of grains. A large partition of which a run changes few rows is cut into pieces,
so that the next run rewrites those that may hold its grains and no others.
"""

from __future__ import annotations

import re
import shutil
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import AtomicType

from include.declare.event_times import FIRST, LAST, after, before
from include.declare.gold import Gold
from include.declare.windows import Start, Window
from include.ground.durable_files import name_by_checksum
from spark_jobs.tables.data_files import (
    HIVE_NULL,
    Bound,
    DataFile,
    TableSpec,
    bounds_of,
    chunks_by_rows,
    may_have_nulls,
    written_file,
)
from spark_jobs.tables.delta_table import Table

Spans = Sequence[tuple[Bound, Bound]] | None
"""None: the bounds are not known, so every file may be concerned."""
Grain = tuple[Any, ...]
# (0, None) for null, (1, value), (2, None) above every value: Python cannot compare null with a value.
Key = tuple[tuple[int, Any], ...]
PIECE = re.compile(r"piece-(\d+)-[^/]*$")
"""The name of a piece, with the batch after which it was cut."""
MOST_GRAINS = 10_000
"""A larger change touches most pieces anyway: spans select its files."""
MOST_ROWS = 1_000_000
"""Rows sorted in memory at once; Spark writes no larger files."""
MOST_COMPACTED = 250_000
"""Rows of a file of gold that compaction writes. The next late record has it written again: 2,000,000 rows took 6 s."""
YOUNG = 10_000
"""Batches after which neighbouring pieces that were not cut again may be compacted."""


@dataclass(frozen=True)
class PiecePolicy:
    """When the files of a partition are cut, and into pieces of which size.

    They are cut when they have more than `uncut` bytes, or replace pieces, and `rewritten` rows for each changed one.
    The size of a piece grows with the square root of the table's: what a run rewrites and what its commit costs, which
    is proportional to the number of files, grow alike. The least is `smallest` bytes.
    """

    smallest: int = 32 << 10
    uncut: int = 512 << 10
    rewritten: int = 32

    def piece_size(self, table_size: int) -> int:
        return max(self.smallest, int(4 * table_size**0.5))


PIECES = PiecePolicy()


@dataclass(frozen=True)
class Grains:
    """The grains of a change: `spans` of `column` hold them all; `exact` returns each, None when they are too many.

    `since`: the event time of the first row of silver that counts for one of them; None for all rows.
    """

    column: str
    spans: Spans
    exact: Callable[[], set[Grain] | None]
    since: datetime | None = None


def rows_of(files: Sequence[DataFile]) -> int:
    """Return the rows of files of a table."""
    return sum(file.rows for file in files)


def touched_spans(gold: Gold, fresh: Sequence[DataFile]) -> Spans:
    """Return the spans of the first column of the grain in which the grains of rows in files of silver lie."""
    window, spans = gold.window, [] if gold.only_adds else silver_spans(gold, fresh)
    if window is None or spans is None:
        return spans
    return [window_bounds(window, low, high) for low, high in spans]


def silver_spans(gold: Gold, fresh: Sequence[DataFile]) -> Spans:
    """Return the bounds of the pruning column in files of silver."""
    column = gold.pruning_column
    known = [(f.low[column], f.high[column]) for f in fresh if f.nulls.get(column) == 0 and column in f.low]
    return known if len(known) == len(fresh) else None


def window_bounds(window: Window, low: Bound, high: Bound) -> tuple[Start, Start]:
    """Return the starts of the first and the last window that rows between two moments lie in."""
    earliest, latest = window.starts(_moment(low)), window.starts(_moment(high))
    # Before the first window that slides, rows lie in none.
    first = earliest or latest or [_moment(low)]
    return first[0], (latest or first)[-1]


def _rows_of(paths: Sequence[Path], columns: Sequence[str], most: int = MOST_GRAINS) -> set[Grain] | None:
    if sum(int(pq.read_metadata(path).num_rows) for path in paths) > most:
        return None
    tables = [pq.read_table(path, columns=list(columns), partitioning=None) for path in paths]
    return {row for table in tables for row in zip(*(table[name].to_pylist() for name in columns), strict=True)}


def column_spans(written: Sequence[Path], column: str) -> Spans:
    """Return the spans of a column in files, from their footers; None: not known, as with a null, which has none."""
    if any(may_have_nulls(path, column) for path in written):
        return None
    found = [bounds for path in written for bounds in bounds_of(path, (column,))]
    known = [(low[column], high[column]) for low, high in found if column in low]
    return known if len(known) == len(found) else None


def files_within(table: Table, column: str, spans: Spans) -> list[DataFile]:
    """Return the files that may hold a row with `column` in one of the spans."""
    if spans is None:
        return table.files()
    return [file for file in table.files() if any(file.overlaps(column, low, high) for low, high in spans)]


def history_since(gold: Gold, oldest: datetime | None) -> datetime | None:
    """Return the event time since which rows count for grains that rows touch, of which this is the oldest."""
    # The newest row of each grain is no older.
    return None if gold.within is None or oldest is None else before(oldest, gold.within.length)


def history_of(gold: Gold, fresh: Sequence[DataFile]) -> datetime | None:
    """Return the event time since which rows count for the grains that files of silver touch."""
    name = gold.within.column if gold.within else ""
    known = [_moment(file.low[name]) for file in fresh if name in file.low and file.nulls.get(name) == 0]
    return history_since(gold, min(known) if known and len(known) == len(fresh) else None)


def silver_within(gold: Gold, silver: Table, spans: Spans, since: datetime | None = None) -> list[DataFile]:
    """Return silver's files that may have rows of grains whose first column is in one of the spans, `since` a time."""
    window = gold.window
    if window is not None and spans is not None:
        spans = [(window.begin(_start(low)), window.end(_start(high))) for low, high in spans]
    found = files_within(silver, gold.pruning_column, spans)
    if since is not None and gold.within is not None:
        found = [file for file in found if file.overlaps(gold.within.column, since, LAST)]
    if not gold.everywhere or spans is None:
        return found
    # What belongs to each grain has no keys.
    keyless = [file for file in silver.files() if file.nulls.get(gold.pruning_column) != 0]
    return list({file.path: file for file in (*found, *keyless)}.values())


def _start(bound: Bound) -> Start:
    assert isinstance(bound, date), f"a window begins at {bound!r}"
    return bound


def _moment(bound: Bound) -> datetime:
    assert isinstance(bound, datetime), f"a time has the bound {bound!r}"
    return bound


def _holding(files: Sequence[DataFile], columns: Sequence[str], grains: set[Grain]) -> list[DataFile]:
    keys = sorted(_key(grain) for grain in grains)
    ranges = sorted(((*_range(file, columns), file) for file in files), key=lambda each: each[0])
    lowest = [low for low, _, _ in ranges]
    before = {max(bisect_right(lowest, key) - 1, 0) for key in keys}
    return [file for n, (*bounds, file) in enumerate(ranges) if n in before or _has_one_of(keys, *bounds)]


def _has_one_of(keys: Sequence[Key], low: Key, high: Key) -> bool:
    between = keys[bisect_left(keys, low) : bisect_right(keys, high)]
    return any(all(a <= b <= c for a, b, c in zip(low, key, high, strict=True)) for key in between)


def _key(grain: Grain) -> Key:
    return tuple((0, None) if value is None else (1, value) for value in grain)


def _range(file: DataFile, columns: Sequence[str]) -> tuple[Key, Key]:
    """Return a lower and an upper bound of each column of a file: a text may be too long for a bound in the log."""
    low, high = list[tuple[int, Any]](), list[tuple[int, Any]]()
    for name in columns:
        is_known = name in file.low and name in file.high
        low.append((1, file.low[name]) if is_known and file.nulls.get(name) == 0 else (0, None))
        only_nulls = file.nulls.get(name) == file.rows
        high.append((1, file.high[name]) if is_known else (0, None) if only_nulls else (2, None))
    return tuple(low), tuple(high)


def is_piece(file: DataFile) -> bool:
    """Whether the file was cut to be small."""
    return PIECE.search(file.path) is not None


def _cut(
    spec: TableSpec, columns: Sequence[str], files: Sequence[DataFile], edges: Sequence[Key], size: int, name: str
) -> list[DataFile]:
    """Replace files of one partition by pieces of about `size` bytes that begin at the `edges`, or between two."""
    paths = [spec.path / file.path for file in files]
    rows = pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths]).replace_schema_metadata(None)
    rows = rows.sort_by([(name, "ascending", "at_start") for name in columns]).combine_chunks()
    most = max(1, size * len(rows) // sum(file.size for file in files))
    written = _write_pieces(spec, columns, rows, edges, most, paths[0].with_name(name))
    for path in paths:
        path.unlink()
    return written


def _partitions(rows: pa.Table, column: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each partition, without its column; Spark too takes an empty text for no partition."""
    values = pc.if_else(pc.equal(rows[column], ""), None, rows[column])
    for value in pc.unique(values).to_pylist():
        chosen = pc.is_null(values) if value is None else pc.equal(values, value)
        yield HIVE_NULL if value is None else value, rows.filter(chosen).drop_columns([column]).combine_chunks()


def _write_pieces(
    spec: TableSpec, columns: Sequence[str], rows: pa.Table, edges: Sequence[Key], most: int, name: Path
) -> list[DataFile]:
    """Write sorted rows of one partition into files of about `most` rows that begin at the `edges`, or between two."""

    def key(number: int) -> Key:
        return _key(tuple(rows[name][number].as_py() for name in columns))

    starts = [bisect_left(range(len(rows)), edge, key=key) for edge in edges]
    bounds = [0, *starts, len(rows)]
    cuts = sorted({cut for low, high in pairwise(bounds) for cut in _evenly(low, high, most)} | {len(rows)})
    written = []
    for number, (low, high) in enumerate(pairwise(cuts)):
        path = name.with_name(f"{name.name}-{number:05}.parquet")
        pq.write_table(rows.slice(low, high - low), path, compression="zstd", store_schema=False)
        written.append(written_file(spec, name_by_checksum(path)))
    return written


def _evenly(low: int, high: int, most: int) -> Iterator[int]:
    """Yield where the parts of rows [low, high) begin; a part has at most one and a half times `most` rows."""
    parts = max(1, round((high - low) / most))
    yield from (low + (high - low) * part // parts for part in range(parts) if high > low)


@dataclass(frozen=True)
class GoldTable:
    """A gold table of a release: its declaration, its table, the session of its queries, and its app id."""

    gold: Gold
    table: Table
    spark: SparkSession
    app_id: str
    pieces: PiecePolicy = PIECES

    @cached_property
    def grain_columns(self) -> Sequence[str]:
        return self.gold.grain_columns

    def grains_of_silver(self, silver: Table, fresh: Sequence[DataFile]) -> Grains:
        """Return the grains of all rows in these files of silver."""
        paths, gold = [silver.spec.path / file.path for file in fresh], self.gold
        window = gold.window
        if gold.over is not None:
            # Keys may be of elements: only their rows have them.
            return Grains(gold.grain_columns[0], touched_spans(gold, fresh), lambda: None)
        if window is None:
            spans = silver_spans(gold, fresh)
            is_of_all = gold.everywhere and spans is None
            return Grains(gold.keys[0], spans, lambda: None if is_of_all else _rows_of(paths, gold.keys))

        def exact() -> set[Grain] | None:
            rows = _rows_of(paths, (window.column, *gold.keys), MOST_GRAINS // window.count)
            if rows is None:
                return None
            return {(start, *keys) for moment, *keys in rows for start in window.starts(moment)}

        return Grains(window.name, touched_spans(gold, fresh), exact)

    def files_with(self, written: Sequence[Path]) -> list[DataFile]:
        """Return the files that may hold one of the grains in these files."""
        spans = column_spans(written, self.grain_columns[0])
        return self.touched_files(Grains(self.grain_columns[0], spans, lambda: _rows_of(written, self.grain_columns)))

    def touched_files(self, grains: Grains) -> list[DataFile]:
        """Return the files that may hold one of the grains.

        Of a table with pieces also the file before a new grain, so that the grain enlarges it and gets no own file.
        """
        files = files_within(self.table, grains.column, grains.spans)
        is_small = len(files) == 1 or sum(file.size for file in files) <= self.pieces.uncut
        if (is_small and not any(is_piece(file) for file in files)) or not self._is_ordered:
            return files
        exact = grains.exact()
        # A NaN has no place in an order, and bounds leave it out.
        if exact is None or any(value != value for grain in exact for value in grain):  # noqa: PLR0124
            return files
        return _holding(self.table.files(), self.grain_columns, exact)

    def near_sessions(self, fresh: Sequence[DataFile], files: list[DataFile]) -> list[DataFile]:
        """Return those files that may have a session within the gap of rows in the silver files `fresh`."""
        session = self.gold.session
        if session is None:
            return files
        times = [(file.low[session.column], file.high[session.column]) for file in fresh]
        reach = [(before(_moment(low), session.gap), after(_moment(high), session.gap)) for low, high in times]
        return [
            file
            for file in files
            if any(
                file.overlaps(session.end, low, LAST) and file.overlaps(session.start, FIRST, high)
                for low, high in reach
            )
        ]

    def old_neighbours(self, batch: int) -> dict[str, tuple[str, int]]:
        """Return the group key of each file that may be compacted, in the order of their grains.

        Files between the same two young pieces share one.

        A piece is young when one of the `YOUNG` batches before `batch` cut it.
        """
        columns, keys, number = self.grain_columns, dict[str, tuple[str, int]](), 0
        for file in sorted(self.table.files(), key=lambda each: (str(each.partition), _range(each, columns)[0])):
            piece = PIECE.search(file.path)
            if piece and batch - int(piece[1]) < YOUNG:
                number += 1
            else:
                keys[file.path] = file.partition, number
        return keys

    def cut_files(self, added: Sequence[DataFile], old: Sequence[DataFile], changed: int, batch: int) -> list[DataFile]:
        """Cut uncommitted files, which replace `old` and have `changed` rows of `batch`, where that pays.

        Return the files to commit.
        """
        table, columns, policy = self.table, self.grain_columns, self.pieces
        if sum(file.rows for file in added) < policy.rewritten * changed or not self._is_ordered:
            return list(added)
        size = policy.piece_size(sum(file.size for file in table.files()))
        months, result = defaultdict[str, list[DataFile]](list), list[DataFile]()
        for file in added:
            months[file.partition].append(file)
        for month, files in months.items():
            replaced = [file for file in old if file.partition_text == month]
            if sum(file.size for file in files) <= policy.uncut and not any(is_piece(file) for file in replaced):
                result += files
                continue
            # A piece that is replaced keeps its range: between two of them lie pieces that are not.
            edges = sorted(_range(file, columns)[0] for file in replaced)[1:]
            for number, group in enumerate(chunks_by_rows(files, MOST_ROWS)):
                result += _cut(table.spec, columns, group, edges, size, f"piece-{batch}-{number}")
        return result

    def write_rows(
        self, rows: pa.Table, folder: Path, old: Sequence[DataFile], changed: int, batch: int
    ) -> list[DataFile]:
        """Write rows that are sorted by partition and grain and replace `old`, cut where `cut_files` would cut them.

        `changed` of them are of `batch`. Return the files to commit.
        """
        shutil.rmtree(folder, ignore_errors=True)
        table, policy, columns = self.table, self.pieces, self.grain_columns
        there = table.files()
        bytes_of_row = max(
            1, sum(file.size for file in there) // max(1, table.rows) or rows.nbytes // max(1, len(rows))
        )
        size, result = policy.piece_size(sum(file.size for file in there)), list[DataFile]()
        for month, part in _partitions(rows, table.spec.partition):
            replaced = [file for file in old if file.partition_text == month]
            is_small = len(part) * bytes_of_row <= policy.uncut and not any(is_piece(file) for file in replaced)
            is_whole = is_small or len(rows) < policy.rewritten * changed
            edges = [] if is_whole else sorted(_range(file, columns)[0] for file in replaced)[1:]
            most = len(part) if is_whole else max(1, size // bytes_of_row)
            partition_folder = folder / f"{table.spec.partition}={quote(month, safe='')}"
            partition_folder.mkdir(parents=True)
            name = "part" if is_whole else f"piece-{batch}-0"
            result += _write_pieces(table.spec, columns, part, edges, most, partition_folder / name)
        return result

    @cached_property
    def _is_ordered(self) -> bool:
        """Whether the grains can be sorted: a key may be a list or a struct."""
        schema = self.table.spec.schema
        return all(isinstance(schema[name].dataType, AtomicType) for name in self.grain_columns)
