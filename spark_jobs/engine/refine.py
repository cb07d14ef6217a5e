"""Refine: bring a release's silver, rejected and gold up to a bronze batch, then publish (DESIGN §4, steps 4 to 6).

Reads: whole bronze batches [a, b]. Writes: silver, rejected, each gold table, the publication.
Guarantee: each table gets batch b once; readers see b when all tables have it. Progress is the transaction version
in silver, so there is no second checkpoint that could be lost or disagree.
After a crash: the run that silver's last commit names is finished with the same bounds before another begins.
Does not: know where bronze's rows came from, or whether more will come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq

from include.clients.delta_log import Commit, commits_following, log_versions, read_commit
from include.errors import Terminal
from include.paths import warehouse
from include.reading.publication import Publication, TableVersion, publish
from include.settings import Settings
from spark_jobs.layers.bronze_layer import batch_files
from spark_jobs.layers.gold_layer import GOLD_AT_A_TIME, GoldTable, commit_gold
from spark_jobs.layers.release_tables import Release
from spark_jobs.layers.silver_layer import ValidatedBatch, validate_batches
from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.failpoints import Step, pass_step


class CommitMissing(Terminal):
    """A table's log does not have the commit that its transaction version says it has."""

    def __init__(self, table: str, batch: int) -> None:
        super().__init__(f"{table}: the log has no commit of batch {batch}", "headrace audit")
        self.table = table
        self.batch = batch


@dataclass
class RunReport:
    """What a run did: its batches, rows in, and seconds per step."""

    batches: tuple[int, int]
    rows: int
    steps: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step."""
        start = time.monotonic()
        yield
        self.steps[name] = round(time.monotonic() - start, 3)


def refined_batch(release: Release) -> int:
    """Return the last batch that all of the release's tables have, -1 for none."""
    writer = release.writer
    versions = [
        writer.silver.committed(release.app_id("silver")),
        writer.rejected.committed(release.app_id("rejected")),
        *[target.table.committed(target.app_id) for target in release.gold],
    ]
    return min(versions)


def refine(
    settings: Settings, release: Release, first: int, last: int, epoch: int, *, publishing: bool = True
) -> RunReport:
    """Bring all tables of the release from batch `first - 1` to `last` and publish; return what it took.

    A release that readers do not see is brought on without `publishing`.

    Any step that is committed already is recognised and skipped. Raises RowsUnaccounted or NoLongerOwner with
    nothing published; what was committed stays and is recognised by the next attempt.
    """
    facts = _facts(release, first, last, epoch)
    report = RunReport((first, last), sum(f.rows for f in batch_files(release.writer.bronze, first, last)))
    with report.step("silver"):
        silver = _commit_silver(release, first, last, facts)
    with report.step("gold"):
        _commit_all_gold(release, silver, last, facts)
    pass_step(Step.ALL_GOLD_COMMITTED, last)
    if publishing:
        with report.step("publish"):
            publish(settings, publication_of(settings, release, last))
        pass_step(Step.PUBLISHED, last)
    return report


def next_run(release: Release, last: int, most_rows: int) -> tuple[int, int] | None:
    """Return the bounds of the next run up to bronze batch `last`: an unfinished one, else the next batches.

    As many as have `most_rows` together, at least one; None when there is none.
    """
    begun = unfinished_run(release)
    if begun is not None:
        return begun
    first = refined_batch(release) + 1
    if last < first:
        return None
    rows: dict[int, int] = {}
    for file in batch_files(release.writer.bronze, first, last):
        number = int(str(file.low["_batch_id"]))
        rows[number] = rows.get(number, 0) + file.rows
    total, bound = rows.get(first, 0), first
    inheritance = release.writer.inheritance
    if inheritance is not None and first < inheritance.until:
        last = min(last, inheritance.until - 1)
    while bound < last and total + rows.get(bound + 1, 0) <= most_rows:
        bound += 1
        total += rows.get(bound, 0)
    return first, bound


def last_epoch(release: Release) -> int:
    """Return the epoch of the release's last commit to silver, 0 for none."""
    silver, app_id = release.writer.silver, release.app_id("silver")
    batch = silver.committed(app_id)
    return int(_metadata(_commit_of(silver, app_id, batch))["epoch"]) if batch >= 0 else 0


def unfinished_run(release: Release) -> tuple[int, int] | None:
    """Return the bounds of the run that silver has and another table lacks, else None."""
    silver, app_id = release.writer.silver, release.app_id("silver")
    last = silver.committed(app_id)
    if last == refined_batch(release):
        return None
    first, last = _metadata(_commit_of(silver, app_id, last))["batches"]
    return first, last


def publication_of(settings: Settings, release: Release, batch: int) -> Publication:
    """Return the publication of the versions in which each table got `batch`, or was corrected after it."""
    writer, root = release.writer, warehouse(settings)
    bronze_commit = _bronze_commit(writer.bronze, batch)
    own = {writer.silver: release.app_id("silver"), writer.rejected: release.app_id("rejected")}
    own |= {target.table: target.app_id for target in release.gold}
    commits = {writer.bronze: _corrected(writer.bronze, bronze_commit)}
    commits |= {table: _corrected(table, _commit_of(table, app_id, batch)) for table, app_id in own.items()}
    latest = max(commit.timestamp_ms for commit in commits.values())
    return Publication(
        dataset=release.dataset.name,
        release=release.dataset.release,
        batch=batch,
        published_at=datetime.fromtimestamp(latest / 1000, UTC),
        offsets={int(p): span[1] for p, span in _metadata(bronze_commit)["offsets"].items()},
        tables={
            table.spec.name: TableVersion(str(table.spec.path.relative_to(root)), commit.version)
            for table, commit in commits.items()
        },
    )


def _commit_silver(release: Release, first: int, last: int, facts: dict[str, Any]) -> list[DataFile]:
    """Step 4: silver, then rejected; return silver's files of this run as committed."""
    writer = release.writer
    silver_id, rejected_id = release.app_id("silver"), release.app_id("rejected")
    if writer.rejected.committed(rejected_id) < last:
        known, until = None, None
        if writer.silver.committed(silver_id) >= last:
            known = _run_files(release, first, last)
            until = int(_metadata(_commit_of(writer.silver, silver_id, last)).get("decided_until", 0))
        validated = validate_batches(writer, first, last, facts["epoch"], known, until)
        if known is None:
            writer.silver.commit(silver_id, last, _silver_metadata(release, validated, facts), validated.silver)
            pass_step(Step.SILVER_COMMITTED, last)
        writer.rejected.commit(rejected_id, last, _rejected_metadata(release, validated, facts), validated.rejected)
        pass_step(Step.REJECTED_COMMITTED, last)
    return _run_files(release, first, last)


def _run_files(release: Release, first: int, last: int) -> list[DataFile]:
    return [file for file in release.writer.silver.files() if file.overlaps("_batch_id", first, last)]


def _commit_all_gold(release: Release, silver: Sequence[DataFile], last: int, facts: dict[str, Any]) -> None:
    def commit(target: GoldTable) -> None:
        commit_gold(target, release.writer.silver, silver, last, facts)

    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        for _ in pool.map(commit, release.gold):
            pass


def _facts(release: Release, first: int, last: int, epoch: int) -> dict[str, Any]:
    dataset = release.dataset
    return {
        "dataset": dataset.name,
        "release": dataset.release,
        "code": dataset.release,
        "epoch": epoch,
        "batches": [first, last],
    }


def _silver_metadata(release: Release, validated: ValidatedBatch, facts: dict[str, Any]) -> dict[str, Any]:
    times = _latest_events(release.writer.silver, validated.silver, release.dataset.pipeline.event_time)
    return {
        **facts,
        "table": release.writer.silver.spec.name,
        "app_id": release.app_id("silver"),
        "rows": validated.accepted,
        "rows_in": validated.rows_in,
        "decided_until": validated.decided_until,
        "event_time_max": {p: t.astimezone(UTC).isoformat().replace("+00:00", "Z") for p, t in times.items()},
    }


def _latest_events(silver: Table, files: Sequence[DataFile], column: str) -> dict[str, datetime]:
    """Return the greatest event time of each partition; a file may hold rows of several, so bounds do not tell."""
    latest: dict[str, datetime] = {}
    for file in files:
        rows = pq.read_table(silver.spec.path / file.path, columns=["_partition", column], partitioning=None)
        for found in rows.group_by("_partition").aggregate([(column, "max")]).to_pylist():
            partition, high = str(found["_partition"]), found[f"{column}_max"]
            latest[partition] = max(latest.get(partition, high), high)
    return latest


def _rejected_metadata(release: Release, validated: ValidatedBatch, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        **facts,
        "table": release.writer.rejected.spec.name,
        "app_id": release.app_id("rejected"),
        "rows": sum(file.rows for file in validated.rejected),
        "reasons": validated.reasons,
        "dispositions": validated.dispositions,
        "warnings": validated.warnings,
    }


def _commit_of(table: Table, app_id: str, batch: int) -> Commit:
    return _last_commit(table, batch, _of_batch(app_id, batch))


def _bronze_commit(bronze: Table, batch: int) -> Commit:
    return _last_commit(bronze, batch, lambda commit: _metadata(commit).get("batches") == [batch, batch])


def _corrected(table: Table, own: Commit) -> Commit:
    """Return the last correction of a plan before the next batch was committed; without one the batch's own commit."""
    newest = own
    for commit in commits_following(table.spec.path, own.version):
        if "plan" in _metadata(commit):
            newest = commit
        elif commit.app_id is not None:
            break
    return newest


def _of_batch(app_id: str, batch: int) -> Callable[[Commit], bool]:
    return lambda commit: commit.app_id == app_id and commit.app_version == batch


def _last_commit(table: Table, batch: int, holds: Callable[[Commit], bool]) -> Commit:
    for version in sorted(log_versions(table.spec.path), reverse=True):
        commit = read_commit(table.spec.path, version)
        if holds(commit):
            return commit
    raise CommitMissing(table.spec.name, batch)


def _metadata(commit: Commit) -> dict[str, Any]:
    return commit.metadata or {}
