"""Planning a release: refused where it cannot work, and what it will take."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from include.catalog.dataset import (
    Dataset,
    DatasetUnknown,
    ReleaseStart,
    dataset_names,
    released_dataset,
    snapshot_dataset,
)
from include.catalog.dataset_checks import checked_dataset
from include.catalog.history_slice import Slice
from include.catalog.pipeline import time_columns
from include.catalog.release_diff import release_changes
from include.errors import Terminal, Transient
from include.paths import active_releases_path, bronze_path, status_path
from include.planning.plan import RELEASE, Plan, PlanRecord, Prediction
from include.planning.plan_journal import all_plans, find_plan, next_plan_id, planning_lock, save_plan
from include.reading.bronze_ranges import first_batch_since
from include.reading.publication import Publication, publications, read_publication, tables_of
from include.reading.published_tables import PinnedTables
from include.reference.reference_tables import validate_reference_tables
from include.settings import Settings
from include.state.process_states import stream_name

# Rows a second on 2 slow cores; used until a stream has told its own rate.
ASSUMED_RATE = 20_000.0
# Free disk that is wanted for each byte of bronze that is done again.
BYTES_PER_BYTE = 2


class NothingToRelease(Terminal):
    """The folder is what readers see already."""

    def __init__(self, dataset: str, release: str) -> None:
        super().__init__(
            f"{dataset}: the folder is release {release}, which readers see already; nothing was planned",
            f"change something in include/datasets/{dataset}/ first",
        )
        self.dataset, self.release = dataset, release


class PlanConflict(Terminal):
    """Another plan of the dataset is open: one of them would undo the other."""

    def __init__(self, dataset: str, plan: str, stage: str) -> None:
        super().__init__(
            f"{dataset}: plan {plan} is {stage}; a second plan of the same history was refused",
            f"headrace plan apply {plan}, or headrace plan cancel {plan}",
        )
        self.dataset, self.plan = dataset, plan


class ReleaseAlreadyActive(Terminal):
    """The folder is a release that the stream keeps fresh: there is nothing to build."""

    def __init__(self, dataset: str, release: str) -> None:
        super().__init__(
            f"{dataset}: the folder is release {release}, which is kept fresh beside the published one; nothing was "
            "planned",
            "headrace plan list, then headrace plan rollback ID (readers see it again) or retire ID (it is let go)",
        )
        self.dataset, self.release = dataset, release


class StartPointRefused(Terminal):
    """A release cannot begin there."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was planned", "headrace ledger show --dataset " + dataset)
        self.dataset = dataset


class DiskTooSmall(Transient):
    """What is to be built beside production may not fit; `needed` and `free` in bytes."""

    def __init__(self, dataset: str, place: Path, needed: int, free: int) -> None:
        super().__init__(
            f"{dataset}: {needed / 1e9:.1f} GB may be needed in {place}, {free / 1e9:.1f} GB are free; "
            "nothing was planned",
            "make room, or plan a smaller range",
        )
        self.dataset, self.needed, self.free = dataset, needed, free


class ReleaseIncompatible(Terminal):
    """The changed folder reads something else than bronze holds."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was planned", "make it a dataset of its own")
        self.dataset = dataset


@dataclass(frozen=True)
class ReleaseStartPoint:
    """From where on a release is to be built: a bronze batch, or the first one of a Kafka time. Neither: the start."""

    batch: int | None = None
    since: datetime | None = None


FROM_THE_START = ReleaseStartPoint()


def plan_release(
    settings: Settings,
    dataset: str,
    by: str,
    now: datetime,
    threshold: float = 0.0,
    point: ReleaseStartPoint = FROM_THE_START,
    origin: str = "",
) -> PlanRecord:
    """Plan to let readers see the dataset as its folder says now. No table is touched, no data file read.

    From a later `point`, what silver and rejected hold of the batches before it is taken over as it is. Asked again
    with the same `origin` it returns the plan that was made before.
    Errors: DatasetUnknown, DeclarationRefused, NothingPublished, NothingToRelease, PointRefused, ReleaseIncompatible,
    ReleaseKept, PlanInTheWay, PlanBusy, DiskTooSmall, and what `refuse_unusable` says of reference tables.
    """
    with planning_lock(settings):
        if known := find_plan(settings, origin):
            return known
        declared, seen = checked_dataset(settings, dataset), read_publication(settings, dataset)
        base = released_dataset(settings, dataset, seen.release)
        beginning = _beginning(settings, seen, point)
        if declared.code == base.code and beginning is None and base.release_start is None:
            raise NothingToRelease(dataset, seen.release)
        if declared.pipeline.topic != base.pipeline.topic:
            raise ReleaseIncompatible(dataset, f"topic {declared.pipeline.topic!r} is not {base.pipeline.topic!r}")
        refuse_conflict(settings, dataset)
        validate_reference_tables(settings, declared)
        if beginning is not None:
            _refuse_other_shape(base, declared)
        _refuse_kept(settings, declared, beginning)
        wanted = predict(settings, seen)
        refuse_small_disk(settings, dataset, wanted)
        fresh = snapshot_dataset(settings, dataset, beginning)
        plan = _plan(settings, base, fresh, wanted, by, now, threshold)
        return save_plan(settings, replace(plan, origin=origin))


def _beginning(settings: Settings, seen: Publication, point: ReleaseStartPoint) -> ReleaseStart | None:
    batch = point.batch
    if point.since is not None:
        batch = first_batch_since(bronze_path(settings, seen.dataset), point.since)
        if batch is None:
            raise StartPointRefused(seen.dataset, f"no record has come since {point.since:%Y-%m-%d %H:%M} UTC")
    if batch is None or batch == 0:
        return None
    if not 0 < batch <= seen.batch + 1:
        raise StartPointRefused(seen.dataset, f"batch {batch} is not published, the last one is {seen.batch}")
    versions = (seen.tables[f"{layer}.{seen.dataset}"].version for layer in ("silver", "rejected"))
    return ReleaseStart(seen.release, batch, *versions)


def _refuse_other_shape(base: Dataset, fresh: Dataset) -> None:
    """Rows that are taken over were told apart by the old identity, and have no time that is new."""
    if base.pipeline.identity != fresh.pipeline.identity:
        raise StartPointRefused(fresh.name, "another identity finds other duplicates, also among the rows from before")
    strange = set(time_columns(fresh.pipeline)) - set(time_columns(base.pipeline))
    if strange:
        raise StartPointRefused(
            fresh.name, f"rows from before may lack {', '.join(sorted(strange))}, which has windows now"
        )


def _refuse_kept(settings: Settings, declared: Dataset, beginning: ReleaseStart | None) -> None:
    """Raise when the stream keeps a release of this code fresh that begins at the same place."""
    path = active_releases_path(settings, declared.name)
    for release in json.loads(path.read_text("utf-8")) if path.exists() else ():
        kept = released_dataset(settings, declared.name, release)
        if (kept.code, _start(kept.release_start)) == (declared.code, _start(beginning)):
            raise ReleaseAlreadyActive(declared.name, release)


def _start(beginning: ReleaseStart | None) -> tuple[str, int] | None:
    return (beginning.base, beginning.batch) if beginning else None


def _plan(
    settings: Settings, base: Dataset, fresh: Dataset, wanted: Prediction, by: str, now: datetime, threshold: float
) -> Plan:
    begins = "" if fresh.release_start is None else f"from batch {fresh.release_start.batch} on"
    return Plan(
        id=next_plan_id(settings, RELEASE, fresh.name),
        kind=RELEASE,
        dataset=fresh.name,
        base=base.release,
        release=fresh.release,
        planned_at=now,
        planned_by=by,
        threshold=threshold,
        changes=release_changes(base, fresh),
        predicted=wanted,
        asked=begins,
    )


def refuse_unknown_dataset(settings: Settings, dataset: str) -> None:
    """Raise DatasetUnknown for a name that is neither declared nor published."""
    known = sorted({*dataset_names(settings), *publications(settings)})
    if dataset not in known:
        raise DatasetUnknown(dataset, known)


def refuse_conflict(settings: Settings, dataset: str, mine: Slice | None = None) -> None:
    """Raise PlanInTheWay when an open plan of the dataset may change what this one would; slices apart do not."""
    for record in all_plans(settings):
        its = record.plan.slice
        apart = mine is not None and its is not None and not mine.overlaps(its)
        if record.plan.dataset == dataset and record.is_open and not apart:
            raise PlanConflict(dataset, record.plan.id, record.stage)


def predict(settings: Settings, seen: Publication) -> Prediction:
    """Predict from the logs of the published tables, and the rate that the stream told last."""
    reading = PinnedTables(tables_of(settings, seen))
    bronze = reading.facts(f"bronze.{seen.dataset}")
    gold = sum(reading.facts(name).rows or 0 for name in reading.tables if name.startswith("gold."))
    rate, records = reported_rate(settings, seen.dataset), bronze.rows or 0
    return Prediction(records, bronze.size, bronze.files, gold, round(records / rate, 1), rate)


def refuse_small_disk(settings: Settings, dataset: str, wanted: Prediction) -> None:
    """Raise DiskTooSmall unless twice the bytes that the plan reads are free: rows before and after, or a release."""
    free, needed = shutil.disk_usage(settings.state).free, BYTES_PER_BYTE * wanted.bytes
    if free < needed:
        raise DiskTooSmall(dataset, settings.state, needed, free)


def reported_rate(settings: Settings, dataset: str) -> float:
    """Return the rows per second of the stream's last full run, else what a small machine does."""
    try:
        said = json.loads(status_path(settings, stream_name(dataset)).read_text("utf-8"))
        if said["last_batch"]["rows"] >= ASSUMED_RATE:
            return float(said["rates"]["refine"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ASSUMED_RATE
