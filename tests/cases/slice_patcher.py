"""A published release whose slices can be rebuilt, with its own code or edited code, and patched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from small_release import SmallRelease

from include.declare.dataset import load_dataset
from include.declare.history_slice import Slice
from include.ground.paths import patch_path
from include.ground.settings import Settings
from include.read.publication import publish, read_publication
from include.state.release_files import PatchDirection
from spark_jobs.backends.release import Release, pinned_release
from spark_jobs.contract.validator import compiled_validator
from spark_jobs.history.apply_patch import Patch, apply_patch
from spark_jobs.history.rebuild_gold import rebuild_gold
from spark_jobs.history.rebuild_slice import PlanFolder, RebuiltSlice, rebuild_slice
from spark_jobs.jobs.slice_job import slice_records
from spark_jobs.layers.silver_code import load_transformation
from spark_jobs.layers.silver_tables import QUERIES
from spark_jobs.stream.refine import publication_of

Edit = Callable[[Path], None]


@dataclass
class SlicePatcher:
    """A published release; `rebuild` computes a patch for a slice, `apply` applies or reverts it and publishes."""

    production: SmallRelease
    folder: Path
    plans: int = 0

    @property
    def name(self) -> str:
        return self.production.dataset.name

    def rebuild(
        self, selection: Slice, edit: Edit | None = None, complete: int = 0
    ) -> tuple[Patch, RebuiltSlice, dict[str, int]]:
        """Rebuild a slice of the published batches; return patch, record counts and differing rows per table."""
        self.plans += 1
        production, published = self.production, read_publication(self.production.settings, self.name)
        versions = {name: table.version for name, table in published.tables.items()}
        pinned = pinned_release(
            production.spark, production.settings, production.dataset, versions, selection.reference
        )
        release = pinned if edit is None else self._with_code_of(pinned, edit)
        plan = f"test-{self.name}-{self.plans}"
        folder = PlanFolder(patch_path(production.settings, self.name, production.dataset.release, plan))
        records = slice_records(production.settings, release, selection, published, folder)
        rebuilt = rebuild_slice(release, records, selection, folder)
        gold = {
            t.table.spec.name: rebuild_gold(
                release.backend, t, release.writer.silver, folder, published.batch, complete
            )
            for t in release.gold
        }
        patch = Patch(plan, folder, published.batch, PatchDirection.APPLY, selection.reference)
        return patch, rebuilt, {**rebuilt.differing, **gold}

    def _with_code_of(self, pinned: Release, edit: Edit) -> Release:
        other = load_dataset(self.name, edited_dataset(self.folder, edit, self.production.dataset.folder))
        writer = replace(
            pinned.writer, validator=compiled_validator(other.contract), transform=load_transformation(other)
        )
        return replace(pinned, writer=writer)

    def apply(self, patch: Patch) -> None:
        """Apply the patch, or revert it if that is its direction, and publish."""
        production = self.production
        batch = production.release.refined_batch
        apply_patch(production.release, patch, batch, production.epoch)
        publish(production.settings, publication_of(production.settings, production.release, batch))


def copy_release(release: SmallRelease, state: Path) -> SmallRelease:
    """Copy the state folder and return its release: cheaper than refining the same batches again."""
    copy_state(release.settings.state, state)
    settings, ends = Settings(state=state, backend=release.settings.backend), dict(release.ends)
    return SmallRelease(release.spark, settings, release.dataset, release.epoch, ends, release.batches)


def copy_state(state: Path, copy: Path) -> None:
    """Copy a state folder without what only the process that wrote it uses: slots are sparse, and 96 MB as copies."""
    shutil.copytree(state, copy, ignore=shutil.ignore_patterns(QUERIES))


def edited_dataset(parent: Path, edit: Edit, original: Path) -> Path:
    """Copy a dataset's folder to `parent`, apply `edit` once, and return the copy."""
    folder = parent / edit.__name__
    if not folder.exists():
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("__pycache__"))
        edit(folder)
    return folder
