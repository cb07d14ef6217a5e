"""Refine: advance a release to a bronze batch, then publish (docs/architecture.md §4, steps 4 to 6).

Each table gets batch b once; readers see b when all tables have it. After a crash the run that silver's last commit
names is repeated with the same bounds before another begins; committed steps are recognised and skipped.
The release's backend computes rows. Which rows, when and with which metadata they are committed is decided here.
Gold tables with an interval are refreshed between runs as well (layers/adr-0011).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from include.declare.event_times import IDLE, PROGRESS, ROWLESS, WatermarkProgress, read_progress, watermark_facts
from include.ground.app_ids import refresh_app_id
from include.ground.delta_log import batch_commit, commits, latest_patch
from include.ground.paths import warehouse
from include.ground.record_coordinates import is_file_set, kafka_ends
from include.ground.settings import Settings
from include.read.publication import Publication, TableVersion, publish
from include.read.published_tables import read_refresh_state
from spark_jobs.backends.backend import DecidedRun, DecisionCounts, NeedsSpark, Transaction
from spark_jobs.backends.local.runs import NextRun
from spark_jobs.backends.release import Release
from spark_jobs.layers.bronze import awake_partitions, read_idle_set
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import (
    GOLD_AT_A_TIME,
    GoldCommit,
    failure_named,
    is_due,
    merge_by_spark,
    refresh_state,
    refresh_update,
    update_of_run,
)
from spark_jobs.layers.silver_tables import RefineRun, SilverTables, facts_of
from spark_jobs.tables.delta_table import RowsUnaccounted
from spark_jobs.tables.failpoints import Step, pass_step


def publication_of(settings: Settings, release: Release, batch: int) -> Publication:
    """Return the publication of the versions in which each table got `batch`, or the last patch after it."""
    writer, root, dataset = release.writer, warehouse(settings), release.writer.dataset
    in_bronze = batch_commit(writer.bronze.spec.path, batch)
    own = {writer.silver: writer.app_ids["silver"], writer.rejected: writer.app_ids["rejected"]}
    own |= {target.table: target.app_id for target in release.gold}
    commits = {writer.bronze: latest_patch(writer.bronze.spec.path, in_bronze)}
    commits |= {table: latest_patch(table.spec.path, table.commit_of(app_id, batch)) for table, app_id in own.items()}
    states = {each.table.spec.name: read_refresh_state(commits[each.table].facts) for each in release.interval_tables}
    behind = {name: state.batch for name, state in states.items() if state.batch < batch}
    latest = max(commit.timestamp_ms for commit in commits.values())
    return Publication(
        dataset=dataset.name,
        release=dataset.release,
        batch=batch,
        published_at=datetime.fromtimestamp(latest / 1000, UTC),
        offsets=kafka_ends(in_bronze.facts["offsets"]),
        tables={
            table.spec.name: TableVersion(
                str(table.spec.path.relative_to(root)), commit.version, behind.get(table.spec.name)
            )
            for table, commit in commits.items()
        },
    )


@dataclass
class RunReport:
    """Batches and input rows of a run, and seconds per step."""

    batches: tuple[int, int]
    rows: int
    steps: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
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
    report = RunReport((first, last), 0)
    try:
        with report.step("silver"):
            decided = commit_silver(release, run, following)
        report.rows = decided.counts.rows_in if decided else release.writer.records.count_rows(first, last)
        with report.step("gold"):
            commit_gold(release, run, now, decided)
        if publishing:
            with report.step("publish"):
                publish(settings, publication_of(settings, release, last))
            pass_step(Step.PUBLISHED, last)
    finally:
        if following is not None:
            following.finish()
    return report


def commit_silver(release: Release, run: RefineRun, following: NextRun | None = None) -> DecidedRun | None:
    """Commit a run to silver, then to rejected; return it as decided, None when both tables have it already.

    `following` may have the run's records validated; once they are, it begins with the run after it.
    Raises RowsUnaccounted, OwnershipLost.
    """
    writer = release.writer
    silver, rejected = (Transaction(writer.app_ids[table], run.last) for table in ("silver", "rejected"))
    if writer.rejected.committed(rejected.app_id) >= run.last:
        return None
    is_committed = writer.silver.committed(silver.app_id) >= run.last
    decided = release.backend.decide(writer, run, following, is_committed=is_committed)
    try:
        refuse_unaccounted(writer.silver.spec.name, run.batches, decided.counts)
        pass_step(Step.SILVER_WRITTEN, run.last)
        facts = rejected_metadata(writer, run, decided.counts)
        if not is_committed:
            decided.commit_silver(silver, silver_metadata(writer, run, decided.counts))
            pass_step(Step.SILVER_COMMITTED, run.last)
        decided.commit_rejected(rejected, facts)
        pass_step(Step.REJECTED_COMMITTED, run.last)
    finally:
        decided.release()
    return decided


def refuse_unaccounted(table: str, batches: tuple[int, int], counts: DecisionCounts) -> None:
    """Raise RowsUnaccounted unless each record is accepted or rejected."""
    if counts.rows_in != counts.accepted + counts.rejected:
        why = f"{counts.rows_in} records came in, {counts.accepted} are accepted and {counts.rejected} rejected"
        raise RowsUnaccounted(table, batches, why)


def commit_gold(release: Release, run: RefineRun, now: float | None = None, decided: DecidedRun | None = None) -> None:
    """Commit a run to every gold table; tables whose interval is over at `now` catch up. Raises GoldFailed."""

    def commit(target: GoldTable) -> None:
        update, facts = update_of_run(target, release.writer, run, now), run.facts(release.writer.dataset)
        _commit(release, GoldCommit(target, release.writer, update, target.app_id, run.last, facts), decided)

    pending = [target for target in release.gold if target.table.committed(target.app_id) < run.last]
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        for _ in pool.map(commit, pending):
            pass
    pass_step(Step.ALL_GOLD_COMMITTED, run.last)


def refresh_gold(release: Release, target: GoldTable, upto: int, epoch: int, now: float) -> None:
    """Bring a table with an interval up to batch `upto` between two runs. Raises OwnershipLost, GoldFailed."""
    update = refresh_update(release.writer.silver, refresh_state(target), upto, now)
    app_id, facts = refresh_app_id(target.app_id), facts_of(release.writer.dataset, epoch)
    _commit(release, GoldCommit(target, release.writer, update, app_id, upto, facts))


def _commit(release: Release, commit: GoldCommit, decided: DecidedRun | None = None) -> None:
    """Merge an update into one table, by Spark where the backend cannot; one without rows is committed too."""
    with failure_named(commit.writer.dataset.name, commit.target.table):
        if not commit.update.parts:
            commit.of_files()
            return
        try:
            release.backend.merge(commit, decided)
        except NeedsSpark as needed:
            release.needed_spark[needed.reason] += 1
            merge_by_spark(commit)


def silver_metadata(writer: SilverTables, run: RefineRun, counts: DecisionCounts) -> dict[str, Any]:
    """Return the metadata of a run's commit to silver: what it read, and how far event times have come."""
    in_bronze = batch_commit(writer.bronze.spec.path, run.last).facts
    awake, idle = awake_partitions(in_bronze), read_idle_set(in_bronze).partitions
    # What files bring is history: it neither moves the watermark nor holds it.
    latest = {p: time.isoformat() for p, time in counts.latest.items() if not is_file_set(int(p))}
    progress = stored_progress(writer)
    rowless = progress.without_rows(map(str, awake)) - latest.keys()
    reached: dict[str, Any] = {"event_time_max": latest, IDLE: sorted(idle), ROWLESS: sorted(rowless)}
    progress.advance(run.last, json.dumps(watermark_facts(reached)))
    reached[PROGRESS] = progress.as_json()
    return {
        **run.facts(writer.dataset),
        "table": writer.silver.spec.name,
        "app_id": writer.app_ids["silver"],
        "rows": counts.accepted,
        "rows_in": counts.rows_in,
        "decided_until": counts.decided_until,
        "schemas_until": counts.schemas_until,
        **reached,
    }


def rejected_metadata(writer: SilverTables, run: RefineRun, counts: DecisionCounts) -> dict[str, Any]:
    """Return the metadata of a run's commit to rejected."""
    return {
        **run.facts(writer.dataset),
        "table": writer.rejected.spec.name,
        "app_id": writer.app_ids["rejected"],
        "rows": counts.rejected,
        "reasons": counts.reasons,
        "dispositions": counts.dispositions,
        "warnings": counts.warnings,
    }


def stored_progress(writer: SilverTables) -> WatermarkProgress:
    """Return the progress of the watermark after the last commit to silver; after an upgrade, from all commits."""
    silver, app_id, lateness = writer.silver, writer.app_ids["silver"], writer.dataset.pipeline.lateness
    last = silver.committed(app_id)
    if last < 0:
        return WatermarkProgress(lateness)
    known = read_progress(lateness, silver.commit_of(app_id, last).facts)
    if known is not None:
        return known
    progress = WatermarkProgress(lateness)
    for commit in commits(silver.spec.path):
        if commit.app_id == app_id:
            progress.advance(commit.app_version or 0, json.dumps(watermark_facts(commit.facts)))
    return progress


def refresh_due(release: Release, epoch: int, now: float) -> bool:
    """Refresh tables whose interval is over at `now` (seconds since 1970); return whether there was one."""
    last, done = release.refined_batch, False
    for target in release.interval_tables:
        refreshed, interval = refresh_state(target), target.gold.refresh_interval
        if refreshed.batch < last and interval is not None and is_due(refreshed, interval, now):
            refresh_gold(release, target, last, epoch, now)
            done = True
    return done


def refresh_up_to(release: Release, epoch: int, batches: Mapping[str, int], now: float) -> None:
    """Refresh tables up to these batches (by table), or the last one, regardless of their intervals."""
    last = release.refined_batch
    for target in release.interval_tables:
        upto = min(last, batches.get(target.table.spec.name, last))
        if refresh_state(target).batch < upto:
            refresh_gold(release, target, upto, epoch, now)


def is_ahead(release: Release, batches: Mapping[str, int]) -> bool:
    """Whether a table is already refreshed beyond these batches."""
    names = {target.table.spec.name: target for target in release.interval_tables}
    return any(refresh_state(names[name]).batch > batch for name, batch in batches.items() if name in names)
