"""Commits a batch without records when everything is quiet and windows wait for the watermark (adr-0010).

While records arrive, their batches say which partitions are idle. When none arrive, no batch would: windows of the
last records would stay open until the next one, perhaps for ever.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from include.ground.errors import Transient
from include.ground.kafka import KafkaRefused, TopicMissing
from spark_jobs.layers.release import Release, refined_batch
from spark_jobs.layers.silver import stored_progress
from spark_jobs.stream.automatic_step import AutomaticStep
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.preflight import TopicReplaced
from spark_jobs.tables.log_lines import log_line

RESTING_SECONDS = 2.0
"""How long after a batch the next one is awaited, which would say the same."""


@dataclass(frozen=True)
class QuietState:
    """What the decision depends on: partitions that are idle now, and the releases that have bronze's `last` batch."""

    last: int
    idle: frozenset[int]
    releases: frozenset[str]


@dataclass
class QuietCommits(AutomaticStep):
    """Decides about each state once."""

    next_check: float = field(default=0.0, kw_only=True)
    considered: QuietState | None = None

    def step(self, ingest: Ingest, releases: Sequence[Release]) -> bool:
        """Commit the batch if it is due; return whether there is one. `releases`: the published one first.

        Raises TopicReplaced, which ends the driver as it does when ingest finds it.
        """
        if self.is_pausing():
            return False
        failure = f"{ingest.dataset.name}: no batch says which partitions are idle, the next try is in a minute"
        return self.guarded(lambda: self._step(ingest, releases), failure, TopicReplaced)

    def after_failure(self) -> bool:
        """Decide again after a pause."""
        self.considered = None
        return super().after_failure()

    def _step(self, ingest: Ingest, releases: Sequence[Release]) -> bool:
        published, last = releases[0], ingest.last_batch
        ingest.quiet.idle_after = published.dataset.pipeline.idle
        idle = (ingest.quiet.quiet() | ingest.idle.partitions) - ingest.quiet.lagging
        if idle == ingest.idle.partitions or time.monotonic() - ingest.committed < RESTING_SECONDS:
            return False
        # A release that is behind is decided about when it has the last batch.
        current = [each for each in releases if refined_batch(each) == last]
        state = QuietState(last, idle, frozenset(each.dataset.release for each in current))
        if state == self.considered or published not in current:
            return False
        self.considered = state
        if not any(is_awaited(each, idle, ingest.ingested) for each in current):
            return False
        return self._commit(ingest, state)

    def _commit(self, ingest: Ingest, state: QuietState) -> bool:
        try:
            return ingest.commit_quiet(state.idle, after=state.last)
        except (Transient, TopicMissing, KafkaRefused) as error:
            # Whether the partitions are still quiet is not known.
            ingest.quiet.forget()
            self.considered = None
            log_line(f"{ingest.dataset.name}: which partitions are idle is not known: {error.what}")
            return False


def is_awaited(release: Release, idle: Collection[int], partitions: Collection[int]) -> bool:
    """Whether the watermark would close a window or session if these of the topic's partitions were idle.

    A table without `on_close` has the rows already; their state tells readers whether more may come.
    """
    timed = [each for each in (target.gold.timed_by for target in release.gold) if each is not None]
    if not timed:
        return False
    progress = stored_progress(release.writer)
    reached = progress.reached({str(each) for each in idle}, progress.without_rows(map(str, partitions)))
    return any(each.closing(reached) != each.closing(progress.watermark) for each in timed)
