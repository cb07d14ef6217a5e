"""I1 and I2: bronze is Kafka byte for byte, and the ranges that its commits name tile every partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import polars as pl
import pyarrow.compute as pc

from include.audit.audit_findings import Finding, FindingKind, offset_findings
from include.audit.kafka_records import Chunk, Topic
from include.clients.delta_log import commits
from include.reading.publication import PublishedTable

COMPARED = ("key", "value", "timestamp", "timestamp_type", "headers")
RECORD_COLUMNS = ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]


@dataclass(frozen=True)
class BatchRange:
    """What one bronze commit says of one partition: batch, half-open range of offsets, rows in it."""

    batch: int
    partition: int
    start: int
    end: int
    rows: int


def bronze_frame(dataset: Any, partition: int, start: int, end: int) -> pl.DataFrame:
    """Return bronze's rows of a range of offsets with the columns and units of a Kafka chunk, ascending."""
    wanted = (pc.field("partition") == partition) & (pc.field("offset") >= start) & (pc.field("offset") < end)
    frame = pl.DataFrame(pl.from_arrow(dataset.to_table(columns=RECORD_COLUMNS, filter=wanted)))
    return frame.with_columns(pl.col("timestamp").dt.timestamp("us")).sort("offset")


def record_findings(chunk: Chunk, bronze: pl.DataFrame, table: str) -> Iterator[Finding]:
    """Compare a chunk of Kafka with bronze's rows of the same range (both ascending by offset), byte for byte."""
    kafka = chunk.records.with_columns(pl.col("timestamp") * 1000)
    kafka, bronze = _comparable(kafka), _comparable(bronze)
    if kafka.equals(bronze):
        return
    p, there = chunk.partition, bronze["offset"]
    twice = there.filter(there.is_duplicated())
    yield from offset_findings(FindingKind.overlap, table, p, twice, "more than one row of the same record")
    joined = kafka.join(bronze.unique("offset"), on="offset", how="full", suffix="_bronze")
    gap = joined.filter(pl.col("offset_bronze").is_null())["offset"]
    yield from offset_findings(FindingKind.gap, table, p, gap, "in Kafka and not in bronze")
    surplus = joined.filter(pl.col("offset").is_null())["offset_bronze"]
    yield from offset_findings(FindingKind.surplus, table, p, surplus, "in bronze and not in Kafka")
    both = joined.filter(pl.col("offset").is_not_null() & pl.col("offset_bronze").is_not_null())
    for name in COMPARED:
        changed = both.filter(pl.col(name).ne_missing(pl.col(f"{name}_bronze")))["offset"]
        yield from offset_findings(FindingKind.different, table, p, changed, f"{name} is not the one in Kafka")


def _comparable(frame: pl.DataFrame) -> pl.DataFrame:
    """Kafka knows no difference between no headers and an empty list of them."""
    headers = pl.when(pl.col("headers").list.len() > 0).then(pl.col("headers"))
    return frame.select("offset", "timestamp", pl.col("timestamp_type").cast(pl.Int32), "key", "value", headers)


def bronze_commits(table: PublishedTable) -> list[Mapping[str, Any]]:
    """Return what bronze's commits up to the published version say of themselves, in their order."""
    known = takewhile(lambda commit: commit.version <= table.version, commits(table.path))
    return [commit.metadata for commit in known if commit.metadata is not None and "offsets" in commit.metadata]


def batch_ranges(metadata: Iterable[Mapping[str, Any]]) -> list[BatchRange]:
    """Return the ranges that commits name, one for each partition of each batch."""
    return [item for commit in metadata for item in _ranges_of(commit)]


def _ranges_of(commit: Mapping[str, Any]) -> Iterator[BatchRange]:
    rows, batch = commit["rows_by_partition"], int(commit["batches"][0])
    for partition, (start, end) in commit["offsets"].items():
        yield BatchRange(batch, int(partition), int(start), int(end), int(rows.get(partition, 0)))


def topic_findings(metadata: Iterable[Mapping[str, Any]], topic: Topic, table: str) -> Iterator[Finding]:
    """Yield a finding when the topic is not the one whose records bronze holds: it was deleted and made again."""
    named = {str(commit["topic_id"]) for commit in metadata}
    for strange in sorted(named - {topic.topic_id}):
        detail = f"holds records of topic {topic.name} with id {strange}; the topic there now has id {topic.topic_id}"
        yield Finding(FindingKind.different, table, 0, detail)


def range_findings(ranges: Sequence[BatchRange], ends: Mapping[int, int], table: str) -> Iterator[Finding]:
    """Yield every hole and overlap between a partition's ranges, and what lacks or exceeds the published ends."""
    by_partition: dict[int, list[BatchRange]] = defaultdict(list)
    for item in ranges:
        by_partition[item.partition].append(item)
    for partition in sorted(set(by_partition) | set(ends)):
        tiles = sorted(by_partition[partition], key=lambda tile: (tile.start, tile.end, tile.batch))
        published = ends.get(partition, 0)
        if tiles:
            yield from _seams(tiles, table)
        yield from _end_findings(partition, max((tile.end for tile in tiles), default=0), published, table)


def _seams(tiles: Sequence[BatchRange], table: str) -> Iterator[Finding]:
    """Tiles of one partition, ascending by start; `last` is the one that reaches furthest so far."""
    last = tiles[0]
    for tile in tiles[1:]:
        between = f"between batch {last.batch} and batch {tile.batch}"
        if tile.start > last.end:
            size = tile.start - last.end
            yield Finding(FindingKind.gap, table, size, f"no range {between}", tile.partition, last.end, tile.start)
        twice = min(last.end, tile.end)
        if twice > tile.start:
            size = twice - tile.start
            yield Finding(FindingKind.overlap, table, size, f"named twice {between}", tile.partition, tile.start, twice)
        last = max(last, tile, key=lambda item: item.end)


def _end_findings(partition: int, reached: int, published: int, table: str) -> Iterator[Finding]:
    if reached < published:
        detail = f"published up to {published}, but the commits name offsets up to {reached} only"
        yield Finding(FindingKind.gap, table, published - reached, detail, partition, reached, published)
    if reached > published:
        detail = f"the commits name offsets up to {reached}, the publication ends at {published}"
        yield Finding(FindingKind.surplus, table, reached - published, detail, partition, published, reached)


def batch_row_findings(database: Any, ranges: Sequence[BatchRange], table: str) -> Iterator[Finding]:
    """Every row of the view `bronze` lies in the range that its batch names, and each range holds the rows it counts.

    `database` is a DuckDB connection.
    """
    _register_ranges(database, ranges)
    stray = database.sql(STRAY_ROWS).pl()
    for (batch, partition), rows in stray.group_by(["batch", "partition"], maintain_order=True):
        detail = f"no commit of batch {batch} names this offset"
        yield from offset_findings(FindingKind.surplus, table, int(str(partition)), rows["offset"], detail)
    for batch, partition, start, end, counted, there in database.sql(MISCOUNTED_RANGES).fetchall():
        kind = FindingKind.gap if there < counted else FindingKind.surplus
        detail = f"the commit of batch {batch} counts {counted} rows, there are {there}"
        yield Finding(kind, table, abs(counted - there), detail, partition, start, end)


def _register_ranges(database: Any, ranges: Sequence[BatchRange]) -> None:
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
with there as (select _batch_id as batch, partition, count(*) as rows from bronze group by all)
select r.batch, r.partition, r.start, r."end", r.rows, coalesce(t.rows, 0) as there
from named_ranges as r
left join there as t on t.batch = r.batch and t.partition = r.partition
where r.rows <> coalesce(t.rows, 0)
order by all
"""
