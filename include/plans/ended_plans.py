"""Removes the tables of ended releases and the rows of ended slices, as `retention` of the pipeline declares.

Reads: plans, publication, active releases. Writes: folders of the warehouse, and rows of the ledger.
Guarantee: a release stays that is published or active, or that a plan names which is open, applied or rolled back; so
do the rows that reverting an applied slice needs.
After a crash: the next call finishes the removal.
Does not: remove plans, comparisons, or snapshots of releases.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from include.catalog.dataset import released_dataset
from include.ledger.ledger_rows import delete_release
from include.ledger.ledger_writer import open_writer
from include.paths import patch_path, release_lease_path, release_path, removed_tables_path, warehouse
from include.plans.plan import ENDED, RELEASE, PlanRecord
from include.plans.plan_journal import PLAN_ID, PlanUnreadable, all_plans, planning_lock, unreadable_plans
from include.plans.stage_results import Retired, Stage
from include.reading.publication import read_publication
from include.settings import Settings
from include.state.file_locks import is_free
from include.state.release_files import active_releases_file


@dataclass(frozen=True)
class EndedData:
    """A folder that the policy `releases` or `plans` removes: its path in the warehouse, since when it is not needed,
    and its size. `release` is empty for the rows of a plan."""

    policy: str
    path: str
    ended: datetime
    bytes: int
    release: str = ""


def remove_ended(settings: Settings, dataset: str, now: datetime) -> list[EndedData]:
    """Remove what `ended_data` returns, and return it.

    Raises NothingPublished, PlanUnreadable, PlanBusy, and the errors of the ledger's writer.
    """
    # No plan may begin to use a release meanwhile. Folders are moved now and deleted without the lock.
    with planning_lock(settings):
        found = ended_data(settings, dataset, now)
        for each in found:
            if each.release:
                _move_away(settings, dataset, each.release)
    for each in found:
        shutil.rmtree(warehouse(settings) / each.path, ignore_errors=True)
    _delete_moved(settings, dataset)
    return found


def ended_data(settings: Settings, dataset: str, now: datetime) -> list[EndedData]:
    """Return the folders that ended longer ago than the published release's `retention` says, releases first.

    Raises NothingPublished; PlanUnreadable, since any release may be one that such a plan needs.
    """
    if damaged := [found for found in unreadable_plans(settings) if PLAN_ID.fullmatch(found.path.name)]:
        raise PlanUnreadable(damaged[0])
    published = read_publication(settings, dataset).release
    retention = released_dataset(settings, dataset, published).pipeline.retention
    records = [record for record in all_plans(settings) if record.plan.dataset == dataset]
    kept = {published, *(active_releases_file(settings, dataset).read() or ()), *_needed(records)}
    found = []
    for name, ended in sorted(_ended_releases(records).items()):
        path = release_path(settings, dataset, name)
        unused = name not in kept and is_free(release_lease_path(settings, dataset, name))
        if unused and now - ended > retention.releases and path.is_dir():
            found.append(_ended(settings, "releases", path, ended, name))
    for record in records:
        path, ended = patch_path(settings, dataset, record.plan.release, record.plan.id), _ended_at(record)
        inside = any(release_path(settings, dataset, each.release) in path.parents for each in found if each.release)
        if _is_ended_slice(record) and now - ended > retention.plans and path.is_dir() and not inside:
            found.append(_ended(settings, "plans", path, ended))
    return found


def _needed(records: Iterable[PlanRecord]) -> Iterator[str]:
    """Yield the releases of plans that may still be applied or rolled back."""
    for record in records:
        if record.is_open or (record.plan.kind == RELEASE and record.stage not in ENDED):
            yield from (record.plan.base, record.plan.release)


def _ended_releases(records: Iterable[PlanRecord]) -> dict[str, datetime]:
    """Return the releases that were retired, cancelled or rejected, and when last."""
    found: dict[str, datetime] = {}
    for record in records:
        if record.plan.kind == RELEASE and record.stage in ENDED:
            retired = record.find(Retired)
            for name in [record.plan.release] if retired is None else retired.releases:
                found[name] = max(_ended_at(record), found.get(name, _ended_at(record)))
    return found


def _is_ended_slice(record: PlanRecord) -> bool:
    return record.plan.kind != RELEASE and record.stage in (*ENDED, Stage.ROLLED_BACK)


def _ended_at(record: PlanRecord) -> datetime:
    return record.events[-1].at if record.events else record.plan.planned_at


def _ended(settings: Settings, policy: str, path: Path, ended: datetime, release: str = "") -> EndedData:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return EndedData(policy, path.relative_to(warehouse(settings)).as_posix(), ended, size, release)


def _move_away(settings: Settings, dataset: str, release: str) -> None:
    """Move a release's tables out of the warehouse, where no projection is reading them, and delete their rows."""
    moved = removed_tables_path(settings, dataset) / release
    shutil.rmtree(moved, ignore_errors=True)
    moved.parent.mkdir(parents=True, exist_ok=True)
    writer = open_writer(settings)
    try:
        with writer.transaction(alone=True) as connection:
            delete_release(connection, dataset, release)
            release_path(settings, dataset, release).rename(moved)
    finally:
        writer.close()


def _delete_moved(settings: Settings, dataset: str) -> None:
    """Delete moved tables. After a crash before the ledger's commit, a release has rows there and no tables."""
    writer = open_writer(settings)
    try:
        for moved in sorted(removed_tables_path(settings, dataset).glob("*")):
            if not release_path(settings, dataset, moved.name).exists():
                with writer.transaction(alone=True) as connection:
                    delete_release(connection, dataset, moved.name)
            shutil.rmtree(moved)
    finally:
        writer.close()
