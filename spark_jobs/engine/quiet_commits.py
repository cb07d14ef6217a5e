"""Commits a batch without records when everything is quiet and a table waits for the watermark (adr-0010).

While records arrive, their batches say which partitions are idle. When none arrive, no batch would: windows of the
last records would stay open until the next one, perhaps for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from include.catalog.gold_refresh import closing
from include.catalog.pipeline import closes, timed_by
from include.catalog.watermark import WatermarkProgress
from include.clients.kafka import KafkaRefused, TopicMissing
from include.errors import Transient
from spark_jobs.engine.ingest import Ingest
from spark_jobs.engine.next_run import refined_batch
from spark_jobs.layers.gold_update import refresh_state
from spark_jobs.layers.release_tables import Release
from spark_jobs.log_lines import log_line

RESTING_SECONDS = 2.0
"""How long after a batch the next one is awaited, which would say the same."""


@dataclass
class QuietCommits:
    """Decides about each set of idle partitions once."""

    considered: tuple[int, frozenset[int]] | None = None
    """The last batch, and the idle partitions about which it was decided."""

    def step(self, ingest: Ingest, releases: Sequence[Release]) -> bool:
        """Commit the batch if it is due; return whether there is one. `releases`: the published one first."""
        published = releases[0]
        ingest.quiet.idle_after = published.dataset.pipeline.idle
        quiet = ingest.quiet.quiet() | ingest.idle.partitions
        found = ingest.last_batch, quiet
        if quiet == ingest.idle.partitions or found == self.considered or not _is_resting(ingest, published):
            return False
        self.considered = found
        if not any(is_awaited(release, quiet) for release in releases):
            return False
        try:
            return ingest.commit_quiet(quiet)
        except (Transient, TopicMissing, KafkaRefused) as error:
            # Whether the partitions are still quiet is not known.
            ingest.quiet.forget()
            self.considered = None
            log_line(f"{ingest.dataset.name}: which partitions are idle is not known: {error.what}")
            return False


def _is_resting(ingest: Ingest, published: Release) -> bool:
    """Whether no batch comes, and all that came is refined."""
    rested = time.monotonic() - ingest.committed >= RESTING_SECONDS
    return rested and refined_batch(published) == ingest.last_batch


def is_awaited(release: Release, idle: Iterable[int]) -> bool:
    """Whether the watermark would close a window or session of a table if these partitions were idle."""
    named = [str(partition) for partition in idle]
    for target in release.gold:
        timed = timed_by(target.gold)
        if timed is None or not closes(target.gold):
            continue
        state = refresh_state(target)
        known = dict(state.event_times)
        progress = WatermarkProgress(release.dataset.pipeline.lateness, state.batch, state.watermark, known)
        if closing(timed, progress.reached(named)) != closing(timed, state.watermark):
            return True
    return False
