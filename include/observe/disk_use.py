"""Disk use of the state folder: every file counts once, in one part; and what the owners of tables will delete next."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from include.declare.derived_dataset import release_retention
from include.ground import delta_log
from include.ground.commit_history import HISTORY
from include.ground.delta_log import LOG
from include.ground.errors import HeadraceError, Terminal
from include.ground.paths import removed_data_path, removed_tables_path, warehouse
from include.ground.settings import Settings
from include.observe.ended_plans import ended_data
from include.read.publication import find_publication
from include.state.release_files import active_releases_file

SHARED = "all"
"""Instead of a release: for what all releases of a dataset share."""
BY_DATASET = {"checkpoints": "checkpoint", "quality": "validation results", "analyses": "analyses"}
PLAN_FOLDER = re.compile(r"(?:derived-)?[a-z]+-(.+)-[0-9]+")


@dataclass(frozen=True)
class StoragePart:
    """A part of the state folder: a table, or another `name`; outside the warehouse without dataset and release."""

    dataset: str
    release: str
    name: str
    table: Path | None = None


@dataclass(frozen=True)
class PartUse:
    """Bytes of a part: `current` files, `replaced` files of earlier versions and of crashed writers.

    `log`: Delta's log and the history of its old commits. `deletable`: what the owner deletes next: replaced files that
    no version needs any more, and data of ended plans.
    """

    part: StoragePart
    current: int = 0
    replaced: int = 0
    log: int = 0
    deletable: int = 0

    @property
    def total(self) -> int:
        """All bytes of the part."""
        return self.current + self.replaced + self.log


def disk_use(settings: Settings, dataset: str | None = None) -> list[PartUse]:
    """Return the use of each part of the state folder, or of those of one dataset, ordered by name.

    Raises Terminal (`nothing-stored`) when there is none.
    """
    ended = set(_ended(settings))
    found: dict[StoragePart, PartUse] = {}
    active: dict[StoragePart, dict[str, int]] = {}
    for path, size in _files(settings.state):
        part = _part_of(settings, path)
        if dataset not in (None, part.dataset):
            continue
        if part not in active:
            active[part] = _current(part)
        use = found.get(part, PartUse(part))
        if not ended.isdisjoint((path, *path.parents)):
            use = replace(use, deletable=use.deletable + size)
        if part.table is not None and {LOG, HISTORY} & {*path.relative_to(part.table).parts}:
            found[part] = replace(use, log=use.log + size)
        elif part.table is not None and str(path.relative_to(part.table)) not in active[part]:
            found[part] = replace(use, replaced=use.replaced + size)
        else:
            found[part] = replace(use, current=use.current + size)
    if not found:
        what = f"of dataset {dataset!r} " if dataset else ""
        missing = "" if settings.state.is_dir() else " (no such folder)"
        raise Terminal(
            f"nothing {what}is stored in {settings.state}{missing}",
            f"headrace up{f' {dataset}' if dataset else ''}, or set HEADRACE_STATE to another state folder",
            code="nothing-stored",
        )
    ordered = sorted(found.values(), key=lambda use: (use.part.dataset, use.part.release != SHARED, *_names(use)))
    return [replace(use, deletable=use.deletable + _deletable(settings, use.part)) for use in ordered]


def _ended(settings: Settings) -> Iterator[Path]:
    """Yield the folders and files of ended plans that the owner removes next, or is deleting."""
    for dataset in [path.parent.name for path in warehouse(settings).glob("*/publication.json")]:
        yield from (removed_tables_path(settings, dataset), removed_data_path(settings, dataset))
        with suppress(HeadraceError):
            yield from (settings.state / each.path for each in ended_data(settings, dataset, datetime.now(UTC)))


def _names(use: PartUse) -> tuple[str, str]:
    return use.part.release, use.part.name


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield path and bytes of all files below a folder; those that are deleted meanwhile do not count."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            try:
                yield path, path.lstat().st_size
            except FileNotFoundError:
                continue


def _part_of(settings: Settings, path: Path) -> StoragePart:
    root = warehouse(settings)
    if not path.is_relative_to(root):
        return _outside_warehouse(path.relative_to(settings.state).parts)
    dataset, *rest = path.relative_to(root).parts
    folder = root / dataset
    match rest:
        case ["bronze", _, *_]:
            return StoragePart(dataset, SHARED, f"bronze.{dataset}", folder / "bronze")
        case ["reference", name, _, *_]:
            return StoragePart(dataset, SHARED, f"reference {name}", folder / "reference" / name)
        case [release, "silver" | "rejected" as layer, _, *_]:
            return StoragePart(dataset, release, f"{layer}.{dataset}", folder / release / layer)
        case [release, "gold", name, _, *_]:
            return StoragePart(dataset, release, f"gold.{name}", folder / release / "gold" / name)
        case [release, "identities", *_]:
            return StoragePart(dataset, release, "index of identities")
        case [release, "plans", *_]:
            return StoragePart(dataset, release, "rows of plans")
        case [release, "_queries", *_]:
            return StoragePart(dataset, release, "slots of prepared queries")
        case [release, _, *_]:
            return StoragePart(dataset, release, "other")
    return StoragePart(dataset, SHARED, "other")


def _outside_warehouse(parts: tuple[str, ...]) -> StoragePart:
    match parts:
        case ["removed", dataset, "tables" | "ended", _, *_]:
            return StoragePart(dataset, SHARED, "being deleted")
        case ["removed", dataset, _, *_]:
            return StoragePart(dataset, SHARED, "removed by repair")
        case ["releases", dataset, release, _, *_]:
            return StoragePart(dataset, release, "snapshot")
        case [folder, dataset, _, *_] if folder in BY_DATASET:
            return StoragePart(dataset, SHARED, BY_DATASET[folder])
        case ["plans", folder, _, *_] if found := PLAN_FOLDER.fullmatch(folder):
            return StoragePart(found[1], SHARED, "plans")
    return StoragePart("", "", parts[0])


def _current(part: StoragePart) -> dict[str, int]:
    """Return the files of a table's newest version; all files count as replaced when its log cannot be read."""
    from deltalake.exceptions import DeltaError

    try:
        return {} if part.table is None else delta_log.current_files(part.table)
    except DeltaError:
        return {}


def _deletable(settings: Settings, part: StoragePart) -> int:
    """Return the bytes that the owner deletes next: of tables of active releases alone."""
    if part.table is None or part.name.startswith("reference "):
        return 0
    publication = find_publication(settings, part.dataset)
    if publication is None:
        return 0
    active = {publication.release, *(active_releases_file(settings, part.dataset).read() or ())}
    if part.release not in (SHARED, *active):
        return 0
    named = {warehouse(settings) / table.path: table.version for table in publication.tables.values()}
    try:
        retention = release_retention(settings, part.dataset, publication.release).versions
    except HeadraceError:
        return 0
    kept = [named[part.table]] if part.table in named else []
    return sum(_size(part.table / path) for path in delta_log.obsolete_files(part.table, kept, retention))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
