"""I1 and I2: bronze equals Kafka byte for byte, and the offset ranges of its commits cover every partition once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import polars as pl

from include.audit.audit_findings import Finding, FindingKind, offset_findings, position_findings
from include.audit.kafka_records import HEADERS, RECORD, Chunk, Topic
from include.ground.delta_log import commits
from include.ground.kafka_times import AFTER, BEFORE, FIRST_MS, HEADER, LAST_MS
from include.ground.record_coordinates import CONTENT
from include.read.bronze_ranges import commit_ranges
from include.read.publication import PublishedTable


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
    joined = kafka.join(bronze.unique("offset"), on="offset", how="full", suffix="_bronze")
    gap = joined.filter(pl.col("offset_bronze").is_null())["offset"]
    yield from offset_findings(FindingKind.gap, table, p, gap, "in Kafka but not in bronze")
    surplus = joined.filter(pl.col("offset").is_null())["offset_bronze"]
    yield from offset_findings(FindingKind.surplus, table, p, surplus, "in bronze but not in Kafka")
    both = joined.filter(pl.col("offset").is_not_null() & pl.col("offset_bronze").is_not_null())
    for name in CONTENT:
        changed = both.filter(pl.col(name).ne_missing(pl.col(f"{name}_bronze")))["offset"]
        yield from offset_findings(FindingKind.different, table, p, changed, f"{name} differs from Kafka")


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
    """Compare the ranges of one partition, ascending by start; `last` has the greatest end so far."""
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
