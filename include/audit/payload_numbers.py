"""Numbers of payloads exactly as they are written, and where silver has others.

DuckDB's JSON functions make doubles of numbers with a point or an exponent. A rounded number would equal one that a
writer rounded, so here Python's decimals read the tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import polars as pl

from include.audit.audit_findings import Finding, FindingKind, position_findings
from include.ground.sql_quoting import sql_identifier, sql_literal

EXACT_NUMBER = "exact_number"
"""The function of DuckDB: a payload's text, the name of a member, and a scale → its number as a plain decimal."""
MOST_DIGITS = 100
"""Before the point: more than any column has."""
AT_A_TIME = 10_000


def define_exact_number(database: Any) -> None:
    """Define the function `exact_number` in a DuckDB database."""
    types = ["varchar", "varchar", "integer"]
    database.create_function(EXACT_NUMBER, exact_number, types, "varchar", null_handling="special")


def exact_number(payload: str | None, member: str, scale: int) -> str | None:
    """Return a member's number as a plain decimal; None if it is none, or has more digits than the scale."""
    number = _numbers(payload).get(member)
    if not isinstance(number, Decimal) or not number.is_finite():
        return None
    if not number:
        return "0"
    digits = str(number.copy_abs()).partition("E")[0].replace(".", "").rstrip("0")
    decimals = len(digits.lstrip("0")) - 1 - number.adjusted()
    return f"{number:f}" if number.adjusted() < MOST_DIGITS and decimals <= scale else None


def number_findings(database: Any, dataset: str, members: Mapping[str, str], first: int = 0) -> Iterator[Finding]:
    """Yield where a decimal column of silver is not the number in the payload, among those that a double might change.

    `members`: the columns that `silver.py` leaves as they are, with their names in the payload. Rows of batches before
    `first` are inherited: their values are what an earlier release made of the payloads. Reads the views of
    `silver_findings.py`.
    """
    types = dict(database.sql("select column_name, column_type from (describe silver)").fetchall())
    decimals = {name: member for name, member in members.items() if types.get(name, "").startswith("DECIMAL")}
    if not decimals:
        return
    shown = ", ".join(f"cast(s.{sql_identifier(name)} as varchar)" for name in decimals)
    equal = " and ".join(_is_surely_equal(name, member, types[name]) for name, member in decimals.items())
    found = database.execute(LONG_NUMBERS.format(columns=shown, equal=equal, first=first))
    wrong: dict[str, list[tuple[int, int]]] = {name: [] for name in decimals}
    while rows := found.fetchmany(AT_A_TIME):
        for partition, offset, payload, *values in rows:
            given = _numbers(payload)
            for (name, member), value in zip(decimals.items(), values, strict=True):
                if not _is_same(given.get(member), value):
                    wrong[name].append((partition, offset))
    for name, places in wrong.items():
        rows = pl.DataFrame(places, schema={"partition": pl.Int32, "offset": pl.Int64}, orient="row")
        detail = f"{name} is not the number in the payload"
        yield from position_findings(FindingKind.different, f"silver.{dataset}", rows, detail)


def _is_surely_equal(name: str, member: str, kind: str) -> str:
    """Return SQL that is true only where a column has its member's exact number; Python reads the other payloads.

    Surely: nothing is escaped, one key has the member's name, and it is the record's own; the cast of its text loses
    no digit.
    """
    column, key, scale = sql_identifier(name), re.escape(member), kind.rstrip(")").rpartition(",")[2]
    number = f"regexp_extract(b.payload, {sql_literal(NUMBER.format(key=key))}, ['text', 'fraction', 'power'])"
    keys = f"len(regexp_extract_all(b.payload, {sql_literal(KEY.format(key=key))}))"
    path = sql_literal(json_path(member))
    return EQUAL.format(column=column, kind=kind, scale=scale, number=number, keys=keys, path=path)


def json_path(member: str) -> str:
    """Return DuckDB's path of a member of the JSON object."""
    escaped = member.replace("\\", "\\\\").replace('"', '\\"')
    return f'$."{escaped}"'


def _numbers(payload: str | None) -> Mapping[str, Any]:
    """Return the members of a JSON object, its numbers as decimals."""
    try:
        found = json.loads(payload or "", parse_float=_decimal, parse_int=_decimal)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _decimal(token: str) -> Decimal | None:
    try:
        return Decimal(token)
    except InvalidOperation:
        # An exponent that even a decimal cannot have; zero has any.
        return Decimal(0) if not token.lower().partition("e")[0].strip("-0.") else Decimal("NaN")


def _is_same(given: Any, value: str | None) -> bool:
    if value is None:
        return given is None
    return isinstance(given, Decimal) and given.is_finite() and given == Decimal(value)


KEY = r'"{key}"\s*:'
NUMBER = rf"{KEY}\s*(-?[0-9]+(?:\.([0-9]*[1-9])?0*)?(?:[eE]([+-]?[0-9]{{{{1,9}}}}))?)\s*[,}}}}]"
# In a lambda, so that DuckDB extracts the number once.
EQUAL = r"""(
    not contains(b.payload, '\') and (
        {keys} = 0 and s.{column} is null
        or {keys} = 1 and try(json_exists(b.payload, {path}))
        and list_bool_and(list_transform([{number}], lambda number:
            s.{column} = try_cast(number.text as {kind})
            and length(number.fraction) - coalesce(try_cast(number.power as integer), 0) <= {scale}
        ))
    )
)"""
# The tokens that matter: with an exponent, or of more digits than every double has.
LONG_NUMBERS = r"""
select s._partition, s._offset, b.payload, {columns}
from silver as s
join (
    select partition, "offset", payload
    from (
        select b.partition, b."offset",
            case when f.value is null then payload_text(b.value) else try(decode(f.value)) end as payload
        from bronze as b
        left join fixes as f on f.partition = b.partition and f."offset" = b."offset"
    )
    where regexp_matches(payload, ':\s*-?[0-9](?:[0-9.]{{15}}|[0-9.]*[eE])')
) as b
on s._partition = b.partition and s._offset = b."offset"
where (s._batch_id >= {first} or s._batch_id is null) and not coalesce({equal}, false)
order by s._partition, s._offset
"""
