"""`row_condition`: which rows a rule is about, as a value. Written as Great Expectations writes its conditions down.

A null is equal to nothing, so `!=` and `NOT_IN` hold for it and no other comparison does: what pandas says, and what
Great Expectations says on pandas (adr-0001).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from include.catalog.yaml_declarations import DeclarationRefused, Node

Value = str | int | Decimal | bool | datetime
ORDERED = ("<", "<=", ">", ">=")
WRITTEN: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "timestamp": str,
}
"""How YAML holds a value of each logicalType."""
OPERATORS = ("==", "!=", *ORDERED, "IN", "NOT_IN")


@dataclass(frozen=True)
class Comparison:
    """`column operator value`; of IN and NOT_IN the value is a tuple."""

    column: str
    operator: str
    value: Value | tuple[Value, ...]


@dataclass(frozen=True)
class Nullity:
    """Whether `column` is null."""

    column: str
    is_null: bool


@dataclass(frozen=True)
class Compound:
    """All of the `parts` (`how` is and), or any of them (or)."""

    how: str
    parts: tuple[Condition, ...]


Condition = Comparison | Nullity | Compound


def read_condition(value: object, types: Mapping[str, str], place: str) -> Condition:
    """Return the condition that `row_condition` says; `types` are the columns that it may name, with their types."""
    if isinstance(value, str):
        why = "is a text of pandas or Spark; write {type: comparison, column: {name: …}, operator: …, parameter: …}"
        raise DeclarationRefused(place, why)
    node = Node(value, place)
    kind = node.one_of("type", ["comparison", "nullity", "and", "or"])
    if kind in ("and", "or"):
        parts = tuple(read_condition(part, types, f"{place}.conditions") for part in node.take("conditions", list))
        if len(parts) < 2:
            raise DeclarationRefused(f"{place}.conditions", "must be two conditions or more")
        found: Condition = Compound(kind, parts)
    else:
        column = _column(node.node("column"), types)
        found = Nullity(column, node.take("is_null", bool)) if kind == "nullity" else _comparison(node, column, types)
    node.finish()
    return found


def condition_columns(condition: Condition | None) -> Iterator[str]:
    """Yield the columns that a condition looks at."""
    if isinstance(condition, Compound):
        for part in condition.parts:
            yield from condition_columns(part)
    elif condition is not None:
        yield condition.column


def typed_value(value: object, kind: str, place: str) -> Value:
    """Return `value` as a column of type `kind` holds it; DeclarationRefused when it is none."""
    if not isinstance(value, WRITTEN[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise DeclarationRefused(place, f"must be a {kind}, is {value!r}")
    if kind == "number":
        return Decimal(str(value))
    if kind == "timestamp":
        return zoned_time(str(value), place)
    assert isinstance(value, str | int | bool)
    return value


def zoned_time(text: str, place: str) -> datetime:
    """Return an ISO 8601 time with its zone, in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise DeclarationRefused(place, f"must be a time like 2013-01-01T00:00:00Z, is {text!r}") from error
    if moment.tzinfo is None:
        raise DeclarationRefused(place, f"must have a zone, like 2013-01-01T00:00:00Z, is {text!r}")
    return moment.astimezone(UTC)


def _column(node: Node, types: Mapping[str, str]) -> str:
    name = node.take("name", str)
    node.finish()
    if name not in types:
        raise DeclarationRefused(node.place, f"{name!r} is no column of the contract")
    return name


def _comparison(node: Node, column: str, types: Mapping[str, str]) -> Comparison:
    operator, kind, given = node.one_of("operator", OPERATORS), types[column], node.take("parameter", object)
    place = f"{node.place}.parameter"
    if operator in ("IN", "NOT_IN"):
        return Comparison(column, operator, _values(given, kind, place))
    if operator in ORDERED and kind == "boolean":
        raise DeclarationRefused(place, "booleans have no order")
    return Comparison(column, operator, typed_value(given, kind, place))


def _values(given: Any, kind: str, place: str) -> tuple[Value, ...]:
    if kind in ("boolean", "timestamp"):
        raise DeclarationRefused(place, f"a {kind} cannot be compared with a set (Great Expectations refuses it)")
    if not isinstance(given, list) or not given:
        raise DeclarationRefused(place, f"must be a list of values, is {given!r}")
    return tuple(typed_value(item, kind, place) for item in given)
