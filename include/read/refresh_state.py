"""How far a gold table with a `refresh` is refreshed, as its commits say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from include.ground.delta_log import newest_metadata

REFRESH_KEY = "holds"
"""The key of a commit's metadata under which the state is stored."""


@dataclass(frozen=True)
class RefreshState:
    """How far a table with a `refresh` is refreshed: with rows of silver of batches up to `batch`, -1 for none.

    With an interval `at` is the time of the last refresh, in seconds since 1970. With `on_close` the table has the
    rows that `watermark` has passed; `event_times` are the greatest event times by partition, from which the watermark
    is computed; no row of an open session is before `since`, None when that is not known.
    """

    batch: int = -1
    at: float = 0.0
    watermark: datetime | None = None
    event_times: Mapping[str, datetime] = field(default_factory=dict)
    since: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as a commit's metadata has it."""
        moments = {"watermark": self.watermark, "since": self.since}
        known = {name: moment.isoformat() for name, moment in moments.items() if moment is not None}
        times = {partition: time.isoformat() for partition, time in sorted(self.event_times.items())}
        return {"batch": self.batch, "at": self.at, **known, **({"event_times": times} if times else {})}


def read_refresh_state(metadata: Mapping[str, Any]) -> RefreshState:
    """Return the state that a commit's metadata stores; that of an empty table when it stores none."""
    found = metadata.get(REFRESH_KEY, {})
    times = {partition: datetime.fromisoformat(text) for partition, text in found.get("event_times", {}).items()}
    moments = {name: datetime.fromisoformat(found[name]) for name in ("watermark", "since") if name in found}
    return RefreshState(int(found.get("batch", -1)), float(found.get("at", 0)), event_times=times, **moments)


def stored_refresh_state(table: Path, version: int) -> RefreshState:
    """Return the state as of a version of a table's own log, which may be ahead of the publication."""
    return read_refresh_state(newest_metadata(table, version, REFRESH_KEY))
