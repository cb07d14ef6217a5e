"""Derives the publication of a release's tables at a batch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, TableVersion
from include.read.published_tables import read_refresh_state
from spark_jobs.layers.release import Release
from spark_jobs.tables.batches import batch_commit, commit_of, latest_patch, metadata_of


def publication_of(settings: Settings, release: Release, batch: int) -> Publication:
    """Return the publication of the versions in which each table got `batch`, or the last patch after it."""
    writer, root = release.writer, warehouse(settings)
    in_bronze = batch_commit(writer.bronze, batch)
    own = {writer.silver: release.writer.app_id("silver"), writer.rejected: release.writer.app_id("rejected")}
    own |= {target.table: target.app_id for target in release.gold}
    commits = {writer.bronze: latest_patch(writer.bronze, in_bronze)}
    commits |= {table: latest_patch(table, commit_of(table, app_id, batch)) for table, app_id in own.items()}
    behind = _behind(release, {table.spec.name: metadata_of(commit) for table, commit in commits.items()}, batch)
    latest = max(commit.timestamp_ms for commit in commits.values())
    return Publication(
        dataset=release.dataset.name,
        release=release.dataset.release,
        batch=batch,
        published_at=datetime.fromtimestamp(latest / 1000, UTC),
        offsets={int(p): span[1] for p, span in metadata_of(in_bronze)["offsets"].items()},
        tables={
            table.spec.name: TableVersion(
                str(table.spec.path.relative_to(root)), commit.version, behind.get(table.spec.name)
            )
            for table, commit in commits.items()
        },
    )


def _behind(release: Release, commits: Mapping[str, Mapping[str, Any]], batch: int) -> dict[str, int]:
    """Return the last batch of each gold table that is behind `batch` by its refresh, given the tables' commits."""
    names = [target.table.spec.name for target in release.gold if target.gold.refresh_interval is not None]
    refreshed = {name: read_refresh_state(commits[name]).batch for name in names}
    return {name: last for name, last in refreshed.items() if last < batch}
