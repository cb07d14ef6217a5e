"""The gate: a record in its plain form, recognised by one regular expression.

Plain means: the contract's fields in the contract's order, optional ones present or not, strings without escapes,
whole numbers of at most nine digits, decimals that fit, at most one space after a separator. Java's matcher takes
about a microsecond for it; whatever does not match goes the long way (structure.py) and is judged the same.
"""

from __future__ import annotations

import re

from include.catalog.contract import Column, Contract

DAY = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])"
# Every time that matches exists; February 29 goes the long way.
PLAIN_TIME = rf"\d{{4}}-(?:{DAY})T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{{1,9}})?+Z"
PLAIN_TEXT = r"[^\"\\\x00-\x1f\x7f]*+"


def plain_form(contract: Contract) -> str:
    """Return the Java regular expression that matches a whole record in its plain form.

    A required column must be there. Commas are written before each field but the first, so the first column of
    the contract must be required; without one nothing is plain, and every record goes the long way.
    """
    first, *rest = contract.columns
    if not first.required:
        return "(?!)"
    return rf"^\{{{_field(first)}{''.join(_following(column) for column in rest)}\}}\z"


def _following(column: Column) -> str:
    field = f",{_field(column)}"
    return field if column.required else f"(?:{field})?+"


def _field(column: Column) -> str:
    value = _value(column)
    return f' ?+"{re.escape(column.name)}": ?+{value if column.required else f"(?:null|{value})"}'


def _value(column: Column) -> str:
    if column.type == "string":
        return f'"{PLAIN_TEXT}"'
    if column.type == "timestamp":
        return f'"{PLAIN_TIME}"'
    if column.type == "boolean":
        return "(?:true|false)"
    if column.type == "integer":
        return r"-?(?:0|[1-9]\d{0,8}+)"
    whole = column.precision - column.scale
    return rf"-?(?:0|[1-9]\d{{0,{whole - 1}}}+)(?:\.\d{{1,{column.scale}}}+)?+"
