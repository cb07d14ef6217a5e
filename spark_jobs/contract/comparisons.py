"""Comparisons of a contract's column with values, and with another column, in which no digit is lost.

To compare two decimals Spark rounds both to one type of 38 digits: -1 is not less than -0.5 in decimal(38,0). So both
have as many decimals here. It also takes a null integer for less than a decimal of more than 64 bits: a bound beyond
all of a type's values is no literal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from include.declare.column_type import DecimalType, Value
from include.declare.contract import Column
from spark_jobs.contract.literals import literal

COMPARED: Mapping[str, Callable[[Expression, Expression], Expression]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ROUNDED = {"<": ROUND_CEILING, ">=": ROUND_CEILING, "<=": ROUND_FLOOR, ">": ROUND_FLOOR}
"""A value of a scale compares with the next one in this direction as with the number between them."""


def compared(column: Column, sign: str, bound: Value) -> Expression:
    """Return whether a column's value is <, <=, > or >= a bound; null where it is null."""
    value, nearest = F.col(column.name), column.kind.nearest(bound, column, ROUNDED[sign])
    if nearest is None:
        return F.when(value.isNotNull(), F.lit(operator.gt(bound, 0) == (sign in ("<", "<="))))
    return COMPARED[sign](value, literal(nearest))


def is_one_of(column: Column, values: Iterable[Value]) -> Expression:
    """Return whether a column has one of the values; null where it is null, or false."""
    possible = [literal(value) for value in values if column.kind.nearest(value, column, ROUND_FLOOR) == value]
    return F.col(column.name).isin(*possible) if possible else F.lit(False)


def compared_columns(one: Column, sign: str, other: Column) -> Expression:
    """Return whether a column's value is <, <=, > or >= another's; null where one is null."""
    if _scale(one) > _scale(other):
        return compared_columns(other, MIRRORED[sign], one)
    bound = F.col(other.name)
    if _scale(one) < _scale(other):
        nearest = F.ceil if ROUNDED[sign] == ROUND_CEILING else F.floor
        bound = nearest(bound, F.lit(_scale(one)))
    return COMPARED[sign](F.col(one.name), bound)


def equal_columns(one: Column, other: Column) -> Expression:
    """Return whether two columns have equal values; null where one is null."""
    if _scale(one) == _scale(other):
        return F.col(one.name) == F.col(other.name)
    return compared_columns(one, "<=", other) & compared_columns(one, ">=", other)


MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _scale(column: Column) -> int:
    """Return the decimals of a column's type; of types other than decimal it has none."""
    return column.scale if isinstance(column.kind, DecimalType) else 0
