r"""The plain form of a record, recognised and split by one regular expression.

Plain means: the contract's fields in the contract's order, optional ones present or not, strings without escapes,
whole numbers of at most nine digits, decimals that fit, at most one space after a separator. Such a record needs no
JSON parser: the match proves its structure, its types, the required fields, enumerations and simple patterns.
Any other record takes the general path (json_structure.py), with the same verdict at several times the cost.
"""

from __future__ import annotations

import re

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from include.catalog.contract import Column, Contract

DAY = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])"
# Every time that matches exists; February 29 takes the general path.
PLAIN_TIME = rf"\d{{4}}-(?:{DAY})T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{{1,9}})?+Z"
PLAIN_CHARACTER = r'[^"\\\x00-\x1f\x7f]'
# A pattern of these characters cannot match a quote, a backslash or a control character, so it cannot exceed its
# string.
SIMPLE_PATTERN = re.compile(r"^\^(?:[A-Za-z0-9_/:,\-{}()|?+*]|\\d|\[[A-Za-z0-9_\-]+\])+\$$")
SEPARATOR = "\x01"


def joined_values(text: Expression, contract: Contract) -> Expression:
    """Return the values of a plain record as one text with separators; any other text as it is."""
    groups = SEPARATOR.join(f"${index + 1}" for index in range(len(contract.columns)))
    return F.regexp_replace(text, plain_form(contract), groups)


def plain_values(text: Expression, joined: Expression) -> Expression:
    """Return the texts of a plain record's values in the contract's order (array; "" = null or absent), else null.

    `joined` must be a column: an expression written twice is evaluated twice.
    """
    return F.when((joined != text) & F.is_valid_utf8(text), F.split(joined, SEPARATOR))


def is_proven_by_plain_form(column: Column, rule: str) -> bool:
    """Whether a plain record satisfies the column's rule of this name by its form alone."""
    if rule in ("required", "missing_id", "enum"):
        return True
    return rule == "pattern" and _is_simple(column)


def plain_form(contract: Contract) -> str:
    """Return the Java regular expression that matches a whole plain record, one group per column.

    Its repetitions are greedy, not possessive: Java runs those of a single class in one loop, and what follows each
    is a character that the class does not have, so that a mismatch is found in time linear in the record.

    Commas are written before each field but the first, so the first column of the contract must be required;
    without one nothing is plain, and every record takes the general path.
    """
    first, *rest = contract.columns
    if not first.required:
        return "(?!)"
    return rf"^\{{{_field(first)}{''.join(_later_field(column) for column in rest)}\}}\z"


def _later_field(column: Column) -> str:
    field = f",{_field(column)}"
    return field if column.required else f"(?:{field})?+"


def _field(column: Column) -> str:
    value = _value(column)
    return f' ?"{re.escape(column.member)}": ?{value if column.required else f"(?:null|{value})"}'


def _value(column: Column) -> str:
    if column.type == "string":
        return f'"({_string(column)})"'
    if column.type == "timestamp":
        return f'"({PLAIN_TIME})"'
    if column.type == "boolean":
        return "(true|false)"
    if column.type == "integer":
        return r"(-?(?:0|[1-9]\d{0,8}))"
    return f"({_decimal(column.precision - column.scale, column.scale)})"


def _decimal(whole: int, scale: int) -> str:
    """Return the form of a number with at most so many digits before and after the point; either may be none."""
    before = rf"(?:0|[1-9]\d{{0,{whole - 1}}})" if whole else "0"
    return rf"-?{before}(?:\.\d{{1,{scale}}}+)?+" if scale else rf"-?{before}"


def _string(column: Column) -> str:
    if column.values:
        plain = [value for value in column.values if re.fullmatch(f"{PLAIN_CHARACTER}+", value)]
        return "|".join(re.escape(value) for value in plain)
    if column.pattern and _is_simple(column):
        return re.sub(r"\((?!\?)", "(?:", column.pattern[1:-1])
    return f"{PLAIN_CHARACTER}*" if column.required else f"{PLAIN_CHARACTER}+"


def _is_simple(column: Column) -> bool:
    return bool(column.pattern and not column.values and SIMPLE_PATTERN.match(column.pattern))
