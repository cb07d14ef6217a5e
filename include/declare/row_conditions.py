"""`row_condition`: which rows a rule applies to, in the form in which Great Expectations serialises conditions.

A null equals nothing, so `!=` and `NOT_IN` hold for it and no other comparison does, as in pandas and in Great
Expectations on pandas (adr-0001).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from include.declare.column_type import Ability, ColumnType, Value
from include.declare.yaml_declarations import Declared, InvalidValue, inside, shown

ORDERED = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class ConditionTerm:
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


Condition = ConditionTerm | Nullity | Compound


class _Column(Declared):
    name: str


class _Comparison(Declared):
    type: Literal["comparison"]
    column: _Column
    operator: Literal["==", "!=", "<", "<=", ">", ">=", "IN", "NOT_IN"]
    parameter: Any


class _Nullity(Declared):
    type: Literal["nullity"]
    column: _Column
    is_null: bool


class _Compound(Declared):
    type: Literal["and", "or"]
    conditions: Annotated[list[ConditionModel], Field(min_length=2)]


ConditionModel = Annotated[_Comparison | _Nullity | _Compound, Field(discriminator="type")]
_Compound.model_rebuild()


def structured(value: Any) -> Any:
    """Refuse a condition as a text; ValueError."""
    if isinstance(value, str):
        form = "{type: comparison, column: {name: …}, operator: …, parameter: …}"
        raise ValueError(f"is a text of pandas or Spark; write {form}, is {shown(value)}")
    return value


RowCondition = Annotated[ConditionModel, BeforeValidator(structured)]
"""`row_condition` as a contract writes it."""


def typed_condition(written: ConditionModel, types: Mapping[str, ColumnType]) -> Condition:
    """Return a condition over columns of these types; raises InvalidValue for other columns or types."""
    if isinstance(written, _Compound):
        parts = []
        for n, part in enumerate(written.conditions):
            with inside("conditions", n):
                parts.append(typed_condition(part, types))
        return Compound(written.type, tuple(parts))
    name = known_column(written.column.name, types, "column", "name")
    if isinstance(written, _Nullity):
        return Nullity(name, written.is_null)
    with inside("parameter"):
        return ConditionTerm(name, written.operator, _operand(written, types[name]))


def known_column(name: object, types: Mapping[str, ColumnType], *key: str) -> str:
    """Return a column's name; raises InvalidValue when the contract has no such column."""
    if name not in types:
        raise InvalidValue(f"{shown(name)} is not a column of the contract; columns: {', '.join(types)}", *key)
    return str(name)


def condition_columns(condition: Condition | None) -> Iterator[str]:
    """Yield the columns that a condition names."""
    if isinstance(condition, Compound):
        for part in condition.parts:
            yield from condition_columns(part)
    elif condition is not None:
        yield condition.column


def _operand(written: _Comparison, kind: ColumnType) -> Value | tuple[Value, ...]:
    given, operator = written.parameter, written.operator
    if operator not in ("IN", "NOT_IN"):
        if operator in ORDERED and Ability.ordered not in kind.abilities:
            raise InvalidValue(f"a {kind.physical[0]} has no order")
        if operator not in ORDERED and Ability.equal not in kind.abilities:
            raise InvalidValue(f"a {kind.physical[0]} is not compared by {operator}: use <, <=, > or >=")
        return kind.value(given)
    if Ability.counted not in kind.abilities:
        raise InvalidValue(f"a {kind.physical[0]} cannot be compared with a set (Great Expectations refuses it)")
    if not isinstance(given, list) or not given:
        raise InvalidValue(f"must be a list of values, is {shown(given)}")
    return tuple(kind.value(item) for item in given)
