"""The registry of column types: what a contract declares, widening, renamed columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from include.declare.column_type import rounded_to_float, shortest_float
from include.declare.contract import ADDITIVE, BREAKING, Column, Contract, contract_changes
from include.declare.contract_types import COLUMN_TYPES, declared_type
from include.declare.yaml_declarations import InvalidValue

DECLARED = {
    **{("string", name, None): "string" for name in ("", "string", "text", "VARCHAR")},
    ("string", "uuid", None): "uuid",
    ("string", "", "uuid"): "uuid",
    ("string", "uuid", "uuid"): "uuid",
    ("string", "binary", None): "binary",
    ("string", "", "byte"): "binary",
    **{("integer", name, None): "integer" for name in ("", "int", "INTEGER", "int32")},
    ("integer", "", "i32"): "integer",
    **{("integer", name, None): "bigint" for name in ("bigint", "BigInt", "long", "int64")},
    ("integer", "", "i64"): "bigint",
    ("integer", "smallint", None): "smallint",
    ("integer", "short", "i16"): "smallint",
    ("integer", "byte", None): "tinyint",
    **{("number", name, None): "number" for name in ("", "decimal(9,2)", "numeric(9, 2)", "DECIMAL(9)")},
    ("number", "float", None): "float",
    ("number", "", "f32"): "float",
    ("number", "double", None): "double",
    ("number", "", "f64"): "double",
    ("timestamp", "", None): "timestamp",
    ("timestamp", "timestamptz", None): "timestamp",
    ("date", "", None): "date",
    ("date", "date", "yyyy-MM-dd"): "date",
    ("time", "", None): "time",
    ("boolean", "bool", None): "boolean",
    **{("object", name, None): "object" for name in ("", "struct")},
    ("object", "map", None): "map",
    ("object", "variant", None): "variant",
    ("array", "", None): "array",
}
REFUSED = {
    ("integer", "bigit", None): "physicalType",
    ("integer", "string", None): "physicalType",
    ("integer", "decimal(9,0)", None): "physicalType",
    ("integer", "bigint", "i32"): "physicalType",
    ("integer", "", "u64"): "logicalTypeOptions.format",
    ("number", "decimal", None): "physicalType",
    ("number", "bigint", None): "physicalType",
    ("number", "decimal(9,2)", "f64"): "physicalType",
    ("string", "varchar(20)", None): "physicalType",
    ("string", "", "email"): "logicalTypeOptions.format",
    ("string", "text", "uuid"): "physicalType",
    ("date", "timestamp", None): "physicalType",
    ("date", "", "dd.MM.yyyy"): "logicalTypeOptions.format",
    ("timestamp", "timestamp_ntz", None): "physicalType",
    ("timestamp", "", "yyyy-MM-dd"): "logicalTypeOptions.format",
    ("time", "string", None): "physicalType",
    ("boolean", "int", None): "physicalType",
}


@pytest.mark.parametrize("case", DECLARED, ids=str)
def test_declaration_names_a_type(case: tuple[str, str, str | None]) -> None:
    assert declared_type(*case)[0].name == DECLARED[case]


def test_every_type_can_be_declared() -> None:
    assert set(DECLARED.values()) == set(COLUMN_TYPES)
    named = [(kind.logical, name) for kind in COLUMN_TYPES.values() for name in kind.physical]
    assert len(named) == len(set(named))


def test_digits_of_a_decimal_are_read() -> None:
    assert declared_type("number", "decimal(9,2)", None)[1] == {"precision": 9, "scale": 2}
    assert declared_type("number", "numeric( 12 )", None)[1] == {"precision": 12, "scale": 0}
    assert declared_type("number", "", None)[1] == {}


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_other_declaration_is_refused_with_what_is_accepted(case: tuple[str, str, str | None]) -> None:
    with pytest.raises(InvalidValue) as refused:
        declared_type(*case)
    assert ".".join(map(str, refused.value.key)) == REFUSED[case]
    known = [
        name for kind in COLUMN_TYPES.values() if kind.logical == case[0] for name in (*kind.physical, *kind.formats)
    ]
    assert (
        "is not of the format" in refused.value.why
        or any(name in refused.value.why for name in known)
        or ("none: leave it out" in refused.value.why)
    )


UUID = "123e4567-e89b-12d3-a456-426614174000"
VALUES: dict[str, list[tuple[Any, Any]]] = {
    "string": [("x", "x"), (1, None)],
    "uuid": [
        ("123e4567-e89b-12d3-a456-426614174000",) * 2,
        ("123E4567-E89B-12D3-A456-426614174000", None),
        ("x", None),
    ],
    "binary": [("AA==", None)],
    "integer": [(2**40, 2**40), (True, None), (1.0, None)],
    "bigint": [(2**40, 2**40), ("1", None)],
    "smallint": [(1, 1), (None, None)],
    "tinyint": [(1, 1), ([], None)],
    "number": [(0.1, Decimal("0.1")), (float("nan"), None), ("1", None)],
    "float": [(0.1, rounded_to_float(0.1)), (0.123456789, None), (1e39, None), (float("inf"), None)],
    "double": [(0.1, 0.1), (1, 1.0), (False, None)],
    "timestamp": [
        ("2013-01-31T01:00:00+01:00", datetime(2013, 1, 31, tzinfo=UTC)),
        ("2013-01-31T01:00:00", None),
        (date(2013, 1, 31), None),
    ],
    "date": [
        ("2013-01-31", date(2013, 1, 31)),
        (date(2013, 1, 31), date(2013, 1, 31)),
        ("2013-02-30", None),
        ("20130131", None),
        (datetime(2013, 1, 31, tzinfo=UTC), None),
    ],
    "time": [("08:30:00.5", "08:30:00.5"), ("08:30:00.50", None), (30600, None), ("24:00:00", None)],
    "boolean": [(True, True), (1, None)],
    **{name: [({}, None), ("x", None)] for name in ("object", "map", "variant", "array")},
}


@pytest.mark.parametrize("name", COLUMN_TYPES)
def test_value_in_yaml_is_read_as_the_columns_type_or_refused(name: str) -> None:
    for written, expected in VALUES[name]:
        if expected is not None:
            assert COLUMN_TYPES[name].value(written) == expected
            continue
        with pytest.raises(InvalidValue, match="^must "):
            COLUMN_TYPES[name].value(written)


def test_shortest_text_of_a_float_is_read_as_it() -> None:
    for value in (0.1, 1 / 3, 16777217.0, 3.4028235e38, 1e-45, -0.0, 123456.79):
        nearest = rounded_to_float(value)
        assert rounded_to_float(float(shortest_float(nearest))) == nearest
    assert shortest_float(rounded_to_float(0.1)) == "0.1"
    assert rounded_to_float(1e39) == float("inf")


def changes(old: Column, new: Column) -> list[tuple[str, str, str]]:
    contracts = [Contract("shop", "1.0.0", (column,), (), ()) for column in (old, new)]
    return [(change.part, change.kind, change.why) for change in contract_changes(*contracts)]


WIDER = {
    ("tinyint", "smallint"),
    ("tinyint", "integer"),
    ("tinyint", "bigint"),
    ("smallint", "integer"),
    ("smallint", "bigint"),
    ("integer", "bigint"),
    ("float", "double"),
}


@pytest.mark.parametrize("old", COLUMN_TYPES)
@pytest.mark.parametrize("new", COLUMN_TYPES)
def test_only_a_type_with_every_value_of_the_other_is_a_compatible_change(old: str, new: str) -> None:
    found = changes(Column("n", old), Column("n", new))
    kinds = [] if old == new else [ADDITIVE if (old, new) in WIDER else BREAKING]
    assert [kind for _, kind, _ in found] == kinds
    if kinds == [ADDITIVE]:
        names = (COLUMN_TYPES[name].physical[0] for name in (old, new))
        assert found[0][2].startswith("type widened {} → {}: ".format(*names))


def test_column_that_is_read_from_the_same_field_under_another_name_is_a_rename() -> None:
    old = Column("customer_id", "string", required=True)
    found = changes(old, replace(old, name="client", physical_name="customer_id"))
    assert found == [
        (
            "client",
            BREAKING,
            "column customer_id → client, read from the same field customer_id of the record: readers of silver lose "
            "customer_id",
        )
    ]


def test_column_that_is_renamed_and_changed_has_both_changes() -> None:
    old = Column("customer_id", "integer", required=True)
    new = Column("client", "bigint", physical_name="customer_id")
    assert [(part, kind) for part, kind, _ in changes(old, new)] == [
        *[("client", BREAKING), ("client", BREAKING), ("client", ADDITIVE)]
    ]


def test_column_of_another_field_says_which_records_are_rejected() -> None:
    old = Column("customer_id", "string", required=True)
    found = changes(old, replace(old, physical_name="customerId"))
    assert found == [
        (
            "customer_id",
            BREAKING,
            "read from field customer_id → customerId of the record: records that have customer_id alone are rejected",
        )
    ]
    new = Contract("shop", "1.0.0", (old, Column("x", "string", required=True, physical_name="X")), (), ())
    added = contract_changes(Contract("shop", "1.0.0", (old,), (), ()), new)
    assert [change.why for change in added] == ["added: required, records without the field X are rejected"]
