"""A feed: a source of real events for one topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from include.ground.errors import Terminal

# 53 weeks: keeps the day of the week, and is longer than the span of the sources (366 days), so that no
# repetition reaches into the one before. 364 days do not: flights of 31 December would overlap with those of 1 January.
REPETITION = timedelta(days=371)


class InvalidEventRange(Terminal):
    """The requested slice of a feed cannot be sent; nothing was sent."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; nothing was sent", "headrace produce --help")


@dataclass(frozen=True)
class WrongValue:
    """A value that the contract must reject: `field` gets the JSON text `literal`, the expected rule is `reason`."""

    kind: str
    field: str
    literal: str
    reason: str


@dataclass(frozen=True)
class Feed:
    """Real events for one topic.

    `frame(shift)` returns them in order of occurrence, moved by `shift` in all times and ids; columns: `key` and
    `value` (binary), `occurred_at` (UTC, microseconds) and `event_id` (string, unique). `value` is a flat JSON object
    with `id_field` and `time_field`. `wrong_values` are the corruptions that only make sense for this feed; one that is
    not `corruptible` has no time in ISO 8601, which the other corruptions change.
    """

    name: str
    topic: str
    source: str
    id_field: str
    time_field: str
    frame: Callable[[timedelta], pl.DataFrame]
    wrong_values: tuple[WrongValue, ...]
    corruptible: bool = True


def events(feed: Feed, since: datetime | None = None, until: datetime | None = None, repeat: int = 1) -> pl.DataFrame:
    """Return the feed's events with `since <= occurred_at < until`, `repeat` times in a row, in order of occurrence.

    Repetition i is moved by i x 371 days, times and ids alike. InvalidEventRange when the range is empty.
    """
    validate_range(since, until, repeat)
    frame = pl.concat([feed.frame(REPETITION * i) for i in range(repeat)])
    happened = pl.col("occurred_at")
    conditions = [happened >= since] if since else []
    conditions += [happened < until] if until else []
    return frame.filter(*conditions) if conditions else frame


def validate_range(since: datetime | None, until: datetime | None, repeat: int) -> None:
    """Raise InvalidEventRange when no event can be in the range, or it is to be sent less than once."""
    if since and until and since >= until:
        raise InvalidEventRange(f"--from {since.isoformat()} is not before --to {until.isoformat()}")
    if repeat < 1:
        raise InvalidEventRange(f"--repeat {repeat} is less than 1")
