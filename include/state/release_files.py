"""Small files next to a release's tables: active releases, the patch in progress, a plan's build, verified ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from include.declare.history_slice import Slice
from include.ground.paths import active_releases_path, patch_in_progress_path, patch_path, plan_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile


class PatchDirection(IntEnum):
    """Whether a plan's patch is applied or reverted; the number is the transaction version of its commits."""

    APPLY = 1
    REVERT = 2


@dataclass(frozen=True)
class PatchInProgress:
    """The patch of `plan`, which is being applied or reverted."""

    plan: str
    direction: PatchDirection


@dataclass(frozen=True)
class PlanBuild:
    """A slice that a plan recomputed at `batch` of the publication, which was read at `read_at_ms`.

    `records` of the slice and its `closure` (duplicate closure); `filled` are missing in bronze; `differing` rows by
    table. Builds of earlier versions have no `decided_until`: size of the decisions that were applied. `reference`:
    versions of the reference tables that all records were joined with, None for those of each batch.
    """

    attempt: str
    batch: int
    filled: int
    read_at_ms: int = 0
    release: str = ""
    records: int = 0
    closure: int = 0
    differing: Mapping[str, int] = field(default_factory=dict)
    decided_until: int | None = None
    seconds: float = 0.0
    reference: Mapping[str, int] | None = None


@dataclass(frozen=True)
class VerifiedRange:
    """A plan found events of [since, until), recomputed at `batch`, equal to those published at `verified_at_ms`."""

    plan: str
    batch: int
    since: datetime
    until: datetime
    verified_at_ms: int


@dataclass(frozen=True)
class PlannedSlice:
    """The part of `plan.json` that a driver reads: the slice, and the release published when it was planned."""

    release: str
    slice: Slice


def active_releases_file(settings: Settings, dataset: str) -> JsonFile[list[str]]:
    """Return the file with the active releases, the published one first; no file before the first plan."""
    path = active_releases_path(settings, dataset)
    return JsonFile(path, list[str], f'rm "{path}", then headrace down, headrace up', "shadow releases are not known")


def patch_in_progress_file(settings: Settings, dataset: str, release: str) -> JsonFile[PatchInProgress]:
    """Return the file that exists while a patch is begun and not finished."""
    path = patch_in_progress_path(settings, dataset, release)
    remedy = f'headrace plan list, then {{"plan": PLAN, "direction": 1 to apply it or 2 to revert it}} into "{path}"'
    consequence = "no run begins before the patch is finished"
    return JsonFile(path, PatchInProgress, remedy, consequence, former_keys={"way": "direction"})


def plan_build_file(settings: Settings, dataset: str, release: str, plan: str) -> JsonFile[PlanBuild]:
    """Return the file that exists when the plan's build is complete."""
    path = patch_path(settings, dataset, release, plan) / "built.json"
    return JsonFile(path, PlanBuild, f"headrace plan compare {plan}", former_keys={"kin": "closure"})


def verified_file(path: Path) -> JsonFile[VerifiedRange]:
    """Return the file of a verified range (`verified_path`)."""
    return JsonFile(path, VerifiedRange, f'rm "{path}"', "the range was not entered into the ledger")


def planned_slice_file(settings: Settings, plan: str) -> JsonFile[PlannedSlice]:
    """Return `plan.json`, of which only the slice is read; `include/plans/journal.py` writes it."""
    path = plan_path(settings, plan) / "plan.json"
    return JsonFile(path, PlannedSlice, f"headrace plan show {plan}", "nothing was built")
