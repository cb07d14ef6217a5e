"""Payloads of files: lines byte for byte, rows of CSV, Parquet and Avro as the equivalent JSON; patterns."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from error_codes import raises

from include.ground.errors import Transient
from include.ground.settings import Settings
from include.read import record_files
from include.read.record_files import (
    estimated_rows,
    find_files,
    form_of,
    lines_of,
    payloads,
)

LINES = [b'{"a": 1}', b"\xff\xfe no text \x01", b'{"b": "\xc3\xa4"}\r', b'{"c": 3} ']


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "state")


def read(settings: Settings, path: Path, literals: Sequence[str] = ()) -> list[bytes]:
    found = payloads(settings, str(path), form_of(str(path)), literals)
    return [value for chunk in found for value in chunk.to_pylist()]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\n\na\n\r\n", [b"a"]),
        (b"a\rb\r\r\n", [b"a\rb\r"]),
        (b"\n", []),
    ],
)
def test_lines_end_with_a_line_feed(text: bytes, lines: list[bytes]) -> None:
    assert lines_of(text).to_pylist() == lines


@pytest.mark.parametrize(
    ("name", "pack"), [("a.jsonl", bytes), ("a.json.gz", gzip.compress), ("a.txt.bz2", bz2.compress)]
)
@pytest.mark.parametrize("block", [3, 7, 8 << 20])
def test_lines_are_read_byte_for_byte(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    pack: Callable[[bytes], bytes],
    block: int,
) -> None:
    monkeypatch.setattr(record_files, "READ_BYTES", block)
    path = tmp_path / name
    path.write_bytes(pack(b"\n\n".join([LINES[0], LINES[1], LINES[2] + b"\r", LINES[3]])))
    assert read(settings, path) == LINES


ROWS: list[dict[str, Any]] = [
    {"id": "a", "n": 12, "price": "0.10", "note": 'x "y", \\ \u00e4\nz', "ok": True},
    {"id": "", "n": -1, "price": "1e3", "note": "", "ok": False},
]


def test_rows_of_csv_are_json_by_the_names_of_the_header(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
        writer.writerow(["id", "n", "price", "note", "ok"])
        writer.writerow(["a", "12", "0.10", ROWS[0]["note"], "true"])
        writer.writerow(["", "-1", "one", None, "false"])
    found = read(settings, path, ["n", "price", "ok"])
    assert json.loads(found[0]) == {**ROWS[0], "price": 0.1}
    assert b'"price":0.10,' in found[0], "digits are kept"
    assert json.loads(found[1]) == {"n": -1, "price": "one", "ok": False}


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("block", [64, 300, 8 << 20])
def test_odd_rows_of_csv_are_records_that_a_contract_rejects(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(record_files, "READ_BYTES", block)
    path, kinds = tmp_path / "a.csv", random.Random(3).choices("mlig", k=200)
    rows = {"m": b"%d,x,y", "l": b"%d", "i": b"%d,\xff", "g": b'%d,"x\ny"', "b": b"%d,\xff,\xc3\xa4"}
    payloads = {"m": b'"%d,x,y"', "l": b'"%d"', "i": b'{"id":%d,"n":"\xff"}', "g": b'{"id":%d,"n":"x\\ny"}'}
    payloads["b"] = b'"%d,\xff,\xc3\xa4"'
    for both in ("", "b"):
        kinds[100:100] = both * 3
        path.write_bytes(b"id,n\n" + b"".join(rows[kind] % n + b"\n" for n, kind in enumerate(kinds)))
        assert read(settings, path, ["id"]) == [payloads[kind] % n for n, kind in enumerate(kinds)]
    for text in ("id,n\n", ""):
        path.write_text(text)
        assert read(settings, path) == []


def test_damaged_csv_is_named(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,id\na,1\n")
    with raises(Transient, "files-unreadable", match="the header has 'id' twice"):
        read(settings, path)


AT = datetime(2019, 3, 4, 5, 6, 7, 80_000, UTC)
TYPED = {
    "text": pa.array(['a"b', None]),
    "whole": pa.array([2**62, 1], pa.int64()),
    "exact": pa.array([Decimal("12345678901234567.89"), None], pa.decimal128(20, 2)),
    "real": pa.array([0.1, float("nan")]),
    "at": pa.array([AT, None], pa.timestamp("ns", "Europe/Berlin")),
    "inside": pa.array([{"x": [1, 2]}, None], pa.struct([("x", pa.list_(pa.int32()))])),
    "flag": pa.array([True, False]),
}


def test_rows_of_parquet_are_json_with_all_their_digits(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(TYPED), path)
    first, second = (json.loads(row, parse_float=Decimal) for row in read(settings, path))
    assert first == {
        "text": 'a"b',
        "whole": 2**62,
        "exact": Decimal("12345678901234567.89"),
        "real": Decimal("0.1"),
        "at": "2019-03-04T05:06:07.080000Z",
        "inside": {"x": [1, 2]},
        "flag": True,
    }
    assert second == {"whole": 1, "real": "nan", "flag": False}


def test_rows_of_avro_are_json(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    pl.DataFrame({"id": ["a", None], "n": [1, 2], "at": [AT.replace(tzinfo=None)] * 2}).write_avro(path)
    found = [json.loads(row) for row in read(settings, path)]
    assert found == [
        {"id": "a", "n": 1, "at": "2019-03-04T05:06:07.080000Z"},
        {"n": 2, "at": "2019-03-04T05:06:07.080000Z"},
    ]


def test_pattern_names_files(settings: Settings, tmp_path: Path) -> None:
    for name in ("2019/a.jsonl", "2019/b.jsonl", "2019/b.csv", "2020/x/c.jsonl", "d.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")

    def named(pattern: str) -> list[str]:
        return [str(Path(file.address).relative_to(tmp_path)) for file in find_files(settings, f"{tmp_path}/{pattern}")]

    assert named("2019/*.jsonl") == ["2019/a.jsonl", "2019/b.jsonl"]
    assert named("**/*.jsonl") == ["2019/a.jsonl", "2019/b.jsonl", "2020/x/c.jsonl", "d.jsonl"]
    assert named("20??/?.csv") == ["2019/b.csv"]
    assert named("d.jsonl") == ["d.jsonl"]
    assert named("e.jsonl") == named("e/*") == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_rows_are_estimated(settings: Settings, tmp_path: Path, name: str) -> None:
    text = b"".join(b'{"id": %d, "x": "%s"}\n' % (n, b"y" * (n % 50)) for n in range(50_000))
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = find_files(settings, str(tmp_path / name))
    assert estimated_rows(settings, found, "jsonl") == pytest.approx(50_000, rel=0.1)
