"""I1 and I2 on small frames: each planted fault is found, named, and has its exact range of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import polars as pl
import pytest
from small_warehouse import BRONZE, NOON, as_frame, bronze_metadata, bronze_row

from include.audit.bronze import (
    CommittedRange,
    batch_ranges,
    batch_row_findings,
    lost_ranges,
    range_findings,
    record_findings,
    topic_findings,
)
from include.audit.findings import Finding, FindingKind, merge_findings
from include.audit.kafka import RECORD, Chunk, Topic
from include.ground.record_coordinates import AFTER, BEFORE, FIRST_MS
from include.ground.record_coordinates import HEADER as NUMBER

TABLE = "bronze.sales"
NOON_MS = int(NOON.timestamp() * 1000)
HEADER = [{"key": "trace", "value": b"\x01"}]


def record(offset: int, value: bytes | None = b"v", **other: Any) -> dict[str, Any]:
    row = {"offset": offset, "timestamp": NOON_MS, "timestamp_type": 1, "key": b"k", "value": value, "headers": None}
    return row | other


def chunk(*rows: dict[str, Any], start: int = 0, end: int = 10) -> Chunk:
    return Chunk(3, start, end, pl.DataFrame(list(rows), schema=RECORD))


def bronze(*rows: dict[str, Any]) -> pl.DataFrame:
    frame = as_frame([bronze_row(row.pop("offset"), row.pop("value", b"v"), **row) for row in rows], BRONZE)
    columns = ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    return frame.select(columns).with_columns(pl.col("timestamp").dt.timestamp("us"))


def found(findings: Iterable[Finding]) -> list[tuple[str, int | None, int | None, int | None, int]]:
    return [(f.kind.value, f.partition, f.start, f.end, f.rows) for f in merge_findings(findings)]


def offsets(*numbers: int) -> Iterator[dict[str, Any]]:
    return ({"offset": number} for number in numbers)


def test_equal_bytes_with_holes_are_balanced() -> None:
    kafka = chunk(record(0), record(1, None), record(5, headers=HEADER), record(9, headers=[]))
    rows = bronze({"offset": 0}, {"offset": 1, "value": None}, {"offset": 5, "headers": HEADER}, {"offset": 9})
    assert found(record_findings(kafka, rows, TABLE)) == []


def test_adjacent_missing_records_are_one_gap() -> None:
    kafka = chunk(*(record(offset) for offset in range(10)))
    rows = bronze(*offsets(0, 1, 5, 6, 7, 9))
    assert found(record_findings(kafka, rows, TABLE)) == [("gap", 3, 2, 5, 3), ("gap", 3, 8, 9, 1)]


def test_rows_missing_in_kafka_are_surplus() -> None:
    kafka = chunk(record(0), record(4))
    assert found(record_findings(kafka, bronze(*offsets(0, 1, 2, 4)), TABLE)) == [("surplus", 3, 1, 3, 2)]


def test_repeated_record_is_an_overlap() -> None:
    kafka = chunk(record(0), record(1), record(2))
    assert found(record_findings(kafka, bronze(*offsets(0, 1, 1, 2)), TABLE)) == [("overlap", 3, 1, 2, 1)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("value", b"w"),
        ("value", None),
        ("value", b""),
        ("key", b"K"),
        ("key", None),
        ("timestamp_type", 0),
        ("timestamp", NOON.replace(microsecond=1)),
        ("headers", HEADER),
        ("headers", [{"key": "trace", "value": None}]),
    ],
)
def test_changed_byte_is_named_with_its_column(column: str, value: Any) -> None:
    kafka = chunk(record(0), record(1), record(2))
    changed = list(record_findings(kafka, bronze({"offset": 0}, {"offset": 1, column: value}, {"offset": 2}), TABLE))
    assert found(changed) == [("different", 3, 1, 2, 1)]
    assert changed[0].detail.startswith(f"{column} differs from Kafka")


def test_findings_of_neighbouring_chunks_become_one_range() -> None:
    first = record_findings(chunk(record(0), record(1), end=2), bronze({"offset": 0}), TABLE)
    second = record_findings(chunk(record(2), record(3), start=2), bronze({"offset": 3}), TABLE)
    assert found([*second, *first]) == [("gap", 3, 1, 3, 2)]


def ranges(*spans: tuple[int, int]) -> list[CommittedRange]:
    return [CommittedRange(batch, 0, start, end, end - start) for batch, (start, end) in enumerate(spans)]


def test_contiguous_ranges_are_balanced_in_any_order() -> None:
    committed = ranges((4, 9), (0, 4), (9, 9), (9, 12)) + [CommittedRange(7, 1, 0, 5, 0)]
    assert found(range_findings(committed, {0: 12, 1: 5}, TABLE)) == []


def test_accepted_loss_closes_the_gap_between_two_ranges() -> None:
    first, last = bronze_metadata(0, {0: (0, 4)}), bronze_metadata(1, {0: (6, 9)}) | {"lost": {"0": [4, 6]}}
    lost = lost_ranges([first, last])
    assert lost == [CommittedRange(1, 0, 4, 6, 0)]
    assert found(range_findings([*batch_ranges([first, last]), *lost], {0: 9}, TABLE)) == []


@pytest.mark.parametrize(
    ("spans", "end", "expected"),
    [
        ([(0, 4), (6, 9)], 9, [("gap", 0, 4, 6, 2)]),
        ([(0, 4), (3, 9)], 9, [("overlap", 0, 3, 4, 1)]),
        ([(0, 9), (2, 4), (4, 6)], 9, [("overlap", 0, 2, 4, 2), ("overlap", 0, 4, 6, 2)]),
        ([(0, 9), (2, 4), (10, 12)], 12, [("overlap", 0, 2, 4, 2), ("gap", 0, 9, 10, 1)]),
        ([(0, 9)], 12, [("gap", 0, 9, 12, 3)]),
        ([(0, 12)], 9, [("surplus", 0, 9, 12, 3)]),
        ([], 9, [("gap", 0, 0, 9, 9)]),
    ],
)
def test_gaps_and_overlaps_between_ranges_are_found(
    spans: list[tuple[int, int]], end: int, expected: list[Any]
) -> None:
    assert found(range_findings(ranges(*spans), {0: end}, TABLE)) == expected


def test_unpublished_partition_is_surplus() -> None:
    assert found(range_findings([CommittedRange(0, 5, 0, 2, 2)], {}, TABLE)) == [("surplus", 5, 0, 2, 2)]


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def named(database: duckdb.DuckDBPyConnection, committed: list[CommittedRange], *rows: tuple[int, int]) -> list[Any]:
    table = as_frame([bronze_row(offset, b"v", batch=batch) for batch, offset in rows], BRONZE)
    database.register("bronze", table.to_arrow())
    return found(batch_row_findings(database, committed, TABLE))


def test_rows_inside_the_range_of_their_batch_are_balanced(database: duckdb.DuckDBPyConnection) -> None:
    assert named(database, ranges((0, 2), (2, 3)), (0, 0), (0, 1), (1, 2)) == []


def test_row_outside_the_range_of_its_batch_is_surplus(database: duckdb.DuckDBPyConnection) -> None:
    assert named(database, ranges((0, 2), (2, 3)), (0, 0), (0, 2), (1, 2)) == [("surplus", 0, 2, 3, 1)]


def test_rows_of_an_uncommitted_batch_are_surplus(database: duckdb.DuckDBPyConnection) -> None:
    assert named(database, ranges((0, 1)), (0, 0), (8, 1), (8, 2), (8, 4)) == [
        ("surplus", 0, 1, 3, 2),
        ("surplus", 0, 4, 5, 1),
    ]


def test_fewer_rows_than_committed_are_a_gap(database: duckdb.DuckDBPyConnection) -> None:
    assert named(database, ranges((0, 2), (2, 4)), (0, 0), (0, 1), (1, 3)) == [("gap", 0, 2, 4, 1)]
    assert named(database, ranges((0, 2), (2, 4)), (0, 0), (0, 1)) == [("gap", 0, 2, 4, 2)]


def test_more_rows_than_committed_are_surplus(database: duckdb.DuckDBPyConnection) -> None:
    assert named(database, [CommittedRange(0, 0, 0, 4, 1)], (0, 0), (0, 3)) == [("surplus", 0, 0, 4, 1)]


def test_commit_metadata_names_ranges_and_rows() -> None:
    metadata = bronze_metadata(5, {0: (3, 9), 1: (0, 0)}, {0: 4})
    assert batch_ranges([metadata]) == [CommittedRange(5, 0, 3, 9, 4), CommittedRange(5, 1, 0, 0, 0)]


def test_recreated_topic_differs_by_its_id() -> None:
    topic = Topic("sales", "T2", {}, {}, lambda *_: iter(()))
    metadata = [bronze_metadata(0, {}, topic_id="T1"), bronze_metadata(1, {}, topic_id="T2")]
    wrong = list(topic_findings(metadata, topic, TABLE))
    assert [finding.kind for finding in wrong] == [FindingKind.different]
    assert "T1" in wrong[0].detail


def test_findings_are_ordered_by_table_partition_and_end() -> None:
    wrong = [
        Finding(FindingKind.gap, "gold.days", 1, ""),
        Finding(FindingKind.gap, TABLE, 9, "a batch", 0, 0, 9),
        Finding(FindingKind.surplus, TABLE, 1, "", 0, 3, 4),
        Finding(FindingKind.gap, TABLE, 1, "", 1, 0, 1),
    ]
    assert [(f.table, f.partition, f.end) for f in merge_findings(wrong)] == [
        (TABLE, 0, 4),
        (TABLE, 0, 9),
        (TABLE, 1, 1),
        ("gold.days", None, None),
    ]


@pytest.mark.parametrize("time", [-62_135_596_800_000, 253_402_300_799_999])
@pytest.mark.parametrize("headers", [None, HEADER, [{"key": NUMBER, "value": b"5"}]])
def test_time_at_the_ends_of_the_calendar_is_balanced_as_earlier_versions_stored_it(time: int, headers: Any) -> None:
    kafka = chunk(record(0, timestamp=time, headers=headers), record(1))
    rows = bronze({"offset": 0, "headers": headers}, {"offset": 1})
    stored = pl.when(pl.col("offset") == 0).then(time * 1000).otherwise("timestamp").alias("timestamp")
    assert found(record_findings(kafka, rows.with_columns(stored), TABLE)) == []
    other = chunk(record(0, timestamp=time + (1 if time < 0 else -1), headers=headers), record(1))
    assert {each[0] for each in found(record_findings(other, rows.with_columns(stored), TABLE))} == {"different"}


@pytest.mark.parametrize(("time", "micros"), [(-(2**63), BEFORE), (FIRST_MS - 1, BEFORE), (2**63 - 1, AFTER)])
@pytest.mark.parametrize("own", [[], HEADER, [{"key": NUMBER, "value": b"5"}]])
def test_replaced_time_is_balanced_with_its_number_as_the_last_header(time: int, micros: int, own: Any) -> None:
    kafka = chunk(record(0, timestamp=time, headers=own))
    number = [{"key": NUMBER, "value": b"%d" % time}]
    stored = pl.lit(micros).alias("timestamp")
    assert (
        found(record_findings(kafka, bronze({"offset": 0, "headers": own + number}).with_columns(stored), TABLE)) == []
    )
    wrong = (own, number + own if own else None, own + [{"key": NUMBER, "value": b"7"}])
    for headers in wrong:
        rows = bronze({"offset": 0, "headers": headers}).with_columns(stored)
        assert found(record_findings(kafka, rows, TABLE)) == [("different", 3, 0, 1, 1)]
