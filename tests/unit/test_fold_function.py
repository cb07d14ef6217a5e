"""The Python function of a `fold` table: which rows it gets, what it may return, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from include.declare.fold_function import PLACE_IN_ORDER, FoldFunction, FunctionFailed, parsed_function

MADE = pa.schema([("key", pa.string()), ("total", pa.int64()), ("part", pa.string())])
RUNNING = """
def running(rows):
    total = 0
    for value in rows["value"].to_pylist():
        total += 10 // value
        yield {"total": total}
"""


def ordered(rows: list[tuple[str | None, int, int]]) -> pa.Table:
    names = ["key", "value", PLACE_IN_ORDER]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) | {"part": "p"} for row in rows])


def made(text: str, rows: list[tuple[str | None, int, int]], name: str = "running") -> list[tuple[object, ...]]:
    found = FoldFunction("f.py", name, text).of_keys(ordered(rows), ["key", "part"], MADE)
    assert found.schema == MADE
    return [tuple(row.values()) for row in found.to_pylist()]


def test_rows_of_each_key_come_in_their_order_whatever_the_order_of_the_table() -> None:
    rows: list[tuple[str | None, int, int]] = [("b", 5, 2), (None, 1, 1), ("a", 10, 1), ("b", 2, 1)]
    assert made(RUNNING, rows) == [("a", 1, "p"), ("b", 5, "p"), ("b", 7, "p"), (None, 10, "p")]
    assert made(RUNNING, rows[::-1]) == made(RUNNING, rows)
    table = FoldFunction("f.py", "running", RUNNING).of_keys(ordered(rows).slice(0, 0), ["key", "part"], MADE)
    assert (len(table), table.schema) == (0, MADE)


def test_a_function_may_return_a_table_or_nothing() -> None:
    text = "import pyarrow as pa\ndef running(rows):\n    return pa.table({'total': [len(rows)]})"
    assert made(text, [("a", 1, 1), ("a", 2, 2)]) == [("a", 2, "p")]
    assert made("def running(rows):\n    return []", [("a", 1, 1)]) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RUNNING, "fails on the rows of key='b', part='p': ZeroDivisionError"),
        ("def running(rows):\n    yield {'sum': 1}", "it makes sum, and `returns` declares total"),
        ("def running(rows):\n    yield {'total': 'many'}", "part='p': Arrow"),
        ("def running(rows):\n    return None", "'NoneType' object is not iterable"),
    ],
)
def test_a_failure_names_function_and_key(text: str, why: str) -> None:
    with pytest.raises(FunctionFailed, match="f.py:running fails on the rows of key=") as failed:
        made(text, [("b", 0, 1)])
    assert why in str(failed.value)


def test_an_error_of_the_machine_is_none_of_the_rows() -> None:
    with pytest.raises(OSError, match="disk"):
        made("def running(rows):\n    raise OSError('disk')", [("b", 0, 1)])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import random\ndef running(rows): return []", "f.py:1: imports random"),
        ("from time import time\ndef running(rows): return []", "imports time"),
        ("import datetime\ndef running(rows): return [datetime.datetime.now()]", "f.py:2: calls now()"),
        ("seen = 0\ndef running(rows):\n    global seen\n    return []", "f.py:3: changes seen"),
        ("def other(rows): return []", "f.py has no function running"),
        ("def running(rows) return []", "f.py:1: SyntaxError"),
    ],
)
def test_a_function_that_is_none_or_may_give_other_rows_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "f.py").write_text(text)
    with pytest.raises(ValueError, match="f.py") as refused:
        parsed_function("f.py:running", tmp_path, strict=True)
    assert why in str(refused.value)
    assert parsed_function("f.py:running", tmp_path, strict=False).text == text


@pytest.mark.parametrize("value", ["f.py", "f.sql:running", "../f.sql", "gone.sql", "f.txt"])
def test_a_file_that_cannot_be_the_function_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "f.sql").write_text("select 1")
    (tmp_path.parent / "f.sql").write_text("select 1")
    with pytest.raises(ValueError, match=r"must be|no file"):
        parsed_function(value, tmp_path, strict=True)
