"""Merges of the identity index in a thread: one of millions of entries takes a second, and no run has to wait for it.

*Reads / Writes:* segments of one folder. *After a crash:* `index.json` still names the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from spark_jobs.tables.identity_index import Segment, due_for_merge, merged, with_merged


@dataclass(frozen=True)
class _Merge:
    """A merge of `parts` into the segment `name`, which is complete when `whole` is done."""

    name: str
    parts: tuple[Segment, ...]
    whole: Future[Segment]


class SegmentMerges:
    """Merges the segments of an index, one tier at a time, for the process that owns it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: _Merge | None = None

    @property
    def unfinished(self) -> set[str]:
        """The name of the segment that is being written; nothing else names its files."""
        return {self._running.name} if self._running is not None else set()

    def begin(self, segments: Sequence[Segment]) -> None:
        """Begin the merge that is due, unless one is running."""
        parts = due_for_merge(segments) if self._running is None else []
        if parts:
            name = uuid4().hex
            pool = ThreadPoolExecutor(1, "segment-merge")
            self._running = _Merge(name, tuple(parts), pool.submit(merged, self._folder, parts, name))
            pool.shutdown(wait=False)

    def applied(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments with a merged one instead of its parts, once it is complete. Raises what merging raised.

        A merge of segments that are no longer there is given up.
        """
        done = self._running
        if done is None or not done.whole.done():
            return list(segments)
        self._running, names = None, {segment.record.name for segment in segments}
        if not all(part.record.name in names for part in done.parts):
            return list(segments)
        return with_merged(segments, done.parts, done.whole.result())
