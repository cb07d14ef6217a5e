"""The demo's results: rejected records scored against the manifest of injected faults, and the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import polars as pl

from include.audit.balance import DatasetAudit
from include.audit.kafka import open_topic
from include.audit.run import audit_dataset, record_outcomes
from include.demo.demo_feed import manifest_path, read_ends
from include.ground.settings import Settings
from include.producers.fault_score import Score, score
from include.producers.paced_sending import Run
from include.read.published_tables import PinnedTables

SCORED = ("_topic", "_partition", "_offset", "disposition", "reasons")


def scores(settings: Settings, runs: Sequence[Run], reading: PinnedTables) -> dict[str, Score]:
    """Return the score of each run by feed: its manifest against the records rejected from it."""
    return {run.feed.name: _score_run(settings, run, reading) for run in runs}


def _score_run(settings: Settings, run: Run, reading: PinnedTables) -> Score:
    rejected = reading.read(f"rejected.{run.feed.name}", columns=SCORED).collect()
    return score(manifest_path(settings, run), rejected_of_run(rejected, read_ends(settings, run)))


def rejected_of_run(rejected: pl.DataFrame, ends: Mapping[int, int]) -> pl.DataFrame:
    """Return the rejected records that the demo sent; records sent later are not scored."""
    own = [(pl.col("_partition") == part) & (pl.col("_offset") < end) for part, end in ends.items()]
    return rejected.filter(pl.any_horizontal(own)) if own else rejected.clear()


def audits(
    settings: Settings, runs: Sequence[Run], bootstrap: str, progress: Callable[[str], None]
) -> list[DatasetAudit]:
    """Return the audit of each dataset of the demo; `progress` receives status texts."""
    opener = partial(open_topic, bootstrap, jars=settings.jars)
    found = [audit_dataset(settings, run.feed.name, opener, progress) for run in runs]
    record_outcomes(settings, found, datetime.now(UTC))
    return found
