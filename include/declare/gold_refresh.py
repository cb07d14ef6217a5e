"""When a gold table is refreshed (`refresh` of `pipeline.yaml`), and what a watermark closes.

`every_run`: each run merges its rows. `every 1 minute`: the rows of several runs are merged at once, after the
interval. `on_close`: a window or session appears when the watermark has passed it, and changes when late rows come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator

from include.declare.event_times import before
from include.declare.windows import Session, Start, Window, window_starts
from include.declare.yaml_declarations import Finding, parsed_duration, shown
from include.ground.sql_quoting import sql_identifier

EVERY_RUN, ON_CLOSE = "every_run", "on_close"
INTERVAL = re.compile(r"every +(.+)")


def parsed_refresh(value: Any) -> Any:
    """Return `every_run`, `on_close`, or of a text like `every 1 minute` the interval; ValueError."""
    if value in (EVERY_RUN, ON_CLOSE) or isinstance(value, timedelta):
        return value
    match = INTERVAL.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be every_run, on_close or like 'every 1 minute', is {shown(value)}")
    interval = parsed_duration(match[1])
    if not interval:
        raise ValueError(f"must be at least 'every 1 second', is {shown(value)}")
    return interval


Refresh = Annotated[str | timedelta, BeforeValidator(parsed_refresh)]


@dataclass(frozen=True)
class Closing:
    """Which rows of a table are closed: those whose `column`, a window's start or a session's end, is below `bound`.

    Without a bound none is.
    """

    column: str
    bound: Start | None

    @property
    def sql(self) -> str:
        """The condition in DuckDB's SQL."""
        if self.bound is None:
            return "false"
        kind = "timestamptz" if isinstance(self.bound, datetime) else "date"
        return f"{sql_identifier(self.column)} < {kind} '{self.bound.isoformat()}'"


@dataclass(frozen=True)
class SessionClosing:
    """Which sessions of a table with `on_close` are closed."""

    session: Session
    closed: Closing


def closing(timed: Window | Session, watermark: datetime | None) -> Closing:
    """Return what a watermark closes: windows that end at or before it, and sessions that no later row can join."""
    if isinstance(timed, Session):
        return Closing(timed.end, before(watermark, timed.gap) if watermark else None)
    return Closing(timed.name, first_open(timed, watermark) if watermark else None)


def first_open(window: Window, watermark: datetime) -> Start | None:
    """Return the start of the first window that ends after a watermark; None where no window begins before it."""
    return next(iter(window_starts(window, watermark)), None)


def refresh_findings(refresh: Refresh, timed: Window | Session | None, event_time: str) -> Iterator[Finding]:
    """Yield why a table with this window or session cannot have the refresh; the watermark is of the event time."""
    if refresh == ON_CLOSE and timed is None:
        yield ("refresh",), "cannot be on_close: only a window or a session closes; use every_run or 'every 1 minute'"
    elif refresh == ON_CLOSE and timed is not None and timed.column != event_time:
        why = f"its windows are of {timed.column}, and the watermark that closes them is of {event_time}"
        yield ("refresh",), f"cannot be on_close: {why}"
