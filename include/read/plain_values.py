"""Values of tables as plain text and JSON, without losing a digit.

- A timestamp is ISO 8601; with a zone it is UTC and ends in `Z`. A date is `YYYY-MM-DD`.
- A decimal without fraction digits is a JSON number, any other a JSON string with all its digits.
- Bytes are text when they are valid UTF-8, else base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any


def json_value(value: Any) -> Any:
    """Return a value of a table as one that `json.dumps` writes exactly; NaN and infinities become strings."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and not hasattr(value, "nanoseconds"):
        return [json_value(item) for item in value]
    return text_value(value)


def text_value(value: Any) -> str:
    """Return a value of a table as one line's worth of text; null is empty, lists and structs are JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return text_of(value)
    if isinstance(value, datetime):
        return iso_time(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Mapping) or (isinstance(value, list | tuple) and not hasattr(value, "nanoseconds")):
        return json.dumps(json_value(value), ensure_ascii=False)
    return str(value)


def iso_time(value: datetime) -> str:
    """Return ISO 8601; in UTC with `Z` when the time has a zone."""
    return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def text_of(data: bytes) -> str:
    """Return bytes as text when they are valid UTF-8, else as base64."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii")


def excerpt(data: bytes | None, width: int = 80) -> str:
    """Return the start of a payload as at most `width` printable ASCII characters; the rest is escaped or cut."""
    if data is None:
        return "(null)"
    shown = data[: width + 1].decode("utf-8", "backslashreplace").encode("unicode_escape").decode("ascii")
    shown = shown.replace("\\\\x", "\\x")
    return shown if len(shown) <= width and len(data) <= width else shown[: width - 1] + "…"


def is_numeric(kind: Any) -> bool:
    """Return whether an Arrow type is numeric."""
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
