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

from include.ground.errors import Refused
from include.ground.settings import Settings
from include.read import record_files
from include.read.record_files import estimated_rows, form_of, lines_of, payloads
from include.read.record_stores import find_files

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


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"id,id\na,1\n", "two columns are named 'id'"),
        (b"id,n\r1,x\r2,y\n", "a line ends in a carriage return alone"),
        ("id,größe\na,1\n".encode("latin1"), "utf-8"),
        (b"\nid,n\n", ""),
    ],
    ids=["same name", "carriage returns", "latin1", "blank"],
)
def test_csv_whose_header_is_no_header_is_refused(settings: Settings, tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with raises(Refused, "file-malformed", match=why) as raised:
        read(settings, path)
    assert raised.value.remedy.startswith("mend the file")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"id,ID\n1,2\n", [b'{"id":"1","ID":"2"}']),
        (b"id,n,\n1,2,\n", [b'{"id":"1","n":"2"}']),
        (b"id,n", []),
        (b"\xef\xbb\xbfid\n1\n", [b'{"id":"1"}']),
    ],
    ids=["case", "last comma", "no line feed", "byte order mark"],
)
def test_names_of_csv_are_those_of_its_header(
    settings: Settings, tmp_path: Path, content: bytes, found: list[bytes]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert read(settings, path) == found


def test_byte_order_mark_is_no_part_of_the_first_line(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a":1}\n{"a":2}\n')
    assert read(settings, path) == [b'{"a":1}', b'{"a":2}']


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


def test_values_inside_others_are_json_as_those_outside(settings: Settings, tmp_path: Path) -> None:
    inner = pa.struct([("at", pa.timestamp("us", "UTC")), ("raw", pa.binary()), ("none", pa.string())])
    given = {
        "a": pa.array([[{"at": AT, "raw": b"\xff\x00a", "none": None}], None], pa.list_(inner)),
        "A": pa.array([[0.1, float("inf"), None], []], pa.list_(pa.float64())),
        "m": pa.array([[('k"', {"x": b"a"})], []], pa.map_(pa.string(), pa.struct([("x", pa.large_binary())]))),
        "f": pa.array([b"abc", None], pa.binary(3)),
        "t": pa.array(["x", None], pa.large_string()),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(given), path)
    first, second = map(json.loads, read(settings, path))
    assert first == {
        "a": [{"at": "2019-03-04T05:06:07.080000Z", "raw": "/wBh", "none": None}],
        "A": [0.1, "inf", None],
        "m": {'k"': {"x": "YQ=="}},
        "f": "YWJj",
        "t": "x",
    }
    assert second == {"A": [], "m": {}}


@pytest.mark.parametrize("content", [b"", b"Obj\x01 no avro"])
def test_avro_that_is_none_is_refused(settings: Settings, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.avro"
    path.write_bytes(content)
    with raises(Refused, "file-malformed", match=r"a\.avro is not of its format"):
        read(settings, path)


def test_rows_of_avro_are_json(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    pl.DataFrame({"id": ["a", None], "n": [1, 2], "at": [AT.replace(tzinfo=None)] * 2}).write_avro(path)
    found = [json.loads(row) for row in read(settings, path)]
    assert found == [
        {"id": "a", "n": 1, "at": "2019-03-04T05:06:07.080000Z"},
        {"n": 2, "at": "2019-03-04T05:06:07.080000Z"},
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_rows_are_estimated(settings: Settings, tmp_path: Path, name: str) -> None:
    text = b"".join(b'{"id": %d, "x": "%s"}\n' % (n, b"y" * (n % 50)) for n in range(50_000))
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = find_files(settings, str(tmp_path / name))
    assert estimated_rows(settings, found, "jsonl") == pytest.approx(50_000, rel=0.1)
