"""The frame of a generated feed: flat JSON records with an id and a time, in order of occurrence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import polars as pl

FRAME: dict[str, Any] = {
    "key": pl.Binary,
    "value": pl.Binary,
    "occurred_at": pl.Datetime("us", "UTC"),
    "event_id": pl.String,
}


def iso(at: datetime) -> str:
    """Return a time as records have it, with milliseconds."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def event_frame(rows: Iterable[tuple[str, str, datetime, Mapping[str, Any]]]) -> pl.DataFrame:
    """Return rows of key, event id, time and event as a frame with the columns of `Feed.frame`, by time."""
    made = [
        (key.encode(), json.dumps(event, separators=(",", ":")).encode(), at, event_id)
        for key, event_id, at, event in rows
    ]
    return pl.DataFrame(made, schema=FRAME, orient="row").sort("occurred_at", "event_id")
