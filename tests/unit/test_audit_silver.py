"""I3 and I4 on small tables: each planted fault is found, named, and has its exact range of offsets."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from small_warehouse import BRONZE, REJECTED, SILVER, at, bronze_row, rejected_row, silver_row

from include.audit import silver as audited_silver
from include.audit.findings import Finding, merge_findings
from include.audit.silver import (
    ALL_SILVER,
    define_exact_number,
    exact_number,
    layer_counts,
    number_findings,
    orphan_findings,
    register_fixes,
    repeated_findings,
    split_findings,
)
from include.declare.payload_format import JsonFormat
from include.declare.pipeline import Pipeline

PIPELINE = Pipeline("sales", 1, "sold_at", timedelta(days=1), ("event_id",), timedelta(days=3), ())
Rows = Sequence[Mapping[str, Any]]
Found = list[tuple[str, str, int | None, int | None, int | None]]


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        yield connection


def fill(database: duckdb.DuckDBPyConnection, bronze: Rows, silver: Rows, rejected: Rows) -> None:
    layers = [("bronze", bronze, BRONZE), ("silver", silver, SILVER), ("rejected", rejected, REJECTED)]
    layers.append((ALL_SILVER, silver, SILVER))
    for name, rows, schema in layers:
        database.register(name, pa.Table.from_pylist([dict(row) for row in rows], schema=schema))


def found(findings: Iterable[Finding]) -> Found:
    return [(f.kind.value, f.layer, f.partition, f.start, f.end) for f in merge_findings(findings)]


def split(database: duckdb.DuckDBPyConnection, bronze: Rows, silver: Rows, rejected: Rows, batch: int = 0) -> Found:
    """Return the findings, which are the same if bronze is known to have no record twice."""
    fill(database, bronze, silver, rejected)
    findings = found(split_findings(database, "sales", batch))
    if len({(row["partition"], row["offset"]) for row in bronze}) == len(bronze):
        assert found(split_findings(database, "sales", batch, distinct=True)) == findings
    return findings


def payloads(*names: str, batch: int = 0) -> list[dict[str, Any]]:
    return [bronze_row(offset, b'{"event_id":"%s"}' % name.encode(), batch=batch) for offset, name in enumerate(names)]


FOUR = payloads("a", "b", "c", "d")


def test_each_record_once_is_balanced(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(0, "a"), silver_row(2, "c")]
    assert split(database, FOUR, silver, [rejected_row(1, "invalid", "type"), rejected_row(3, "erased")]) == []


def test_record_in_neither_table_is_missing(database: duckdb.DuckDBPyConnection) -> None:
    assert split(database, FOUR, [silver_row(0, "a")], [rejected_row(3, "invalid")]) == [("missing", "silver", 0, 1, 3)]


def test_record_in_both_tables_overlaps(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(offset, name) for offset, name in enumerate("abcd")]
    assert split(database, FOUR, silver, [rejected_row(2, "invalid")]) == [("overlap", "silver", 0, 2, 3)]


def test_repeated_record_in_a_layer_overlaps(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(offset, name) for offset, name in enumerate("abc")]
    rejected = [rejected_row(3, "invalid")]
    assert split(database, FOUR, [*silver, silver[1]], rejected) == [("overlap", "silver", 0, 1, 2)]
    assert split(database, FOUR, silver, rejected * 2) == [("overlap", "rejected", 0, 3, 4)]
    assert split(database, [*FOUR, FOUR[0]], silver, rejected) == [("overlap", "bronze", 0, 0, 1)]


def test_row_without_a_record_is_surplus(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(offset, name) for offset, name in enumerate("abcd")]
    stray = silver_row(7, "x", partition=1)
    assert split(database, FOUR, [*silver, stray], []) == [("surplus", "silver", 1, 7, 8)]
    assert split(database, FOUR, silver, [rejected_row(9, "invalid")]) == [("surplus", "rejected", 0, 9, 10)]


def test_row_of_a_later_batch_is_surplus(database: duckdb.DuckDBPyConnection) -> None:
    bronze, silver = payloads("a", batch=1), [silver_row(0, "a", batch=1)]
    assert split(database, bronze, silver, [], batch=1) == []
    wrong = [("surplus", "bronze", 0, 0, 1), ("surplus", "silver", 0, 0, 1)]
    assert split(database, bronze, silver, [], batch=0) == wrong


def test_row_with_another_batch_than_bronze_is_different(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(0, "a", batch=1)]
    assert split(database, payloads("a"), silver, [], batch=1) == [("different", "silver", 0, 0, 1)]


def test_same_offset_in_two_partitions_is_two_records(database: duckdb.DuckDBPyConnection) -> None:
    bronze = [bronze_row(0, b"{}"), bronze_row(0, b"{}", partition=1)]
    silver = [silver_row(0, "a"), silver_row(0, "b", partition=1)]
    assert split(database, bronze, silver, []) == []
    assert layer_counts(database, ["bronze.sales", "silver.sales", "rejected.sales"]).rows() == [
        (0, 1, 1, 0),
        (1, 1, 1, 0),
    ]


def identities(
    database: duckdb.DuckDBPyConnection,
    bronze: Rows,
    silver: Rows,
    rejected: Rows,
    fixes: Mapping[tuple[int, int], bytes] = MappingProxyType({}),
) -> Found:
    fill(database, bronze, silver, rejected)
    register_fixes(database, fixes)
    JsonFormat().define_texts(database, {})
    return found([*repeated_findings(database, "sales", PIPELINE), *orphan_findings(database, "sales", PIPELINE)])


def test_duplicate_with_an_earlier_winner_is_balanced(database: duckdb.DuckDBPyConnection) -> None:
    rejected = [rejected_row(2, "duplicate"), rejected_row(3, "invalid")]
    assert identities(database, payloads("a", "b", "a", "a"), [silver_row(0, "a"), silver_row(1, "b")], rejected) == []


def test_repeated_identity_in_silver_names_the_later_record(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(0, "a", sold_at=at(3)), silver_row(1, "b"), silver_row(2, "a", sold_at=at(1))]
    assert identities(database, payloads("a", "b", "a"), silver, []) == [("overlap", "silver", 0, 2, 3)]


def test_repeated_identity_is_found_if_its_hashes_are_compared_in_parts(
    database: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audited_silver, "HASHES_AT_A_TIME", 1)
    events = [*"abcdefgh", "a"]
    silver = [silver_row(offset, event) for offset, event in enumerate(events)]
    assert identities(database, payloads(*events), silver, []) == [("overlap", "silver", 0, 8, 9)]


def test_repeated_identity_after_the_horizon_is_another_event(database: duckdb.DuckDBPyConnection) -> None:
    silver = [silver_row(0, "a", sold_at=at(1)), silver_row(1, "a", sold_at=at(4, 13))]
    assert identities(database, payloads("a", "a"), silver, []) == []


def test_duplicate_without_a_winner_is_different(database: duckdb.DuckDBPyConnection) -> None:
    rejected = [rejected_row(1, "duplicate"), rejected_row(2, "duplicate")]
    assert identities(database, payloads("a", "x", "y"), [silver_row(0, "a")], rejected) == [
        ("different", "rejected", 0, 1, 3)
    ]


def test_duplicate_before_its_winner_is_different(database: duckdb.DuckDBPyConnection) -> None:
    assert identities(database, payloads("a", "a"), [silver_row(1, "a")], [rejected_row(0, "duplicate")]) == [
        ("different", "rejected", 0, 0, 1)
    ]


def test_records_are_ordered_by_batch_before_offset(database: duckdb.DuckDBPyConnection) -> None:
    bronze = [bronze_row(9, b'{"event_id":"a"}', partition=1, batch=0), bronze_row(0, b'{"event_id":"a"}', batch=1)]
    silver, rejected = [silver_row(9, "a", partition=1)], [rejected_row(0, "duplicate", batch=1)]
    assert identities(database, bronze, silver, rejected) == []


@pytest.mark.parametrize("value", [b"\xff", b"{", b'{"event_id":null}', b"[]", None])
def test_duplicate_without_a_readable_identity_is_different(
    database: duckdb.DuckDBPyConnection, value: bytes | None
) -> None:
    bronze = [bronze_row(0, b'{"event_id":"a"}'), bronze_row(1, value)]
    assert identities(database, bronze, [silver_row(0, "a")], [rejected_row(1, "duplicate")]) == [
        ("different", "rejected", 0, 1, 2)
    ]


def test_escaped_identity_is_the_same(database: duckdb.DuckDBPyConnection) -> None:
    bronze = [bronze_row(0, '{"event_id":"é"}'.encode()), bronze_row(1, b'{"event_id":"\\u00e9"}')]
    assert identities(database, bronze, [silver_row(0, "é")], [rejected_row(1, "duplicate")]) == []


def test_fixed_record_has_the_identity_of_its_fix(database: duckdb.DuckDBPyConnection) -> None:
    bronze = [bronze_row(0, b'{"event_id":"a"}'), bronze_row(1, b"broken")]
    silver, rejected = [silver_row(0, "a")], [rejected_row(1, "duplicate")]
    assert identities(database, bronze, silver, rejected, {(0, 1): b'{"event_id":"a"}'}) == []
    assert identities(database, bronze, silver, rejected, {(0, 1): b'{"event_id":"b"}'}) != []


def test_duplicate_without_a_winner_is_found_unless_the_winner_has_expired(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """Batches before 2 have expired from silver; each duplicate names the batch of the record that it repeats."""
    named = {2: "1/0/0", 3: "2/0/1", 4: "3/0/9", 5: None}
    bronze = payloads("a", "b", "a", "b", "gone", "gone", batch=4)
    rejected = [
        rejected_row(offset, "duplicate", batch=4, reasons=[{"rule": "duplicate", "column": "", "detail": winner}])
        for offset, winner in named.items()
    ]
    fill(database, bronze, [silver_row(1, "b", batch=2)], rejected)
    register_fixes(database, {})
    JsonFormat().define_texts(database, {})
    assert found(orphan_findings(database, "sales", PIPELINE, first=2)) == [("different", "rejected", 0, 4, 6)]
    assert found(orphan_findings(database, "sales", PIPELINE, first=0)) == [
        ("different", "rejected", 0, 2, 3),
        ("different", "rejected", 0, 4, 6),
    ]


def view_numbers(
    database: duckdb.DuckDBPyConnection, payloads: Sequence[str], values: Sequence[str | None], batch: int = 0
) -> None:
    bronze = [bronze_row(offset, payload.encode(), batch=batch) for offset, payload in enumerate(payloads)]
    silver = [
        silver_row(offset, "a", batch=batch) | {"amount": None if value is None else Decimal(value)}
        for offset, value in enumerate(values)
    ]
    fill(database, bronze, silver, [])
    register_fixes(database, {})
    JsonFormat().define_texts(database, {})


def wrong_numbers(database: duckdb.DuckDBPyConnection, first: int = 0) -> set[int]:
    """Return the offsets at which silver's amount is another number than the payload's."""
    places = found(number_findings(database, "sales", {"amount": "amt", "shop": "shop"}, first))
    return {offset for *_, start, end in places for offset in range(start or 0, end or 0)}


def numbers(database: duckdb.DuckDBPyConnection, tokens: Mapping[str, str | None]) -> list[str]:
    """Return the tokens of which silver's amount is another number, of payloads in this order."""
    view_numbers(database, [f'{{"event_id":"a","amt" : {token}}}' for token in tokens], list(tokens.values()))
    named = wrong_numbers(database)
    return [token for offset, token in enumerate(tokens) if offset in named]


def test_number_that_a_double_would_change_is_compared_with_its_token(database: duckdb.DuckDBPyConnection) -> None:
    same = {"12.34": "12.34", "1234e-2": "12.34", "1.20000000000000000000": "1.20", "0e-999999999999999999999": "0"}
    other = {
        "1.000000000000000000000000000000000000000001": "1.00",
        "1E-400": "0",
        "12.345e0": "12.35",
        '1,"n":1e5': "2.00",
        "9e1": None,
        "1e99999999999999999999": "1.00",
    }
    assert numbers(database, same) == []
    assert numbers(database, {**same, **other}) == list(other)


def test_numbers_of_inherited_rows_are_not_those_of_the_payloads(database: duckdb.DuckDBPyConnection) -> None:
    """A column that an earlier release did not have is null in its rows."""
    view_numbers(database, ['{"amt":1.5e1}', '{"amt":2,"other":1e5}'], [None, "2"], batch=3)
    assert wrong_numbers(database, first=4) == set()
    assert wrong_numbers(database, first=3) == {0}


TEXTS = ['"a"', '"\\"amt\\": 1e1"', '"amt"', "null", "true", '{"amt": 1e1}', '[{"amt":12.50e0}]', '{"x":1e300}', "1e5"]
KEYS = ["amt", "amt", "amt", "x", "xamt", "\\u0061mt", "a\\u006dt", "amt\\u0020", "Amt"]
NUMBERS = ["1e1", "1E+1", "-1.0e1", "10", "10.000000000000000000", "12.5e0", "12.50", "1250e-2", "12.505e0", "12.504e0"]
NUMBERS += [
    "0.0e5",
    "-0e0",
    "1e-400",
    "9999999999999999999",
    "0.001e4",
    "1e400",
    "12.5000000000000000000001",
    "1e9999999999",
]


def test_rows_that_python_does_not_read_are_those_that_it_finds_equal(database: duckdb.DuckDBPyConnection) -> None:
    rng = random.Random(5)
    payloads, values = [], []
    for _ in range(3_000):
        members = [
            f'"{rng.choice(KEYS)}"{rng.choice(["", " "])}: {rng.choice([*NUMBERS, *TEXTS])}'
            for _ in range(rng.randrange(1, 4))
        ]
        payloads.append("{" + ", ".join(members) + "}")
        given = audited_silver._numbers(payloads[-1]).get("amt")
        near = isinstance(given, Decimal) and given.is_finite() and -(10**5) < given < 10**5 and rng.random() < 0.7
        values.append(f"{given:.2f}" if near else rng.choice([None, "10", "12.5", "0"]))
    long = re.compile(r":\s*-?[0-9](?:[0-9.]{15}|[0-9.]*[eE])")
    expected = {
        offset
        for offset, (payload, value) in enumerate(zip(payloads, values, strict=True))
        if long.search(payload) and not audited_silver._is_same(audited_silver._numbers(payload).get("amt"), value)
    }
    view_numbers(database, payloads, values)
    assert wrong_numbers(database) == expected
    assert 500 < len(expected) < 2_500


def test_python_reads_no_payload_whose_number_duckdb_finds_exact(
    database: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer may write an exponent in each record; Python takes microseconds for each."""
    read: list[str | None] = []
    monkeypatch.setattr(audited_silver, "_numbers", lambda payload: read.append(payload) or {})
    exact = ["1e1", "12.5E0", "-1.50000000000000000000", "1.234e2", "10000.0000000000"]
    payloads = [f'{{"amt": {token}, "x": {{"amount": 1e1}}}}' for token in exact]
    view_numbers(database, [*payloads, '{"x":1e5}'], [*(f"{Decimal(token):.2f}" for token in exact), None])
    assert wrong_numbers(database) == set()
    assert read == []


@pytest.mark.parametrize(
    ("payload", "number"),
    [
        ('{"n":123456789012345678e-6}', "123456789012.345678"),
        ('{"n":-1.23456789012345678901e20}', "-123456789012345678901"),
        ('{"n":-0.0}', "0"),
        ('{"n":0e999999999}', "0"),
        ('{"n":1e999999999}', None),
        ('{"n":1e-999999999}', None),
        ('{"n":0.0000010}', "0.0000010"),
        ('{"n":0.0000001}', None),
        ('{"n":"1"}', None),
        ('{"n":true}', None),
        ('{"n":NaN}', None),
        ("[1]", None),
        ("{", None),
        (None, None),
    ],
)
def test_number_of_a_payload_is_read_without_a_double(payload: str | None, number: str | None) -> None:
    assert exact_number(payload, "n", 6) == number


def test_duplicate_is_found_by_all_digits_of_its_identity(database: duckdb.DuckDBPyConnection) -> None:
    """DuckDB's JSON functions read the last one as the double 0.12."""
    tokens = ("0.12", "12e-2", "0.120000000000000000000000001")
    bronze = [bronze_row(offset, b'{"amount":%s}' % token.encode()) for offset, token in enumerate(tokens)]
    duplicates = [rejected_row(offset, "duplicate") for offset in (1, 2)]
    fill(database, bronze, [silver_row(0, "a") | {"amount": Decimal("0.12")}], duplicates)
    register_fixes(database, {})
    JsonFormat().define_texts(database, {})
    define_exact_number(database)
    pipeline = replace(PIPELINE, identity=("amount",))
    assert found(orphan_findings(database, "sales", pipeline)) == [("different", "rejected", 0, 2, 3)]
