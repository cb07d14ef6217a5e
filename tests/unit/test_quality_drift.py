"""Drift: each planted change is named with the first record that shows it; an unchanged history warns of nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pyarrow.dataset as pd
import pytest
from error_codes import raises

from include.change.drift import DriftWarning, RecordPosition, drift_warnings, psi_term
from include.declare.contract import Column, Contract
from include.ground.errors import Terminal
from include.read.published_tables import PinnedTables

PARTS = Column("parts", "array", fields=(Column("", "object", fields=(Column("no", "integer"),)),))
LINE = Column("", "object", fields=(Column("price", "integer"), PARTS))
CONTRACT = Contract(
    "sales",
    "1.0.0",
    (
        Column("event_id", "string"),
        Column("shop", "string"),
        Column("units", "integer"),
        Column("gift", "boolean"),
        Column("buyer", "object", fields=(Column("city", "string"), Column("card", "variant"))),
        Column("card_no", "string", physical_name="buyer.card.owner.no"),
        Column("lines", "array", fields=(LINE,)),
        Column("by_day", "map", fields=(LINE,)),
    ),
    (),
    ("event_id",),
)
BATCHES, ROWS, CHANGED = 10, 200, 8
Row = dict[str, Any]
Plant = Callable[[Row], None]


class Tables:
    def __init__(self, plant: Plant | None) -> None:
        rng = random.Random(7)
        rows = [self._row(rng, batch, place, plant) for batch in range(BATCHES) for place in range(ROWS)]
        names = [name for name in rows[0] if name != "payload"]
        self.silver = pa.Table.from_pylist([{name: row[name] for name in names} for row in rows])
        self.bronze = pa.Table.from_pylist(
            [
                {
                    "_batch_id": row["_batch_id"],
                    "partition": row["_partition"],
                    "offset": row["_offset"],
                    "value": row["payload"],
                }
                for row in rows
            ]
        )

    def _row(self, rng: random.Random, batch: int, place: int, plant: Plant | None) -> Row:
        row: Row = {
            "_batch_id": batch,
            "_partition": 0,
            "_offset": batch * 1000 + place,
            "event_id": f"e{batch}-{place}",
            "shop": rng.choice(["north", "south", "east"]),
            "units": int(rng.gauss(50, 10)) if 0 < place < ROWS - 1 else 50 + 60 * (1 if place else -1),
            "gift": rng.random() < 0.1,
            "buyer": {"city": "Ulm", "card": "{}"},
            "card_no": "1",
            "lines": [],
            "by_day": "{}",
            "payload": b"{}",
        }
        if plant is not None and batch >= CHANGED and place >= 5:
            plant(row)
        return row

    def arrow(self, name: str) -> Any:
        return pd.dataset({"silver.sales": self.silver, "bronze.sales": self.bronze}[name])


def warnings(plant: Plant | None = None, since: int = CHANGED) -> list[DriftWarning]:
    return drift_warnings(cast(PinnedTables, Tables(plant)), CONTRACT, since, {})


def no_units(row: Row) -> None:
    if row["_offset"] % 3 == 0:
        row["units"] = None


def more_units(row: Row) -> None:
    row["units"] = min(row["units"] + 25, 110)


def far_units(row: Row) -> None:
    if row["_offset"] == 8_050:
        row["units"] = 5_000


def new_shop(row: Row) -> None:
    if row["_offset"] in (8_100, 9_100):
        row["shop"] = "moon"


def one_shop(row: Row) -> None:
    row["shop"] = "north"


def same_ids(row: Row) -> None:
    row["event_id"] = f"e{row['_offset'] % 20}"


def unknown_field(row: Row) -> None:
    if row["_offset"] >= 9_010:
        row["payload"] = json.dumps({"shop": "north", "colour": "red"}).encode()


def unknown_field_inside(row: Row) -> None:
    if row["_offset"] == 9_010:
        buyer = {"city": "Ulm", "e.mail": "x", "shop": "y", "card": {"kind": 1, "owner": {"no": "1", "name": "kept"}}}
        row["payload"] = json.dumps({"shop": "north", "buyer": buyer}).encode()


def test_each_unknown_field_inside_of_an_object_is_named_by_its_path() -> None:
    found = [(each.column, each.measure) for each in warnings(unknown_field_inside)]
    assert found == [("/buyer/e.mail", "unknown field"), ("buyer.shop", "unknown field")]


def unknown_field_of_elements(row: Row) -> None:
    if row["_offset"] in (9_010, 9_011):
        line = {"price": 1, "tax": 2, "parts": [{"no": 1}, {"no": 2, "a.b": 3}]}
        row["payload"] = json.dumps({"lines": [line, line, 7], "by_day": {"Monday": {"price": 1, "tax": 2}}}).encode()


def test_unknown_field_of_an_arrays_elements_is_named_once_for_each_record() -> None:
    found = [(each.column, each.now, each.first) for each in warnings(unknown_field_of_elements)]
    first = RecordPosition(9, 0, 9_010)
    assert found == [("lines[].tax", "2 records", first), ("/lines[]/parts[]/a.b", "2 records", first)]


def test_unchanged_history_has_no_warnings() -> None:
    assert warnings() == []


@pytest.mark.parametrize(
    ("plant", "column", "measure", "first"),
    [
        (no_units, "units", "nulls", 8_007),
        (more_units, "units", "psi", None),
        (far_units, "units", "range", 8_050),
        (new_shop, "shop", "value", 8_100),
        (one_shop, "shop", "psi", 8_005),
        (same_ids, "event_id", "distinct", 8_000),
        (unknown_field, "colour", "unknown field", 9_010),
    ],
)
def test_drift_is_named_with_its_first_record(plant: Plant, column: str, measure: str, first: int | None) -> None:
    found = [warning for warning in warnings(plant) if (warning.column, warning.measure) == (column, measure)]
    assert len(found) == 1
    assert {warning.column for warning in warnings(plant)} == {column}
    if first is not None:
        batch = first // 1000
        at = found[0].first
        assert at is not None
        assert (at.batch, at.partition) == (batch, 0)
        if measure != "psi":
            assert at == RecordPosition(batch, 0, first)


def test_period_without_records_is_refused() -> None:
    with raises(Terminal, "nothing-to-compare"):
        warnings(since=BATCHES)


def test_payload_that_is_not_json_has_no_fields() -> None:
    def broken(row: Row) -> None:
        row["payload"] = b"\xff{" if row["_offset"] % 2 else b"[1]"

    assert warnings(broken) == []


def test_stability_index_follows_its_definition() -> None:
    totals = {False: 100, True: 100}
    assert psi_term({False: 50, True: 50}, totals) == 0
    assert psi_term({False: 50, True: 100}, totals) == pytest.approx(0.5 * 0.693147, rel=1e-5)
    assert psi_term({True: 50}, totals) > 3
