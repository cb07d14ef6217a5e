"""How texts write times: ISO 8601 with a zone, a date and time of another form, a date."""

from __future__ import annotations

import re
from datetime import datetime

ZONED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
LOCAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?( ?(Z|UTC|[+-]\d\d:?\d\d))?")
DAY = re.compile(r"\d{4}-\d\d-\d\d")


def is_zoned(text: str) -> bool:
    """Whether it is a time that exists, in ISO 8601 with a zone."""
    return ZONED.fullmatch(text) is not None and _exists(text)


def is_local(text: str) -> bool:
    """Whether it is a date and time, with or without a zone."""
    return LOCAL.fullmatch(text) is not None


def is_day(text: str) -> bool:
    """Whether it is a date."""
    return DAY.fullmatch(text) is not None


def moment(text: str) -> datetime:
    """Return a time with a zone; of more than six digits of a second, the first six."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))


def _exists(text: str) -> bool:
    try:
        moment(text)
    except ValueError:
        return False
    return True
