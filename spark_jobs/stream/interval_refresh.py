"""Refreshes gold tables with an interval (`refresh: every 1 minute`) between two runs (layers/adr-0011).

Reads: the release's silver. Writes: gold tables that are behind, one commit each, which belongs to no run.
After a crash: each table's commits say how far it is refreshed; the rest is merged by the next refresh or run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import refresh_gold
from spark_jobs.layers.gold_update import is_due, refresh_state
from spark_jobs.layers.release import Release, refined_batch


def interval_tables(release: Release) -> Iterator[GoldTable]:
    """Yield the gold tables that are refreshed after an interval."""
    return (target for target in release.gold if target.gold.refresh_interval is not None)


def refresh_due(release: Release, epoch: int, now: float) -> bool:
    """Refresh tables whose interval is over at `now` (seconds since 1970); return whether there was one."""
    last, done = refined_batch(release), False
    for target in interval_tables(release):
        refreshed, interval = refresh_state(target), target.gold.refresh_interval
        if refreshed.batch < last and interval is not None and is_due(refreshed, interval, now):
            refresh_gold(target, release.writer, last, epoch, now)
            done = True
    return done


def refresh_up_to(release: Release, epoch: int, batches: Mapping[str, int], now: float) -> None:
    """Refresh tables up to these batches (by table), or the last one, regardless of their intervals."""
    last = refined_batch(release)
    for target in interval_tables(release):
        upto = min(last, batches.get(target.table.spec.name, last))
        if refresh_state(target).batch < upto:
            refresh_gold(target, release.writer, upto, epoch, now)


def is_ahead(release: Release, batches: Mapping[str, int]) -> bool:
    """Whether a table is already refreshed beyond these batches."""
    names = {target.table.spec.name: target for target in interval_tables(release)}
    return any(refresh_state(names[name]).batch > batch for name, batch in batches.items() if name in names)
