"""Small files beside a release's tables: which releases are active, and the patch that is being applied."""

from __future__ import annotations

from dataclasses import dataclass

from include.paths import active_releases_path, patch_in_progress_path
from include.settings import Settings
from include.state.json_file import JsonFile


@dataclass(frozen=True)
class PatchInProgress:
    """The patch of `plan`; `way` is APPLY or REVERT of `apply_patch.py`."""

    plan: str
    way: int


def active_releases_file(settings: Settings, dataset: str) -> JsonFile[list[str]]:
    """Return the file of the names of the active releases, the published one first; no file before the first plan."""
    path = active_releases_path(settings, dataset)
    return JsonFile(path, list[str], f'rm "{path}", then headrace down, headrace up', "shadow releases are not known")


def patch_in_progress_file(settings: Settings, dataset: str, release: str) -> JsonFile[PatchInProgress]:
    """Return the file that exists while a patch is begun and not finished."""
    path = patch_in_progress_path(settings, dataset, release)
    remedy = f'headrace plan list, then {{"plan": PLAN, "way": 1 to apply it or 2 to revert it}} into "{path}"'
    return JsonFile(path, PatchInProgress, remedy, "no run begins before the patch is finished")
