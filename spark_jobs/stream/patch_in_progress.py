"""A patch in progress: recorded before its first commit, so that no run begins before the patch is finished.

Reads: `patch_in_progress.json`, the plan's `built.json` and rows. Writes: the release's tables, the publication.
Guarantee: readers see all tables before the patch or after it.
After a crash: the next owner finishes the patch; one that has no commit yet is dropped when it cannot be applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from include.ground.errors import Terminal
from include.ground.paths import patch_path
from include.ground.settings import Settings
from include.read.publication import publish
from include.state.json_file import JsonFile
from include.state.release_files import (
    PatchDirection,
    PatchInProgress,
    PlanBuild,
    patch_in_progress_file,
    plan_build_file,
)
from spark_jobs.history.apply_patch import Patch, apply_patch, is_started
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.release import Release, refined_batch
from spark_jobs.stream.release_publication import publication_of
from spark_jobs.tables.failpoints import Step, pass_step


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
