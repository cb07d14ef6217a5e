"""The cursors of sent events by subject: one small file, replaced when events were delivered.

Reads / Writes: `openlineage/cursors.json`.
Guarantee: what a run covers is written before its first event is sent: after a crash the same run is sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from include.ground.paths import openlineage_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile


@dataclass(frozen=True)
class EventCursor:
    """`sent`: the last batch, version or stage whose events were delivered; `until`: the last one of a run in progress.

    `release` is that of batches and versions, `run` the id of a run that has not ended, `at` the time of what was sent.
    """

    sent: int = -1
    until: int = -1
    release: str = ""
    run: str = ""
    at: datetime | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether events of a run may have been sent without all of them being delivered."""
        return self.until > self.sent


@dataclass(frozen=True)
class EventCursors:
    """All cursors by kind and name; `kafka`: the brokers' address when it was last known."""

    cursors: Mapping[str, EventCursor] = field(default_factory=dict)
    kafka: str = ""


def cursors_file(settings: Settings) -> JsonFile[EventCursors]:
    """Return the file of the cursors."""
    path = openlineage_path(settings) / "cursors.json"
    remedy = f'rm "{path}"   (continues with what is published then)'
    return JsonFile(path, EventCursors, remedy=remedy, consequence="no event was sent")
