"""A release in production, and slices of its history done again, with the same code or with another."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from small_release import SmallRelease

from include.catalog.dataset import load_dataset
from include.catalog.history_slice import Slice
from include.paths import patch_path
from include.reading.publication import publish, read_publication
from include.settings import Settings
from spark_jobs.contract.validator import compiled_validator
from spark_jobs.engine.apply_patch import APPLY, Patch, apply_patch
from spark_jobs.engine.next_run import refined_batch
from spark_jobs.engine.rebuild_gold import rebuild_gold
from spark_jobs.engine.rebuild_slice import PlanFolder, RebuiltSlice, rebuild_slice
from spark_jobs.engine.release_publication import publication_of
from spark_jobs.jobs.slice_job import slice_records
from spark_jobs.layers.release_tables import Release, pinned_release
from spark_jobs.layers.silver_code import load_transformation

Edit = Callable[[Path], None]


@dataclass
class History:
    """A release in production, and slices of it done again, with the same code or with another."""

    production: SmallRelease
    folder: Path
    plans: int = 0

    @property
    def name(self) -> str:
        return self.production.dataset.name

    def redo(self, wanted: Slice, edit: Edit | None = None) -> tuple[Patch, RebuiltSlice, dict[str, int]]:
        self.plans += 1
        made, seen = self.production, read_publication(self.production.settings, self.name)
        versions = {name: table.version for name, table in seen.tables.items()}
        pinned = pinned_release(made.spark, made.settings, made.dataset, versions, wanted.reference)
        release = pinned if edit is None else self._with_code_of(pinned, edit)
        plan = f"test-{self.name}-{self.plans}"
        folder = PlanFolder(patch_path(made.settings, self.name, made.dataset.release, plan))
        records = slice_records(made.settings, release, wanted, seen, folder)
        done = rebuild_slice(release, records, wanted, folder)
        gold = {t.table.spec.name: rebuild_gold(t, release.writer.silver, folder, seen.batch) for t in release.gold}
        return Patch(plan, folder, seen.batch, APPLY), done, {**done.differing, **gold}

    def _with_code_of(self, pinned: Release, edit: Edit) -> Release:
        other = load_dataset(self.name, edited(self.folder, edit, self.production.dataset.folder))
        refinery = replace(
            pinned.writer, validator=compiled_validator(other.contract), transform=load_transformation(other)
        )
        return replace(pinned, writer=refinery)

    def apply(self, correction: Patch) -> None:
        made = self.production
        batch = refined_batch(made.release)
        apply_patch(made.release, correction, batch, made.epoch)
        publish(made.settings, publication_of(made.settings, made.release, batch))


def copy_of(release: SmallRelease, state: Path) -> SmallRelease:
    """Return the release in a place of its own, as it is: cheaper than to take the same batches again."""
    shutil.copytree(release.settings.state, state)
    settings, ends = Settings(state=state), dict(release.ends)
    return SmallRelease(release.spark, settings, release.dataset, release.epoch, ends, release.batches)


def edited(place: Path, edit: Edit, original: Path) -> Path:
    folder = place / edit.__name__
    if not folder.exists():
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("__pycache__"))
        edit(folder)
    return folder
