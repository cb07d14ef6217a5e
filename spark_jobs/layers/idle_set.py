"""Which partitions are idle at the end of a batch of bronze, as its commit says: they hold no watermark back.

Whoever computes a watermark has it from the commits alone: streams, rebuilds and audits get the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from include.declare.watermark import IDLE
from spark_jobs.tables.batches import batch_commit, metadata_of
from spark_jobs.tables.delta_table import Table

WOKEN = "woken"


@dataclass(frozen=True)
class IdleSet:
    """The partitions that are idle at the end of a batch.

    `woken`: the last batch up to this one with which a partition ceased to be idle, -1 for none.
    """

    partitions: frozenset[int] = frozenset()
    woken: int = -1

    def after(self, number: int, partitions: Collection[int]) -> IdleSet:
        """Return the set at the end of batch `number`, at which these partitions are idle."""
        fresh = frozenset(partitions)
        return IdleSet(fresh, self.woken if self.partitions <= fresh else number)

    def with_new(self, partitions: Collection[int]) -> IdleSet:
        """Return the set with partitions that were added to the topic: they have brought nothing so far."""
        return replace(self, partitions=self.partitions.union(partitions))

    @property
    def metadata(self) -> dict[str, Any]:
        """What a batch's commit says of it."""
        return {IDLE: sorted(self.partitions), **({WOKEN: self.woken} if self.woken >= 0 else {})}


def read_idle_set(metadata: Mapping[str, Any]) -> IdleSet:
    """Return the set that a commit's metadata has; earlier versions knew no idle partitions."""
    return IdleSet(frozenset(map(int, metadata.get(IDLE, ()))), int(metadata.get(WOKEN, -1)))


def awake_partitions(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Return the partitions that are not idle; none for a commit of an earlier version, which does not know."""
    if IDLE not in metadata:
        return frozenset()
    return frozenset(map(int, metadata["offsets"])) - read_idle_set(metadata).partitions


def idle_set_at(bronze: Table, batch: int) -> IdleSet:
    """Return the set at the end of a batch of bronze."""
    return read_idle_set(metadata_of(batch_commit(bronze, batch)))


def last_before_waking(bronze: Table, first: int, last: int) -> int:
    """Return the last batch up to `last` before a partition wakes that was idle after batch `first` or a later one.

    A run ends there: what was complete with the partition idle stays so, and after the run this can no longer be seen.
    """
    while first < last and (woken := idle_set_at(bronze, last).woken) > first:
        last = woken - 1
    return last
