"""Refine: advance a release to a bronze batch, then publish (docs/architecture.md §4, steps 4 to 6).

Reads: whole bronze batches [a, b].
Writes: silver, rejected, each gold table, the publication.
Guarantee: each table gets batch b once; readers see b when all tables have it.
After a crash: the run that silver's last commit names is repeated with the same bounds before another begins; committed
steps are recognised and skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from include.ground.settings import Settings
from include.read.publication import publish
from spark_jobs.layers.gold_layer import commit_gold
from spark_jobs.layers.release import Release
from spark_jobs.layers.silver import commit_silver
from spark_jobs.layers.silver_tables import RefineRun
from spark_jobs.layers.validated_run import NextRun
from spark_jobs.stream.publication import publication_of
from spark_jobs.tables.batches import count_rows
from spark_jobs.tables.failpoints import Step, pass_step


@dataclass
class RunReport:
    """Batches and input rows of a run, and seconds per step."""

    batches: tuple[int, int]
    rows: int
    steps: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step."""
        start = time.monotonic()
        yield
        self.steps[name] = round(time.monotonic() - start, 3)


def refine(
    settings: Settings,
    release: Release,
    first: int,
    last: int,
    epoch: int,
    *,
    publishing: bool = True,
    now: float | None = None,
    following: NextRun | None = None,
) -> RunReport:
    """Advance all tables of a release from batch `first - 1` to `last`, publish, and return the report.

    A shadow release is advanced without `publishing`. `now`: seconds since 1970, by which tables with an interval are
    refreshed; None refreshes none. `following`: the run after this one, whose records are validated meanwhile; it has
    ended its work when this returns or raises. Raises RowsUnaccounted or OwnershipLost with nothing published;
    committed steps stay, and the next attempt recognises them.
    """
    run = RefineRun(first, last, epoch)
    report = RunReport((first, last), count_rows(release.writer.bronze, first, last))
    try:
        with report.step("silver"):
            silver = commit_silver(release.writer, run, following)
        with report.step("gold"):
            commit_gold(release.gold, release.writer, run, silver, now)
        if publishing:
            with report.step("publish"):
                publish(settings, publication_of(settings, release, last))
            pass_step(Step.PUBLISHED, last)
    finally:
        if following is not None:
            following.finish()
    return report
