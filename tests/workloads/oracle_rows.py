"""Rows that an oracle expects, and how published rows are compared with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Expected = Mapping[str, Sequence[Row]]
"""Rows by gold table, in any order; all columns but the platform's own."""


def differing_rows(expected: Iterable[Row], published: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows that are missing in a table, and those that it must not have; rows may repeat."""
    wanted, found = Counter(map(_fixed, expected)), Counter(map(_fixed, published))
    missing, surplus = (wanted - found).elements(), (found - wanted).elements()
    return [dict(row) for row in missing], [dict(row) for row in surplus]


def _fixed(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, _hashable(value)) for name, value in row.items()))


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
