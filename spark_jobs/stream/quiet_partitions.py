"""Which partitions of a topic are idle: read to their end, and without a record since (adr-0010).

The driver decides it by its clock, once: each batch of bronze says in its commit which partitions are idle
(`spark_jobs/layers/bronze.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

LOOK_IS_OLD = 10.0
"""Seconds after which a look at the ends of the topic says nothing any more."""


@dataclass
class QuietPartitions:
    """How long each partition has been quiet, as this process has observed it; a restart begins to count anew.

    The thread that reports progress looks at the topic's ends, ingest notes what batches bring.
    """

    clock: Callable[[], float] = time.monotonic
    idle_after: timedelta | None = None
    """A partition that is quiet for so long is idle; None: never."""
    _since: dict[int, float] = field(default_factory=dict)
    """Since when a partition is known to be read to its end and has brought nothing."""
    lagging: frozenset[int] = frozenset()
    """Partitions that Kafka had more of, as last looked at: records to come, or those of an open transaction."""
    _looked: float | None = None

    def look(self, ingested: Mapping[int, int], log_ends: Mapping[int, int]) -> None:
        """Note the next offset of each partition in bronze, and in Kafka: with open transactions, which may follow."""
        now = self.clock()
        for partition, end in log_ends.items():
            if ingested.get(partition, 0) >= end:
                self._since.setdefault(partition, now)
            else:
                self._since.pop(partition, None)
        self.lagging = frozenset(log_ends) - self._since.keys()
        self._looked = now

    def forget(self) -> None:
        """Note that Kafka does not answer: what it has got meanwhile is not known."""
        self._since.clear()

    def bring(self, partitions: Collection[int]) -> None:
        """Note that a batch has records of these partitions."""
        for partition in partitions:
            self._since.pop(partition, None)

    def quiet(self) -> frozenset[int]:
        """Return the partitions that have been quiet for long enough."""
        now = self.clock()
        if self.idle_after is None or self._looked is None or now - self._looked > LOOK_IS_OLD:
            return frozenset()
        least = self.idle_after.total_seconds()
        return frozenset(partition for partition, since in list(self._since.items()) if now - since >= least)
