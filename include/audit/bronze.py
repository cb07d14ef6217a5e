"""I1 and I2: bronze equals Kafka byte for byte, and the offset ranges of its commits cover every partition once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, takewhile
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from include.audit.findings import Finding, FindingKind, offset_findings, position_findings
from include.audit.kafka import HEADERS, RECORD, Chunk, Topic
from include.ground.delta_log import commits
from include.ground.record_coordinates import AFTER, BEFORE, CONTENT, FIRST_MS, HEADER, LAST_MS, is_file_set
from include.read.publication import PublishedTable
from include.read.published_tables import PublishedVersionGone, commit_ranges, first_unexpired_batch


@dataclass(frozen=True)
class CommittedRange:
    """What one bronze commit records for one partition: batch, half-open range of offsets, rows in it."""

    batch: int
    partition: int
    start: int
    end: int
    rows: int


def record_findings(chunk: Chunk, bronze: pl.DataFrame, table: str) -> Iterator[Finding]:
    """Compare a chunk of Kafka with bronze's rows of the same range (both ascending by offset), byte for byte."""
    kafka, bronze = _comparable(_as_in_bronze(chunk.records)), _comparable(bronze)
    if kafka.equals(bronze):
        return
    bronze = _comparable(_as_written_now(bronze))
    p, offsets = chunk.partition, bronze["offset"]
    twice = offsets.filter(offsets.is_duplicated())
    yield from offset_findings(FindingKind.overlap, table, p, twice, "more than one row of the same record")
    source = "its file" if is_file_set(p) else "Kafka"
    joined = kafka.join(bronze.unique("offset"), on="offset", how="full", suffix="_bronze")
    gap = joined.filter(pl.col("offset_bronze").is_null())["offset"]
    yield from offset_findings(FindingKind.gap, table, p, gap, f"in {source} but not in bronze")
    surplus = joined.filter(pl.col("offset").is_null())["offset_bronze"]
    yield from offset_findings(FindingKind.surplus, table, p, surplus, f"in bronze but not in {source}")
    both = joined.filter(pl.col("offset").is_not_null() & pl.col("offset_bronze").is_not_null())
    for name in CONTENT:
        changed = both.filter(pl.col(name).ne_missing(pl.col(f"{name}_bronze")))["offset"]
        yield from offset_findings(FindingKind.different, table, p, changed, f"{name} differs from {source}")


def _as_in_bronze(kafka: pl.DataFrame) -> pl.DataFrame:
    """Return Kafka's records with the times and headers that bronze must have: a time that is none is a header."""
    time = pl.col("timestamp")
    return _with_replaced(kafka, time < FIRST_MS, time > LAST_MS, time, time * 1000)


def _as_written_now(bronze: pl.DataFrame) -> pl.DataFrame:
    """Return bronze's rows as they are written now: earlier versions stored the calendar's ends as times."""
    micros = pl.col("timestamp")
    is_whole = micros % 1000 == 0
    return _with_replaced(bronze, (micros < BEFORE) & is_whole, (micros > AFTER) & is_whole, micros // 1000, micros)


def _with_replaced(
    frame: pl.DataFrame, is_before: pl.Expr, is_after: pl.Expr, number: pl.Expr, micros: pl.Expr
) -> pl.DataFrame:
    if not frame.select((is_before | is_after).any()).item():
        return frame.with_columns(micros)
    time = pl.when(is_before).then(BEFORE).when(is_after).then(AFTER).otherwise(micros)
    header = pl.struct(pl.lit(HEADER).alias("key"), number.cast(pl.String).cast(pl.Binary).alias("value"))
    own = pl.coalesce("headers", pl.lit([], HEADERS))
    headers = pl.when(is_before | is_after).then(pl.concat_list(own, pl.concat_list(header))).otherwise("headers")
    return frame.with_columns(time.alias("timestamp"), headers.alias("headers"))


def _comparable(frame: pl.DataFrame) -> pl.DataFrame:
    """Make absent headers and an empty list equal: Kafka does not distinguish them."""
    headers = pl.when(pl.col("headers").list.len() > 0).then(pl.col("headers"))
    return frame.select(list(RECORD)).with_columns(pl.col("timestamp_type").cast(pl.Int32), headers)


def bronze_commits(table: PublishedTable, after: int = -1) -> list[Mapping[str, Any]]:
    """Return the metadata of bronze's commits of versions > `after` up to the published one, in order."""
    known = takewhile(lambda commit: commit.version <= table.version, commits(table.path, after))
    return [commit.metadata for commit in known if commit.metadata is not None and "offsets" in commit.metadata]


def batch_ranges(metadata: Iterable[Mapping[str, Any]]) -> list[CommittedRange]:
    """Return the ranges that commits name, one for each partition of each batch."""
    return [
        CommittedRange(each.batch, each.partition, each.start, each.end, each.rows)
        for commit in metadata
        for each in commit_ranges(commit)
    ]


def lost_ranges(metadata: Iterable[Mapping[str, Any]]) -> list[CommittedRange]:
    """Return the ranges that Kafka expired before they were read; `headrace repair` accepted their loss."""
    return [
        CommittedRange(int(commit["batches"][0]), int(partition), int(start), int(end), 0)
        for commit in metadata
        for partition, (start, end) in commit.get("lost", {}).items()
    ]


def topic_findings(metadata: Iterable[Mapping[str, Any]], topic: Topic, table: str) -> Iterator[Finding]:
    """Yield a finding when bronze holds records of another topic id: the topic was deleted and created again."""
    named = {str(commit["topic_id"]) for commit in metadata}
    for other in sorted(named - {topic.topic_id}):
        detail = f"holds records of topic {topic.name} with id {other}; the current topic has id {topic.topic_id}"
        yield Finding(FindingKind.different, table, 0, detail)


def range_findings(ranges: Sequence[CommittedRange], ends: Mapping[int, int], table: str) -> Iterator[Finding]:
    """Yield the holes and overlaps between a partition's ranges, and ranges short of or beyond the published ends."""
    by_partition: dict[int, list[CommittedRange]] = defaultdict(list)
    for item in ranges:
        by_partition[item.partition].append(item)
    for partition in sorted(set(by_partition) | set(ends)):
        ranges_ = sorted(by_partition[partition], key=lambda each: (each.start, each.end, each.batch))
        published = ends.get(partition, 0)
        if ranges_:
            yield from _seams(ranges_, table)
        yield from _end_findings(partition, max((each.end for each in ranges_), default=0), published, table)


def _seams(ranges_: Sequence[CommittedRange], table: str) -> Iterator[Finding]:
    last = ranges_[0]
    for each in ranges_[1:]:
        between = f"between batch {last.batch} and batch {each.batch}"
        if each.start > last.end:
            size = each.start - last.end
            yield Finding(FindingKind.gap, table, size, f"no range {between}", each.partition, last.end, each.start)
        twice = min(last.end, each.end)
        if twice > each.start:
            size = twice - each.start
            yield Finding(FindingKind.overlap, table, size, f"named twice {between}", each.partition, each.start, twice)
        last = max(last, each, key=lambda item: item.end)


def _end_findings(partition: int, reached: int, published: int, table: str) -> Iterator[Finding]:
    if reached < published:
        detail = f"published up to {published}, but the commits end at offset {reached}"
        yield Finding(FindingKind.gap, table, published - reached, detail, partition, reached, published)
    if reached > published:
        detail = f"the commits end at offset {reached}, the publication at {published}"
        yield Finding(FindingKind.surplus, table, reached - published, detail, partition, published, reached)


def batch_row_findings(database: Any, ranges: Sequence[CommittedRange], table: str) -> Iterator[Finding]:
    """Yield rows of the view `bronze` outside the ranges of their batch, and ranges with another number of rows.

    `database` is a DuckDB connection.
    """
    _register_ranges(database, ranges)
    stray = database.sql(STRAY_ROWS).pl()
    for (batch,), rows in stray.group_by(["batch"], maintain_order=True):
        yield from position_findings(FindingKind.surplus, table, rows, f"no commit of batch {batch} covers this offset")
    for batch, partition, start, end, counted, found in database.sql(MISCOUNTED_RANGES).fetchall():
        kind = FindingKind.gap if found < counted else FindingKind.surplus
        detail = f"the commit of batch {batch} counts {counted} rows, bronze has {found}"
        yield Finding(kind, table, abs(counted - found), detail, partition, start, end)


def _register_ranges(database: Any, ranges: Sequence[CommittedRange]) -> None:
    columns = ("batch", "partition", "start", "end", "rows")
    data = {name: [getattr(item, name) for item in ranges] for name in columns}
    database.register("named_ranges", pl.DataFrame(data, schema=dict.fromkeys(columns, pl.Int64)).to_arrow())


STRAY_ROWS = """
select b._batch_id as batch, b.partition, b."offset"
from bronze as b
anti join named_ranges as r
on r.batch = b._batch_id and r.partition = b.partition and b."offset" >= r.start and b."offset" < r."end"
order by all
"""
MISCOUNTED_RANGES = """
with found as (select _batch_id as batch, partition, count(*) as rows from bronze group by all)
select r.batch, r.partition, r.start, r."end", r.rows, coalesce(t.rows, 0) as found_rows
from named_ranges as r
left join found as t on t.batch = r.batch and t.partition = r.partition
where r.rows <> coalesce(t.rows, 0)
order by all
"""


RECORD_COLUMNS = list(RECORD)
UNBOUNDED = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class RowGroup:
    """A row group of a file: its rows and their bytes in memory; `file` is Arrow's fragment of the file.

    `partitions` and `offsets` are the least and the greatest, UNBOUNDED if some are null or without statistics.
    """

    file: Any
    number: int
    rows: int
    size: int
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def may_have(self, partition: int) -> bool:
        return self.partitions[0] <= partition <= self.partitions[1]

    def is_inside(self, partition: int, start: int, end: int) -> bool:
        """Whether all of its rows are of the partition, with offsets in [start, end)."""
        return self.partitions == (partition, partition) and start <= self.offsets[0] and self.offsets[1] < end


@dataclass(frozen=True)
class PartitionRows:
    """The rows of one partition: `groups` may have some, ascending by their first offsets; `schema` is the table's.

    `reached`: the greatest offset of each group and those before it.
    """

    partition: int
    groups: Sequence[RowGroup]
    reached: Sequence[int]
    schema: pa.Schema

    def ends(self, most: int, most_bytes: int) -> Iterator[int]:
        """Yield offsets, ascending, that lie in no row group, with up to so many rows and bytes from one to the next.

        There are more if one group has more, or if groups overlap.
        """
        rows, size = 0, 0
        for group, before in zip(self.groups, [UNBOUNDED[0], *self.reached], strict=False):
            is_full = rows + group.rows > most or size + group.size > most_bytes
            if rows and is_full and before < group.offsets[0]:
                yield group.offsets[0]
                rows, size = 0, 0
            rows, size = rows + group.rows, size + group.size

    def groups_of(self, start: int, end: int) -> list[RowGroup]:
        """Return the row groups that may have offsets in [start, end)."""
        first = bisect_left(self.reached, start)
        last = bisect_left(self.groups, end, key=lambda group: group.offsets[0])
        return [group for group in self.groups[first:last] if group.offsets[1] >= start]

    def frame(self, start: int, end: int) -> pl.DataFrame:
        """Return the rows with offsets in [start, end), ascending, with the columns and units of a Kafka chunk."""
        read = self.groups_of(start, end)
        whole = all(group.is_inside(self.partition, start, end) for group in read)
        within = None if whole else _condition(self.partition, start) & (pc.field("offset") < end)
        parts = [self._decoded(groups, within) for _, groups in groupby(read, lambda each: each.file.path)]
        rows = pa.concat_tables(parts) if parts else self.schema.empty_table().select(RECORD_COLUMNS)
        frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(pl.col("timestamp").dt.timestamp("us"))
        return frame if frame["offset"].is_sorted() else frame.sort("offset")

    def _decoded(self, groups: Iterable[RowGroup], within: Any) -> pa.Table:
        listed = list(groups)
        part = listed[0].file.subset(row_group_ids=[group.number for group in listed])
        return part.to_table(schema=self.schema, columns=RECORD_COLUMNS, filter=within)


def partition_rows(dataset: Any, partition: int, start: int) -> PartitionRows:
    """Return a partition's rows of bronze, an Arrow dataset, from an offset on. Only footers of files are read yet.

    Files that have none of these rows by their bounds in the Delta log are not opened.
    """
    files = dataset.get_fragments(filter=_condition(partition, start))
    groups = [group for file in files for group in row_groups(file) if group.may_have(partition)]
    groups.sort(key=lambda each: each.offsets)
    reached = list(accumulate((group.offsets[1] for group in groups), max))
    return PartitionRows(partition, groups, reached, dataset.schema)


def row_groups(file: Any) -> Iterator[RowGroup]:
    """Yield the row groups of a file that have rows."""
    footer = file.metadata
    columns = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        # Of these columns only: Python has no date of the year 10000, which the bounds of others may be.
        partitions, offsets = (_bounds(group.column(columns[name])) for name in ("partition", "offset"))
        if group.num_rows:
            yield RowGroup(file, number, group.num_rows, group.total_byte_size, partitions, offsets)


def _bounds(column: Any) -> tuple[int, int]:
    found = column.statistics
    known = found is not None and found.has_min_max and found.has_null_count and not found.null_count
    return (found.min, found.max) if known else UNBOUNDED


def _condition(partition: int, start: int) -> Any:
    return (pc.field("partition") == partition) & (pc.field("offset") >= start)


COORDINATES = {"bronze": 'partition, "offset"', "silver": "_partition, _offset", "rejected": "_partition, _offset"}


@dataclass(frozen=True)
class ExpiredBatches:
    """The first unexpired batch of each layer; rows and end offsets of bronze's expired batches, by partition."""

    kept: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def complete(self) -> int:
        """The first batch of which all layers have all rows."""
        return max(self.kept.values(), default=0)

    def of(self, layer: str) -> int:
        """Return the first batch that has not expired from a layer."""
        return self.kept.get(layer, 0)


def expired_batches(layers: Mapping[str, PublishedTable], ranges: Sequence[CommittedRange]) -> ExpiredBatches:
    """Return what has expired from tables by layer; `ranges` are those of bronze's commits."""
    kept = {layer: _kept_from(table) for layer, table in layers.items()}
    rows, ends = Counter[int](), dict[int, int]()
    for each in ranges:
        if each.batch < kept.get("bronze", 0):
            rows[each.partition] += each.rows
            ends[each.partition] = max(each.end, ends.get(each.partition, 0))
    return ExpiredBatches(kept, rows, ends)


def _kept_from(table: PublishedTable) -> int:
    try:
        return first_unexpired_batch(table)
    except PublishedVersionGone:
        # The table is named as damaged, and nothing is compared with it.
        return 0


def expiry_findings(
    layers: Mapping[str, PublishedTable], expired: ExpiredBatches, ranges: Sequence[CommittedRange]
) -> Iterator[Finding]:
    """Yield where the rows that expiry commits name are not those that bronze's commits count."""
    removed = {layer: _removed(table) if expired.of(layer) else Counter() for layer, table in layers.items()}
    yield from _unequal(layers["bronze"].name, removed["bronze"], _counted(ranges, expired.of("bronze")))
    if expired.of("silver") == expired.of("rejected"):
        both = removed["silver"] + removed["rejected"]
        yield from _unequal(layers["silver"].name, both, _counted(ranges, expired.of("silver")))


def _removed(table: PublishedTable) -> Counter[int]:
    rows = Counter[int]()
    for commit in takewhile(lambda commit: commit.version <= table.version, commits(table.path)):
        metadata: Mapping[str, Any] = commit.metadata or {}
        if "expired" in metadata:
            rows.update({int(partition): count for partition, count in metadata["rows_by_partition"].items()})
    return rows


def _counted(ranges: Sequence[CommittedRange], before: int) -> Counter[int]:
    rows = Counter[int]()
    for each in ranges:
        rows[each.partition] += each.rows if each.batch < before else 0
    return rows


def _unequal(table: str, removed: Counter[int], counted: Counter[int]) -> Iterator[Finding]:
    for partition in sorted(removed | counted):
        if removed[partition] != counted[partition]:
            detail = f"{removed[partition]} rows expired, the batches that expired had {counted[partition]} records"
            yield Finding(FindingKind.different, table, abs(removed[partition] - counted[partition]), detail, partition)


def left_over_findings(database: Any, dataset: str, expired: ExpiredBatches) -> Iterator[Finding]:
    """Yield rows of batches that have expired, by layer; `database` is a DuckDB connection with a view of each."""
    for layer, before in expired.kept.items():
        if before:
            sql = f"select {COORDINATES[layer]} from {layer} where _batch_id < {before} order by all"
            found = database.sql(sql).pl()
            found.columns = ["partition", "offset"]
            detail = f"of a batch before {before}, which have expired"
            yield from position_findings(FindingKind.surplus, f"{layer}.{dataset}", found, detail)
