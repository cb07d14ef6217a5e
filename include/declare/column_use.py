"""A column that somebody reads. Apart from those who find it, because these load sqlglot, which takes long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class ColumnUse:
    """A column of a table that a text reads; `place`: file and line, such as `gold/taps_hours.sql:2`."""

    table: str
    column: str
    place: str
