"""Removes the data of ended plans (tables and snapshots of releases, rows, comparisons) and the files that `headrace
repair` moved aside, as `retention` declares.

Kept are releases that are published, active, or named by an open, applied or rolled back plan, and the rows
that reverting an applied slice needs. Plans and their events are kept. A damaged plan blocks removal for its own
dataset only.
Data is moved before it is deleted, so no reader finds a part of it; after a crash the next call finishes the removal.

Disk use of the state folder: every file counts once, in one part.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from include.declare.derived_dataset import release_retention
from include.declare.gold import full_name
from include.declare.pipeline import Retention
from include.ground import delta_log
from include.ground.commit_history import HISTORY
from include.ground.delta_log import LOG
from include.ground.errors import HeadraceError, Terminal
from include.ground.paths import (
    local_warehouse,
    patch_path,
    release_lease_path,
    release_path,
    release_tables_path,
    removed_commits_path,
    removed_data_path,
    removed_tables_path,
    snapshots_path,
    warehouse,
)
from include.ground.settings import Settings
from include.ground.stored_path import StoredPath, path_below, remove_tree, sizes_below, text_below
from include.observe.ledger_rows import delete_release
from include.observe.ledger_writer import open_writer
from include.plans.index import note_without_data
from include.plans.journal import PLANNING_TIMEOUT, comparison_path, plan_of, planning_lock, plans_of_data
from include.plans.plan import ENDED, RELEASES, PlanRecord, Retired
from include.read.publication import find_publication, read_publication
from include.state.lease import is_lease_free
from include.state.release_files import active_releases_file


@dataclass(frozen=True)
class EndedData:
    """A folder or file that the policy `releases`, `plans` or `removed` removes: since when it is unused, its size.

    `path` is relative to the state folder, or an address; `release` has a name when it is that of a release's tables.
    """

    policy: str
    path: str
    ended: datetime
    bytes: int
    release: str = ""


def remove_ended(settings: Settings, dataset: str, now: datetime) -> list[EndedData]:
    """Remove what `ended_data` returns, and return it. Raises what `move_ended` raises."""
    found = move_ended(settings, dataset, now)
    delete_moved(settings, dataset)
    return found


def move_ended(settings: Settings, dataset: str, now: datetime, within: float = PLANNING_TIMEOUT) -> list[EndedData]:
    """Move what `ended_data` returns to where `delete_moved` deletes it, and return it.

    Raises NothingPublished, PlanUnreadable, PlanBusy after `within` seconds, and the errors of the ledger's writer.
    """
    # No plan may begin to use a release meanwhile.
    with planning_lock(settings, within):
        history = _read_history(settings, dataset)
        found = _ended_data(settings, history, now)
        for each in found:
            if each.release:
                if settings.stores_tables:
                    # A store moves nothing.
                    remove_tree(release_tables_path(settings, dataset, each.release))
                with _rows_deleted(settings, dataset, each.release):
                    path = release_path(settings, dataset, each.release)
                    _move(path, removed_tables_path(settings, dataset) / each.release)
            else:
                _move(settings.state / each.path, removed_data_path(settings, dataset) / each.path.replace("/", "-"))
        note_without_data(settings, _without_data(settings, history, now))
    return found


def pass_over(settings: Settings, dataset: str, plans: list[str], now: datetime, end: float) -> None:
    """Take plans from a list until `end` (monotonic), at least one, and mark those without data in the index.

    Raises NothingPublished, PlanUnreadable.
    """
    published = read_publication(settings, dataset).release
    retention, records = release_retention(settings, dataset, published), list[PlanRecord]()
    while plans:
        record = plan_of(settings, dataset, plans.pop())
        records += [] if record is None else [record]
        if time.monotonic() >= end:
            break
    history = _PlanHistory(dataset, published, retention, records)
    note_without_data(settings, _without_data(settings, history, now))


def delete_moved(settings: Settings, dataset: str, end: float = math.inf) -> bool:
    """Delete what was moved until `end` (monotonic); return whether all of it is deleted."""
    for moved in _entries(removed_tables_path(settings, dataset)):
        # After a crash before the ledger's commit, a release has rows there and no tables.
        if not release_tables_path(settings, dataset, moved.name).is_dir():
            with _rows_deleted(settings, dataset, moved.name):
                pass
        if not _delete_until(moved, end):
            return False
    return all(_delete_until(moved, end) for moved in _entries(removed_data_path(settings, dataset)))


def ended_data(settings: Settings, dataset: str, now: datetime) -> list[EndedData]:
    """Return what ended longer ago than the published release's `retention` says, tables of releases first.

    Raises NothingPublished; PlanUnreadable, since any release of the dataset may be one that such a plan needs.
    """
    return _ended_data(settings, _read_history(settings, dataset), now)


@dataclass(frozen=True)
class _PlanHistory:
    dataset: str
    published: str
    retention: Retention
    records: Sequence[PlanRecord]


def _read_history(settings: Settings, dataset: str) -> _PlanHistory:
    records = plans_of_data(settings, dataset)
    published = read_publication(settings, dataset).release
    return _PlanHistory(dataset, published, release_retention(settings, dataset, published), records)


def _ended_data(settings: Settings, history: _PlanHistory, now: datetime) -> list[EndedData]:
    dataset, retention = history.dataset, history.retention
    records = [record.of(dataset) for record in history.records]
    kept = {history.published, *(active_releases_file(settings, dataset).read() or ()), *_needed(records)}
    releases = _ended_releases(records)
    found = []
    for name, ended in sorted(releases.items()):
        path = release_tables_path(settings, dataset, name)
        unused = name not in kept and is_lease_free(settings, release_lease_path(settings, dataset, name))
        if unused and now - ended > retention.releases and path.is_dir():
            found.append(_ended(settings, "releases", path, ended, name))
    removed = {each.release for each in found}
    for path in _entries(snapshots_path(settings, dataset)):
        ended = releases.get(path.name) or datetime.fromtimestamp(path.stat().st_ctime, UTC)
        unused = path.name not in kept and (
            path.name in removed or not release_tables_path(settings, dataset, path.name).is_dir()
        )
        if unused and now - ended > retention.releases:
            found.append(_ended(settings, "releases", path, ended))
    for record in records:
        ended = _ended_at(record)
        if record.is_over and now - ended > retention.plans:
            data = [path for path in _data_of(settings, record, removed) if path.exists()]
            found += [_ended(settings, "plans", path, ended) for path in data]
    return [*found, *_removed_by_repair(settings, dataset, now - retention.removed)]


def _without_data(settings: Settings, history: _PlanHistory, now: datetime) -> Iterator[str]:
    """Yield the plans without data: they ended before the retention, and have no tables, rows or pages."""
    retention = max(history.retention.releases, history.retention.plans)
    for record in history.records:
        if record.is_over and now - _ended_at(record) > retention:
            released = [(part.plan.dataset, name) for part in record.parts for name in _released(part)]
            folders = [release_tables_path(settings, dataset, name) for dataset, name in released]
            folders += [snapshots_path(settings, dataset) / name for dataset, name in released]
            if not any(path.is_dir() for path in folders) and not any(map(Path.exists, _data_of(settings, record, ()))):
                yield record.plan.id


def _removed_by_repair(settings: Settings, dataset: str, before: datetime) -> Iterator[EndedData]:
    """Yield the files that repairs moved aside before a time: lost commits, and bronze's records in them."""
    others = (removed_tables_path(settings, dataset), removed_data_path(settings, dataset))
    for path in _entries(removed_commits_path(settings, dataset)):
        moved = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        if path not in others and moved < before:
            yield _ended(settings, "removed", path, moved)


def _needed(records: Iterable[PlanRecord]) -> Iterator[str]:
    """Yield the releases of plans that may still be applied or rolled back."""
    for record in records:
        if record.is_open or (record.plan.kind in RELEASES and record.stage not in ENDED):
            yield from (record.plan.base, record.plan.release)


def _ended_releases(records: Iterable[PlanRecord]) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for record in records:
        for name in _released(record):
            found[name] = max(_ended_at(record), found.get(name, _ended_at(record)))
    return found


def _released(record: PlanRecord) -> Sequence[str]:
    if record.plan.kind not in RELEASES or record.stage not in ENDED:
        return ()
    retired = record.find(Retired)
    return [record.plan.release] if retired is None else retired.releases


def _data_of(settings: Settings, record: PlanRecord, removed: Container[str]) -> Iterator[Path]:
    """Yield the data of a plan besides its parameters and events; `removed` releases include all their rows."""
    plan = record.plan
    if plan.kind not in RELEASES and plan.release not in removed:
        yield patch_path(settings, plan.dataset, plan.release, plan.id)
    yield from (comparison_path(settings, plan.id, kind) for kind in ("json", "html"))


def _ended_at(record: PlanRecord) -> datetime:
    return record.events[-1].at if record.events else record.plan.planned_at


def _ended(settings: Settings, policy: str, path: Path, ended: datetime, release: str = "") -> EndedData:
    size = path.stat().st_size if path.is_file() else sum(size for _, size in sizes_below(path))
    return EndedData(policy, text_below(settings.state, path), ended, size, release)


@contextmanager
def _rows_deleted(settings: Settings, dataset: str, release: str) -> Iterator[None]:
    """Delete a release's rows of the ledger; no projection reads its tables in the block."""
    with closing(open_writer(settings)) as writer, writer.transaction(alone=True) as connection:
        delete_release(connection, dataset, release)
        yield


def _move(path: Path, moved: Path) -> None:
    _delete_until(moved, math.inf)
    moved.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(moved)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _delete_until(path: Path, end: float) -> bool:
    """Delete a file or folder, until `end`; return whether it is gone. Another process may be deleting it too."""
    if path.is_file():
        path.unlink(missing_ok=True)
    for root, _, names in os.walk(path, topdown=False):
        for name in names:
            if time.monotonic() >= end:
                return False
            Path(root, name).unlink(missing_ok=True)
        with suppress(OSError):
            os.rmdir(root)
    return True


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
        return self.current + self.replaced + self.log


def disk_use(settings: Settings, dataset: str | None = None) -> list[PartUse]:
    """Return the use of each part of the state folder, or of those of one dataset, ordered by name.

    Raises Terminal (`nothing-stored`) when there is none.
    """
    ended = set(_ended_paths(settings))
    found: dict[StoragePart, PartUse] = {}
    active: dict[StoragePart, dict[str, int]] = {}
    stored = sizes_below(warehouse(settings)) if settings.stores_tables else ()
    for path, size in chain(sizes_below(settings.state), stored):
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


def _ended_paths(settings: Settings) -> Iterator[Path]:
    """Yield the folders and files of ended plans that the owner removes next, or is deleting."""
    for dataset in [path.parent.name for path in local_warehouse(settings).glob("*/publication.json")]:
        yield from (removed_tables_path(settings, dataset), removed_data_path(settings, dataset))
        with suppress(HeadraceError):
            yield from (
                path_below(settings.state, each.path) for each in ended_data(settings, dataset, datetime.now(UTC))
            )


def _names(use: PartUse) -> tuple[str, str]:
    return use.part.release, use.part.name


def _part_of(settings: Settings, path: Path) -> StoragePart:
    root = warehouse(settings) if isinstance(path, StoredPath) else local_warehouse(settings)
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
            return StoragePart(dataset, release, full_name(name), folder / release / "gold" / name)
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
