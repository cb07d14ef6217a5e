"""The texts that `make golden` compares: batches and times change nothing, a value does."""

from __future__ import annotations

import json
from typing import Any

from golden.plain import json_text, rows_text

TYPES = [("day", "DATE"), ("flights", "BIGINT"), ("_last_batch", "BIGINT")]


def table(**changed: Any) -> str:
    rows = [{"day": f"2013-01-{day:02}", "flights": day, "_last_batch": 0} for day in range(1, 29)]
    rows[20] |= changed
    return rows_text(map(json.dumps, reversed(rows)), TYPES)


def test_a_value_changes_the_text_of_its_table_and_names_the_column() -> None:
    differing = set(table(flights=7).splitlines()) - set(table().splitlines())

    assert {line.split()[0] for line in differing} == {"28", "flights", '{"day":'}


def test_batches_and_the_order_of_rows_do_not() -> None:
    assert table(_last_batch=7) == table()


def test_a_value_that_is_not_shown_changes_the_hash() -> None:
    rows = [json.dumps({"flights": number}) for number in range(1000)]
    other = [*rows[:501], json.dumps({"flights": 501.5}), *rows[502:]]

    assert len(rows_text(rows, []).splitlines()) < 200
    assert rows_text(rows, []) != rows_text(other, [])


def test_times_ids_and_batches_are_left_out_of_json() -> None:
    first = {
        "seconds": 1.5,
        "release": "c491e67ed50a",
        "reasons": [{"detail": "0/1/77"}],
        "rows": 3,
        "sources": ["s.a batch 2"],
        "sum": 100.65419056273464,
    }
    again = {
        "seconds": 2.5,
        "release": "a78794560a2a",
        "reasons": [{"detail": "4/1/77"}],
        "rows": 3,
        "sources": ["s.a batch 1"],
        "sum": 100.65419056273451,
    }

    assert json_text(json.dumps(first)) == json_text(json.dumps(again))
    assert json_text(json.dumps(first)) != json_text(json.dumps(first | {"rows": 4}))


def test_the_batch_verdict_of_a_workload_is_recorded() -> None:
    right, wrong = ({"batch": 7, "differing_rows": {"stream": 0, "batch": rows}} for rows in (0, 3))

    assert json_text(json.dumps(right)) == json_text(json.dumps(right | {"batch": 8}))
    assert json_text(json.dumps(right)) != json_text(json.dumps(wrong))
