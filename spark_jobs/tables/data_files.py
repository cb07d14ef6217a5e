"""A table's Parquet files: how they are written, their bounds (log or footer), their actions in a commit.

Executors of a cluster write files on other hosts, so what Spark writes into a folder is counted.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.ground.delta_log import add_actions
from include.ground.errors import Transient
from include.ground.stored_path import arrow_sink, arrow_source
from spark_jobs.tables.commit_log import Action

BATCH = "_batch_id"
# Whoever reads a file holds a row group of it in memory.
GROUP_BYTES = 16 << 20
# A look-up of one row reads its row group.
ROWS_PER_GROUP = 16_384
# More than a group of GROUP_BYTES can have.
ANY_ROWS = 1 << 30


@dataclass(frozen=True)
class ParquetWriting:
    """How Spark and `ParquetFile` write a table's files: no dictionary of columns `distinct`, no bounds of columns
    `unbounded`. Files that DuckDB writes are compressed by zstd. `rows_per_group`: at most, of `ParquetFile`.
    """

    distinct: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    compression: str = "snappy"
    rows_per_group: int = ANY_ROWS

    @property
    def spark_options(self) -> Mapping[str, str]:
        """The options of Spark's writer."""
        distinct = {f"parquet.enable.dictionary#{name}": "false" for name in self.distinct}
        unbounded = {f"parquet.column.statistics.enabled#{name}": "false" for name in self.unbounded}
        sizes = {"parquet.size.statistics.enabled": "false"} if distinct or unbounded else {}
        return {"compression": self.compression} | distinct | unbounded | sizes


class ParquetFile:
    """A new Parquet file: rows are added in batches, and written in row groups of bounded bytes and rows.

    Each group has `rows_per_group` rows, or at least half of GROUP_BYTES and at most one and a half unless a row has
    more; the last one may have less.
    """

    def __init__(self, sink: Any, schema: pa.Schema, writing: ParquetWriting) -> None:
        """`sink`: a path or a stream of Arrow."""
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression=writing.compression,
            use_dictionary=_all_but(writing.distinct, schema),
            write_statistics=_all_but(writing.unbounded, schema),
            store_schema=False,
            # As DuckDB and Spark do.
            store_decimal_as_integer=True,
        )
        self._rows_per_group = writing.rows_per_group
        self._pending: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, after those before."""
        first, most = 0, max(1, batch.num_rows * GROUP_BYTES // max(1, batch.nbytes))
        while first < batch.num_rows:
            part = batch.slice(first, min(most, self._rows_per_group - self._pending_rows()))
            self._pending.append(part)
            first += part.num_rows
            if self._pending_rows() == self._rows_per_group or self._pending_bytes() >= GROUP_BYTES // 2:
                self._write_pending()

    def close(self) -> None:
        """Write what is left, and the footer."""
        try:
            self._write_pending()
        finally:
            self._writer.close()

    def _pending_rows(self) -> int:
        return sum(each.num_rows for each in self._pending)

    def _pending_bytes(self) -> int:
        return sum(each.nbytes for each in self._pending)

    def _write_pending(self) -> None:
        # Rows whose writing fails, on a full disk, are not written again by `close`.
        pending, self._pending = self._pending, []
        if pending:
            self._writer.write_table(pa.Table.from_batches(pending), self._rows_per_group)


def _all_but(names: Sequence[str], schema: pa.Schema) -> bool | list[str]:
    """Return the columns without these; true for all, since Arrow's writer leaves out nested ones of a list."""
    return [name for name in schema.names if name not in names] if names else True


def write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path, writing: ParquetWriting) -> None:
    """Write rows into a new file, here or in a store."""
    with arrow_sink(path) as sink, closing(ParquetFile(sink, schema, writing)) as file:
        for batch in batches:
            file.add(batch)


HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
LAST_TIME = datetime.max.replace(tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
Bound = int | str | datetime | date | Decimal
Bounds = Mapping[str, Bound]


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table: path relative to it, rows, bounds and numbers of nulls of the declared columns."""

    path: str
    partition: str
    rows: int
    size: int
    low: Mapping[str, Bound] = field(default_factory=dict)
    high: Mapping[str, Bound] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    @property
    def first_batch(self) -> int:
        return int(str(self.low[BATCH]))

    @property
    def last_batch(self) -> int:
        return int(str(self.high[BATCH]))

    @property
    def partition_text(self) -> str:
        """The partition as its folder names it; the log has no text for null."""
        return self.partition or HIVE_NULL

    def overlaps(self, column: str, low: Bound, high: Bound) -> bool:
        """Whether the file may have rows with `column` in [low, high]; true when its bounds are unknown."""
        if column not in self.low or column not in self.high:
            return True
        return bool(self.low[column] <= high and self.high[column] >= low)  # type: ignore[operator]

    def lies_within(self, column: str, low: Bound, high: Bound) -> bool:
        """Whether every row has `column` in [low, high]; false when its bounds are unknown."""
        if column not in self.low or column not in self.high:
            return False
        return bool(self.low[column] >= low and self.high[column] <= high)  # type: ignore[operator]


@dataclass(frozen=True)
class TableSpec:
    """A table's display name, folder, columns (the partition column last) and columns with bounds.

    `durable`: commits, and the files that they name, are forced to disk.
    """

    name: str
    path: Path
    schema: StructType
    partition: str
    bounded: tuple[str, ...]
    durable: bool = False
    writing: ParquetWriting = ParquetWriting()

    @property
    def data_schema(self) -> StructType:
        """The columns in the files: all but the partition column."""
        return StructType([f for f in self.schema.fields if f.name != self.partition])


def files_of(delta: DeltaTable, spec: TableSpec) -> list[DataFile]:
    """Return the current files of a table, from its log."""
    return [_known_file(row, spec) for row in add_actions(delta).to_pylist()]


def _known_file(row: Mapping[str, Any], spec: TableSpec) -> DataFile:
    low = {c: row[f"min.{c}"] for c in spec.bounded if row.get(f"min.{c}") is not None}
    high = {c: widened(row[f"max.{c}"]) for c in spec.bounded if row.get(f"max.{c}") is not None}
    nulls = {c: row[f"null_count.{c}"] for c in spec.bounded if row.get(f"null_count.{c}") is not None}
    path, partition = unquote(row["path"]), row[f"partition.{spec.partition}"]
    return DataFile(path, partition, row["num_records"], row["size_bytes"], low, high, nulls)


def widened(high: Bound) -> Bound:
    """Return a greatest value of a log: delta-spark rounds times down to milliseconds."""
    return min(high, LAST_TIME - MILLISECOND) + MILLISECOND if isinstance(high, datetime) else high


def bounds_of(path: Path, columns: Sequence[str]) -> list[tuple[dict[str, Bound], dict[str, Bound]]]:
    """Return the lower and upper bounds of `columns` for each row group of a Parquet file, from its footer."""
    footer = pq.read_metadata(arrow_source(path))
    at = _column_numbers(footer, columns)
    return [_bounds([footer.row_group(group)], at) for group in range(footer.num_row_groups)]


def may_have_nulls(path: Path, column: str) -> bool:
    """Return whether a Parquet file may have a null in a column, by its footer."""
    footer = pq.read_metadata(arrow_source(path))
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    return bool(groups) and dict(_nulls(groups, _column_numbers(footer, (column,)))).get(column) != 0


def written_file(spec: TableSpec, path: Path) -> DataFile:
    """Return a newly written file with its rows and bounds, from its footer."""
    footer = pq.read_metadata(arrow_source(path))
    value = unquote(path.parent.name.partition("=")[2])
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    columns = _column_numbers(footer, spec.bounded)
    low, high = _bounds(groups, columns)
    nulls = dict(_nulls(groups, columns)) if groups else {}
    return DataFile(str(path.relative_to(spec.path)), value, footer.num_rows, path.stat().st_size, low, high, nulls)


def chunks_by_rows(files: Iterable[DataFile], most: int) -> Iterator[list[DataFile]]:
    """Yield the files in order, in lists of at most `most` rows; a file that has more rows is alone in its list."""
    chunk: list[DataFile] = []
    for file in files:
        if chunk and sum(each.rows for each in chunk) + file.rows > most:
            yield chunk
            chunk = []
        chunk.append(file)
    if chunk:
        yield chunk


def batch_rows(folder: Path, files: Iterable[DataFile], first: int, last: int) -> Counter[int]:
    """Return by batch how many rows of batches [first, last] these files of a table's folder have."""
    rows: Counter[int] = Counter()
    for file in files:
        is_whole = file.lies_within(BATCH, file.first_batch, file.first_batch)
        found = {file.first_batch: file.rows} if is_whole else _column_counts(folder / file.path)
        rows.update({batch: count for batch, count in found.items() if first <= batch <= last})
    return rows


@lru_cache(maxsize=256)
def _column_counts(path: Path) -> Mapping[int, int]:
    column = pq.read_table(arrow_source(path), columns=[BATCH], partitioning=None)[BATCH]
    return {item["values"]: item["counts"] for item in pc.value_counts(column).to_pylist()}


def _column_numbers(footer: Any, columns: Sequence[str]) -> list[int]:
    return [n for n in range(footer.num_columns) if footer.schema.column(n).path in columns]


def _bounds(groups: Sequence[Any], columns: Sequence[int]) -> tuple[dict[str, Bound], dict[str, Bound]]:
    """Return the bounds over all groups; none for a column without bounds in one group (for a very long text).

    Python has no time after the year 9999, so the bounds of such a column are unknown too.
    """
    low: dict[str, Bound] = {}
    high: dict[str, Bound] = {}
    unknown: set[str] = set()
    for group in groups:
        for number in columns:
            column = group.column(number)
            name, statistics = column.path_in_schema, column.statistics
            if statistics is None or not statistics.has_min_max:
                unknown.add(name)
                continue
            try:
                least, greatest = statistics.min, statistics.max
            except (OverflowError, ValueError):
                unknown.add(name)
                continue
            low[name], high[name] = min(low.get(name, least), least), max(high.get(name, greatest), greatest)
    for name in unknown:
        low.pop(name, None)
        high.pop(name, None)
    return low, high


def _nulls(groups: Sequence[Any], columns: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yield the number of nulls of each column of which all groups have it."""
    for number in columns:
        found = [group.column(number).statistics for group in groups]
        if all(statistics is not None and statistics.has_null_count for statistics in found):
            yield groups[0].column(number).path_in_schema, sum(statistics.null_count for statistics in found)


def actions(
    spec: TableSpec, added: Sequence[DataFile], removed: Sequence[DataFile], *, data_change: bool = True
) -> list[Action]:
    """Return the actions of a commit. `data_change=False`: the added files hold the rows of the removed ones."""
    now = int(time.time() * 1000)
    new = [_add(spec, file, now, data_change) for file in added]
    return [*new, *(_remove(spec, file, now, data_change) for file in removed)]


def _add(spec: TableSpec, file: DataFile, now: int, data_change: bool) -> Action:
    statistics = {
        "numRecords": file.rows,
        "minValues": _stats(file.low, timedelta()),
        "maxValues": _stats(file.high, timedelta(microseconds=999)),
        "nullCount": dict(file.nulls),
    }
    named = _named(spec, file) | {"modificationTime": now, "dataChange": data_change}
    return {"add": named | {"stats": json.dumps(statistics)}}


def _remove(spec: TableSpec, file: DataFile, now: int, data_change: bool) -> Action:
    named = _named(spec, file) | {"deletionTimestamp": now, "dataChange": data_change}
    return {"remove": named | {"extendedFileMetadata": True}}


def _named(spec: TableSpec, file: DataFile) -> dict[str, Any]:
    partition = None if file.partition == HIVE_NULL else file.partition
    path = quote(file.path, safe="/=")
    return {"path": path, "partitionValues": {spec.partition: partition}, "size": file.size}


def _stats(bounds: Mapping[str, Bound], round_up: timedelta) -> dict[str, int | str]:
    """Return the bounds as a commit names them; none of decimals, which JSON's numbers would round inwards."""
    return {name: _stat(value, round_up) for name, value in bounds.items() if not isinstance(value, Decimal)}


def _stat(value: int | str | datetime | date, round_up: timedelta) -> int | str:
    """Format a bound. Delta stores milliseconds: times are rounded outwards, so that a bound never excludes a row."""
    if isinstance(value, datetime):
        rounded = min(value.astimezone(UTC), LAST_TIME - round_up) + round_up
        # `strftime` writes the year 1 as `1`.
        return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else value


def are_of_one_day(files: Iterable[DataFile], column: str) -> bool:
    """Return whether all rows of the files have one day of `column`, by their bounds."""
    days = {day_of(bound) for file in files for bound in (file.low.get(column), file.high.get(column))}
    return len(days) == 1 and None not in days


def day_of(bound: object) -> date | None:
    """Return the day of a bound that is a time or a date."""
    if isinstance(bound, datetime):
        return bound.date()
    return bound if isinstance(bound, date) else None


UNFINISHED = "_temporary"
"""Spark's folder for what tasks have not committed; a task that lost its driver may leave files there."""
WRITTEN = "rows"


class WrittenRowsMissing(Transient):
    """Executors wrote other rows than this host finds, whose folder may show them late; nothing was committed."""

    def __init__(self, folder: Path, written: int, found: int) -> None:
        super().__init__(
            f"{folder}: the executors wrote {written} rows, this host finds {found}; nothing was committed",
            "mount the state folder on every worker at the same path, without a cache of folders"
            " (docs/how-to/run-on-a-cluster.md)",
        )
        self.written, self.found = written, found


def write_files(
    rows: DataFrame, folder: Path, mode: str, partition: str | None = None, options: Mapping[str, str] | None = None
) -> None:
    """Write rows into a folder with Spark, by `partition` if given; raises WrittenRowsMissing."""
    before = set(finished_files(folder)) if mode == "append" else set()
    observed = Observation()
    _write(rows.observe(observed, F.count(F.lit(1)).alias(WRITTEN)), folder, mode, partition, options)
    written = int(observed.get[WRITTEN])
    found = parquet_rows(file for file in finished_files(folder) if file not in before)
    if written != found:
        raise WrittenRowsMissing(folder, written, found)


def finished_files(folder: Path) -> list[Path]:
    """Return the Parquet files below a folder, without those of tasks that did not complete."""
    return sorted(path for path in folder.rglob("*.parquet") if UNFINISHED not in path.relative_to(folder).parts)


def _write(rows: DataFrame, folder: Path, mode: str, partition: str | None, options: Mapping[str, str] | None) -> None:
    writer = rows.write.options(**(options or {})).mode(mode)
    (writer.partitionBy(partition) if partition else writer).parquet(str(folder))


def parquet_rows(files: Iterable[Path]) -> int:
    """Return the row count of Parquet files, from the footers."""
    return sum(int(pq.read_metadata(arrow_source(file)).num_rows) for file in files)


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder."""
    return sorted(folder.glob("*.parquet"))


def read_folder(spark: SparkSession, folder: Path, schema: StructType) -> DataFrame:
    """Return the rows of a folder of Parquet files."""
    return read_files(spark, schema, parquet_files(folder))


def write_folder(rows: DataFrame, folder: Path) -> None:
    """Write rows into a folder, replacing its content."""
    write_files(rows, folder, "overwrite")


def read_files(spark: SparkSession, schema: StructType, paths: Sequence[Path]) -> DataFrame:
    """Return the rows of exactly these Parquet files; without files, no rows."""
    if not paths:
        return no_rows(spark, schema)
    return spark.read.schema(schema).parquet(*[str(path) for path in paths])


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty frame with these columns. PySpark would start Python workers for an empty list."""
    session = spark._jsparkSession
    return DataFrame(session.createDataFrame([], session.parseDataType(schema.json())), spark)
