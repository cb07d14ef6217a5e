"""Compares what a commit says about a data file with the file's own footer: its rows, and the bounds of its columns.

Runs and audits leave files out by these bounds, so a row outside them would not be found by either.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from include.declare.event_times import after

COMPARED_CHARACTERS = 16
"""The bounds in a log may have only the beginnings of longer texts."""
COARSENESS = timedelta(milliseconds=1)
"""The bounds in a log may have whole milliseconds only."""


def beginning(value: Any) -> Any:
    """Return a value as bounds are compared: of a text the first characters."""
    return value[:COMPARED_CHARACTERS] if isinstance(value, str) else value


def latest_of(high: Any) -> Any:
    """Return the greatest value that an upper bound in a log may stand for."""
    return after(high, COARSENESS) if isinstance(high, datetime) else beginning(high)


def contradiction(path: Path, committed: Mapping[str, Any]) -> str | None:
    """Return how a file's footer contradicts its add action (`num_records`, `min.<column>`, …); None when it does not.

    A column without statistics on either side is not compared. Raises what pyarrow raises for a damaged footer.
    """
    footer = pq.read_metadata(path)
    if committed["num_records"] not in (None, footer.num_rows):
        return f"has {footer.num_rows} rows, {committed['num_records']} were committed"
    bounded = {name.partition(".")[2] for name, bound in committed.items() if bound is not None}
    for column, low, high in _footer_bounds(footer, bounded):
        first, last = committed.get(f"min.{column}"), committed.get(f"max.{column}")
        if first is not None and _is_less(beginning(low), beginning(first)):
            return f"has {column} {low}, {first} was committed as the least"
        if last is not None and _is_less(latest_of(last), beginning(high)):
            return f"has {column} {high}, {last} was committed as the greatest"
    return None


def _footer_bounds(footer: pq.FileMetaData, columns: Container[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the least and the greatest value of each of these columns of which all row groups have them."""
    for index in range(footer.num_columns):
        parts = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        if parts and parts[0].path_in_schema in columns:
            bounds = _bounds_of([part.statistics for part in parts if not _is_empty(part)])
            if bounds is not None:
                yield parts[0].path_in_schema, *bounds


def _bounds_of(found: Sequence[pq.Statistics | None]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, None without them or if Python has no such values: the year 10000."""
    known = [each for each in found if each is not None and each.has_min_max]
    if not known or len(known) < len(found):
        return None
    try:
        return min(each.min for each in known), max(each.max for each in known)
    except (OverflowError, ValueError):
        return None


def _is_empty(part: pq.ColumnChunkMetaData) -> bool:
    return part.statistics is not None and part.statistics.null_count == part.num_values


def _is_less(one: Any, other: Any) -> bool:
    """Whether two bounds of one type contradict; values that do not compare, and NaN, do not."""
    if any(isinstance(value, float) and math.isnan(value) for value in (one, other)):
        return False
    with suppress(TypeError):
        return bool(one < other)
    return False
