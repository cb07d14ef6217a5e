"""What moves a release's publication between runs: the tables at a batch, a patch in progress.

A patch is recorded before its first commit, so that no run begins before it is finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from include.ground.errors import Terminal
from include.ground.paths import patch_path, warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, TableVersion, publish
from include.read.published_tables import read_refresh_state
from include.state.json_file import JsonFile
from include.state.release_files import (
    PatchDirection,
    PatchInProgress,
    PlanBuild,
    patch_in_progress_file,
    plan_build_file,
)
from spark_jobs.backends.release import Release, refined_batch
from spark_jobs.history.apply_patch import Patch, apply_patch, is_started
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.tables.batches import batch_commit, commit_of, latest_patch, metadata_of
from spark_jobs.tables.failpoints import Step, pass_step


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


class ShadowBlocksPatch(Terminal):
    """The patch fills a gap in bronze, and shadow release `shadow` would lack those records."""

    def __init__(self, plan: str, shadow: str) -> None:
        super().__init__(
            f"plan {plan} fills a gap in bronze, whose records shadow release {shadow} would lack; nothing was changed",
            "headrace plan list, headrace plan retire PLAN (the plan of that release), then the same command again",
        )
        self.plan, self.shadow = plan, shadow


def read_built(settings: Settings, dataset: str, release: str, plan: str) -> PlanBuild:
    """Return what the plan's build recorded. Raises Terminal when the build is not complete, StateFileUnreadable."""
    file = plan_build_file(settings, dataset, release, plan)
    built = file.read()
    if built is None:
        raise Terminal(f"plan {plan} has no complete build ({file.path})", file.remedy)
    return built


def has_patch_in_progress(settings: Settings, release: Release) -> bool:
    """Whether a patch of the release was begun and is not finished."""
    return _file(settings, release).path.exists()


def begin_patch(settings: Settings, release: Release, plan: str, direction: PatchDirection) -> None:
    """Record the patch of `plan`; `finish_patch` then applies or reverts it."""
    _file(settings, release).write(PatchInProgress(plan, direction))


def finish_patch(settings: Settings, release: Release, epoch: int, shadows: Sequence[str]) -> None:
    """Apply the recorded patch, if there is one, and publish.

    Raises PatchOutdated, ShadowBlocksPatch and others, and removes the record unless a table has a commit of it.
    """
    file, dataset = _file(settings, release), release.dataset
    recorded = file.read()
    if recorded is None:
        return
    plan = recorded.plan
    folder = PlanFolder(patch_path(settings, dataset.name, dataset.release, plan))
    try:
        built = read_built(settings, dataset.name, dataset.release, plan)
        patch = Patch(plan, folder, built.batch, recorded.direction, built.reference)
        if built.filled and shadows:
            raise ShadowBlocksPatch(plan, shadows[0])
        apply_patch(release, patch, refined_batch(release), epoch)
    except Exception:
        if not is_started(release, plan, recorded.direction):
            file.remove()
        raise
    publish(settings, publication_of(settings, release, refined_batch(release)))
    pass_step(Step.PATCH_PUBLISHED)
    file.remove()


def _file(settings: Settings, release: Release) -> JsonFile[PatchInProgress]:
    return patch_in_progress_file(settings, release.dataset.name, release.dataset.release)
