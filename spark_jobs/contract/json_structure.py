"""Why a record is not a flat, strict JSON object.

JSON is recognised by reduction: strings become `s`, other scalars `n`; then the innermost objects and arrays
become `n`, at most 32 times. A document is reduced to one letter; the rest of anything else shows
the fault. Spark's own parsers silently accept the last of two equal keys, the first of
two objects, single quotes and half a surrogate pair (adr-0001).
"""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase

from pyspark.sql import Column
from pyspark.sql import functions as F

MAX_BYTES = 1_048_576
MAX_DEPTH = 32
MAX_DIGITS = 1_000
SPACE = r"[ \t\n\r]"
# Without the inner ++ each character of a text is a step of the outer loop, which takes several times as long.
STRING = r'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*+"'
SCALAR = r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+|true|false|null"
NO_NUMBER = r"NaN|-?Infinity"
INNERMOST = r"\{(?:s:[sn](?:,s:[sn])*+)?+\}|\[(?:[sn](?:,[sn])*+)?+\]"
SURROGATE_PAIR = r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"
CONTROL_ESCAPE = r"\\u00(?:0[0-8bBcCeEfF]|1[0-9A-Fa-f]|7[fF])|\\[bf]"


def skeleton(raw: Column) -> Column:
    """Return the record with every strict JSON string as `s`; null where it is null or too large to parse."""
    return F.when(F.octet_length(raw) <= MAX_BYTES, F.regexp_replace(raw.cast("string"), STRING, "s"))


def remainder(skeleton_text: Column) -> Column:
    """Return the rest of a skeleton after its scalars and containers are reduced: `n` or `s` for a document."""
    numbered = F.regexp_replace(skeleton_text, rf"{SCALAR}|{NO_NUMBER}", "n")
    rounds = F.sequence(F.lit(1), F.lit(MAX_DEPTH))
    packed = F.regexp_replace(numbered, SPACE, "")
    return F.aggregate(rounds, packed, lambda text, _: F.regexp_replace(text, INNERMOST, "n"))


def structure_fault(raw: Column, skeleton_text: Column, left: Column) -> Column:
    """Return the reason why the bytes `raw` are not a flat, strict JSON object; null where they are one.

    `skeleton_text` and `left` are columns with the skeleton and the remainder. Reasons: null_value, size, wire_format,
    malformed, bad_utf8, empty, not_object, trailing_data, depth, out_of_range (NaN, Infinity), duplicate_key,
    control_char. Nested values are well-formed here; field_types.py rejects a column that gets one. Evaluated for
    the first condition that holds, so later ones may rely on it.
    """
    text = raw.cast("string")
    keys = _lower_case(F.json_object_keys(text))
    bare = F.replace(text, F.lit("\\\\"), F.lit(""))
    # A search for one character is faster than a regular expression, and few records have an escape.
    is_escaped = F.contains(bare, F.lit("\\"))
    is_control = is_escaped & bare.rlike(CONTROL_ESCAPE) | F.contains(bare, F.lit("\x7f"))
    return (
        F.when(raw.isNull(), "null_value")
        .when(skeleton_text.isNull(), "size")
        .when(_is_framed(raw), "wire_format")
        .when(F.hex(F.substring(raw, 1, 2)).isin("FFFE", "FEFF"), "malformed")
        .when(~F.is_valid_utf8(text), "bad_utf8")
        .when(skeleton_text.rlike(rf"^{SPACE}*+\z"), "empty")
        .when(left.isin("n", "s") & ~_is_opened(skeleton_text), "not_object")
        .when(left != "n", _reduction_fault(skeleton_text, left))
        .when(skeleton_text.rlike(rf"\d{{{MAX_DIGITS + 1}}}"), "malformed")
        .when(skeleton_text.rlike(NO_NUMBER), "out_of_range")
        .when(F.size(F.array_distinct(keys)) != F.size(keys), "duplicate_key")
        .when(is_escaped & F.regexp_replace(bare, SURROGATE_PAIR, "").rlike(r"\\u[dD][89a-fA-F]"), "bad_utf8")
        .when(is_control, "control_char")
    )


def _lower_case(names: Column) -> Column:
    """Return texts in lower case. Spark's `lower` loads Unicode tables for 2 s at its first use: ASCII needs none."""
    is_ascii = F.array_join(names, "").rlike(r"^[\x00-\x7f]*+\z")
    of_ascii = F.transform(names, lambda name: F.translate(name, ascii_uppercase, ascii_lowercase))
    return F.when(is_ascii, of_ascii).otherwise(F.transform(names, F.lower))


def _is_framed(raw: Column) -> Column:
    """Confluent's wire format: a zero byte and a schema id of four bytes before the payload."""
    return (F.hex(F.substring(raw, 1, 1)) == "00") & (F.hex(F.substring(raw, 6, 1)) == "7B")


def _is_opened(skeleton_text: Column) -> Column:
    return skeleton_text.rlike(rf"^{SPACE}*+\{{")


def _reduction_fault(skeleton_text: Column, left: Column) -> Column:
    trailing = _is_opened(skeleton_text) & left.rlike(r"^n.")
    return F.when(trailing, "trailing_data").when(left.rlike(INNERMOST), "depth").otherwise("malformed")
