"""Records that are lines of CSV: rows by both backends; the readers of data plane and audit agree about any line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import Record
from test_line_payloads import HISTORY, LineDataset, audited, reasons
from test_recomputed_history import differing

from include.declare.contract import BREAKING, Column, Contract, contract_changes
from include.declare.contract_file import load_contract
from include.declare.line_payloads import CsvFormat
from include.declare.yaml_declarations import DeclarationRefused
from include.read.memory_database import memory_database
from spark_jobs.contract.payload_texts import UNREAD, PayloadTexts

COLUMNS = """\
      - {name: price_id, logicalType: string, required: true, unique: true, primaryKey: true}
      - {name: at, logicalType: timestamp, required: true}
      - {name: price, logicalType: number, physicalType: "decimal(9,2)"}
      - {name: lots, logicalType: integer, logicalTypeOptions: {minimum: 1}}
      - {name: open, logicalType: boolean}
      - {name: traded, logicalType: date}
      - {name: note, logicalType: string}
"""
SILVER = '''\
"""The accepted records."""

from pyspark.sql import DataFrame


def silver(accepted: DataFrame) -> DataFrame:
    """Return them as they are."""
    return accepted
'''
PRICES = LineDataset("prices", "price_id", "      - {property: format, value: csv}", COLUMNS, SILVER)
AT = "2026-11-30T12:00:00Z"
BATCHES: list[list[bytes | None]] = [
    [
        f"p1,{AT},1.50,3,true,2026-11-30,plain".encode(),
        f'p2,{AT},"2.25",,,,"say ""hi"", Ω\nsecond"'.encode(),
        f'p3,{AT},,,false,,""\r\n'.encode(),
        f"p4,{AT},1,2,3".encode(),
        f"p5,{AT},1,2,true,,x,y,z".encode(),
        f'p6,{AT},1,2,true,,"open'.encode(),
        f'p7,{AT},1,2,true,,"a"b'.encode(),
        f'p8,{AT},1,2,true,,5" pipe'.encode(),
        f"p9,{AT},1,2,true,,a\nb".encode(),
        b"p10,\xff",
        None,
        b"",
    ],
    [
        f"p11,{AT},+1,2,true,,".encode(),
        f"p12,{AT},1,0,yes,,".encode(),
        f"p13,{AT},1,0,true,,".encode(),
        f",{AT},1,2,true,,".encode(),
        f"p14,{AT},1.234,2,true,,".encode(),
        f'"p1",{AT},9,9,true,,later'.encode(),
        f"p15,{AT},7,2,true,,last\n".encode(),
    ],
]
REASONS = [
    *(("field_count", "5, not 7"), ("field_count", "9, not 7"), ("csv_quote", "field 7 does not end")),
    *(("csv_quote", "field 7 goes on"), ("csv_quote", "field 7 has a quote inside"), ("line_break", "field 7")),
    *(("bad_utf8", None), ("null_value", None), ("field_count", "1, not 7")),
    *(("type price", "+1"), ("type open", "yes"), ("range lots", "0"), ("missing_id price_id", None)),
    *(("scale price", "1.234"), ("duplicate price_id", "0/0/100")),
]


def test_lines_of_csv_become_rows(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    PRICES.written(tmp_path / "datasets")
    release = PRICES.release(spark, tmp_path, tmp_path / "datasets", backend)
    for values in BATCHES:
        release.take([Record(value) for value in values])
    assert reasons(release) == REASONS
    rows = release.silver().sort("_offset").select("price_id", "price", "lots", "open", "traded", "note").rows()
    assert rows == [
        ("p1", Decimal("1.50"), 3, True, date(2026, 11, 30), "plain"),
        ("p2", Decimal("2.25"), None, None, None, 'say "hi", Ω\nsecond'),
        ("p3", None, None, False, None, ""),
        ("p15", Decimal("7.00"), 2, True, None, "last"),
    ]
    assert audited(release) == []
    assert differing(release) == {}
    _, rebuilt, changed = SlicePatcher(release, tmp_path).rebuild(HISTORY)
    assert (rebuilt.core, set(changed.values())) == (19, {0})
    one = PRICES.release(spark, tmp_path / "one batch", tmp_path / "datasets", backend)
    one.take([Record(value) for values in BATCHES for value in values])
    assert one.silver().sort("_offset").select("price_id", "note").rows() == [(row[0], row[-1]) for row in rows]


FORMS = [CsvFormat(), CsvFormat(delimiter=";", quote="'", null_text="NULL"), CsvFormat(delimiter="\t", null_text="-")]
FIELDS = (
    *(Column("a", "string"), Column("b", "integer"), Column("c", "number", precision=38, scale=10)),
    *(Column("d", "boolean"), Column("e", "string", physical_name="E e")),
)
WORDS = [
    "1",
    "-2.50",
    "1e3",
    "007",
    "+1",
    "true",
    "TRUE",
    "NULL",
    "-",
    "",
    " ",
    "\0",
    "\r",
    "\n",
    "\r\n",
    "\t",
    "Ω",
    "🂡",
]


@st.composite
def hostile_line(draw: st.DrawFn, form: CsvFormat) -> bytes:
    """Return a line that is right, mostly, or has a fault of any kind."""
    signs = [form.quote, form.delimiter, *[form.null_text] * 3, *WORDS, "x", "\\"]
    fields = draw(st.lists(st.lists(st.sampled_from(signs), max_size=3).map("".join), min_size=4, max_size=6))
    written = [
        f"{form.quote}{field.replace(form.quote, form.quote * 2)}{form.quote}" if draw(st.booleans()) else field
        for field in fields
    ]
    line = form.delimiter.join(written).encode()
    return draw(st.sampled_from([line, line, line, line + b"\n", line + b"\r\n", line + b"\xff", line[:-1]]))


@pytest.mark.parametrize("examples", [100, pytest.param(300, marks=pytest.mark.extended)])
@pytest.mark.parametrize("form", FORMS, ids=["rfc", "other signs", "tabs"])
def test_both_readers_agree_about_any_line(spark: SparkSession, form: CsvFormat, examples: int) -> None:
    contract = Contract("lines", "1", FIELDS, (), (), payload=form)
    seen = Counter[str]()

    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=[*HealthCheck],
    )
    @given(st.lists(hostile_line(form), min_size=8, max_size=8))
    def generate(some: list[bytes]) -> None:
        lines.extend(some)

    lines = list[bytes]()
    generate()
    rows = spark.createDataFrame(pa.table({"n": range(len(lines)), "value": pa.array(lines, pa.binary())}))
    read = PayloadTexts(contract).of(rows).orderBy("n").collect()
    for line, row in zip(lines, read, strict=True):
        found = form.text(line, {}, FIELDS)
        assert (found is None) == (row[UNREAD] is not None), (line, found, row[UNREAD])
        assert exact(None if row["value"] is None else bytes(row["value"]).decode()) == exact(found), line
        seen[row[UNREAD]["rule"] if found is None else "read"] += 1
    print(seen)
    assert seen.keys() == {"read", "bad_utf8", "csv_quote", "field_count", "line_break"}
    assert min(seen.values()) >= 10


def exact(text: str | None) -> Any:
    """Return the members of an object, in order, with numbers as they are written."""
    number = "number {}".format
    return None if text is None else json.loads(text, parse_int=number, parse_float=number, object_pairs_hook=list)


def test_fix_of_a_line_is_json() -> None:
    database = memory_database()
    CsvFormat().define_texts(database, {}, FIELDS[:2])
    values = [b"x,1", b"x,1,2", b'{"a": "x"}', None]
    found = database.execute("select payload_text(?), payload_text(?), fix_text(?), fix_text(?)", values).fetchall()
    assert found == [('{"a":"x","b":1}', None, '{"a": "x"}', None)]


OPTION = "\n      - {property: %s, value: %s}"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("delimiter", '";;"'), "delimiter must be one character"),
        (("quote", '"é"'), "quote must be one character"),
        (("quote", "','"), "delimiter and quote must differ"),
        (("nullText", "'a,b'"), "nullText must be text that needs no quotes"),
        (("fields", "[price_id, price_id]"), "fields must be a list of different names"),
        (("fields", "[price_id, at, price, lots, open, traded]"), "note is not in fields"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: tuple[str, str], why: str) -> None:
    folder = replace(PRICES, properties=PRICES.properties + OPTION % options).written(tmp_path)
    with pytest.raises(DeclarationRefused, match=why):
        load_contract(folder)


def test_options_are_read_and_refused_of_other_formats(tmp_path: Path) -> None:
    others = OPTION % ("delimiter", "';'") + OPTION % ("fields", "[note, x, price_id, at, price, lots, open, traded]")
    csv = load_contract(replace(PRICES, properties=PRICES.properties + others).written(tmp_path / "a"))
    assert csv.payload.described.startswith("csv (delimiter ';', quote")
    line = f"n;x;p1;{AT};1;2;true;2026-11-30".encode()
    assert json.loads(csv.payload.text(line, {}, csv.columns) or "")["price_id"] == "p1"
    (change,) = [each for each in contract_changes(replace(csv, payload=CsvFormat()), csv) if each.part == "format"]
    assert change.kind == BREAKING
    of_json = replace(PRICES, properties=OPTION[1:] % ("delimiter", "';'"))
    with pytest.raises(DeclarationRefused, match="delimiter: is of another format than json"):
        load_contract(of_json.written(tmp_path / "b"))
    items = COLUMNS + "      - {name: items, logicalType: array, items: {logicalType: string}}\n"
    with pytest.raises(DeclarationRefused, match="a field of csv is one value"):
        load_contract(replace(PRICES, columns=items).written(tmp_path / "c"))
