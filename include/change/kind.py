"""What every kind of plan implements, what every planner checks before it writes a plan, and the predicted cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from include.change.compare import Side
from include.change.plan_parameters import PlanParameters
from include.declare.dataset import DatasetUnknown, IsDerived, dataset_names
from include.declare.derived_dataset import derived_names, origin_datasets
from include.declare.history_slice import Slice
from include.ground.errors import Terminal, Transient
from include.ground.settings import Settings
from include.plans.comparison import Comparison
from include.plans.journal import save_plan
from include.plans.lookup import next_plan_id, open_plans, refuse_ended_run
from include.plans.plan import Plan, PlanRecord, Prediction
from include.plans.stage_results import Applied, Built, RolledBack
from include.read.publication import Publication, stream_publications, tables_of
from include.read.published_tables import PinnedTables
from include.state.streams import stream_status


@dataclass(frozen=True)
class Confirmation:
    """What the tables have of an applied or rolled back plan, at the published release and batch."""

    plan: str
    stage: str
    release: str
    batch: int
    result: str
    silver_version: int | None = None


@dataclass(frozen=True)
class PlanKind:
    """One kind of plan. The functions are called by `plan_stages`, in the order of the fields."""

    name: str
    parameters: type[PlanParameters]
    describe_build: Callable[[Plan], str]
    describe_apply: Callable[[Plan], str]
    refuse_applied: Callable[[Settings, Plan], None]
    """Raises AlreadyPublished when the tables have the plan's outcome although its events do not record it."""
    build_job: Callable[[Plan], tuple[str, ...]]
    """The job's module and arguments."""
    read_build: Callable[[Mapping[str, Any], float], Built]
    """Turns the job's last output and its seconds into a result."""
    sides: Callable[[Settings, PlanRecord], tuple[Side, Side]]
    builds_whole_tables: bool
    """Whether the build is whole tables: then the contract's rules are evaluated on them even if they are equal."""
    record_comparison: Callable[[Settings, PlanRecord, Comparison], None]
    apply: Callable[[Settings, PlanRecord], Applied]
    confirm: Callable[[Settings, PlanRecord, Publication], Confirmation]
    refuse_apply: Callable[[Settings, PlanRecord], None]
    """Raises why the outcome must not be published now, before it is approved and before it is applied."""
    refuse_revert: Callable[[Settings, PlanRecord], None]
    revert: Callable[[Settings, PlanRecord], RolledBack]
    drop_build: Callable[[Settings, Plan], None]
    undo_decisions: Callable[[Settings, Plan, str], None]
    """Called with the author when the plan is cancelled, rejected or rolled back."""


def nothing(*_: object) -> None:
    """Do nothing: for kinds that have no such step."""


# Rows per second on 2 slow cores; used until a stream has reported its own rate.
ASSUMED_RATE = 20_000.0
# Free disk that is required per byte of bronze that is recomputed.
BYTES_PER_BYTE = 2


class PlanConflict(Terminal):
    """Another plan of the dataset is open: one of them would undo the other."""

    def __init__(self, dataset: str, plan: str, stage: str) -> None:
        super().__init__(
            f"{dataset}: plan {plan} is {stage}; a second plan of the same history was refused",
            f"headrace plan apply {plan}, or headrace plan cancel {plan}",
        )
        self.dataset, self.plan = dataset, plan


class AlreadyPublished(Terminal):
    """The plan's outcome is published: the command that applied it was killed before it could record that."""

    def __init__(self, plan: str) -> None:
        super().__init__(
            f"plan {plan} cannot be rebuilt or cancelled: its outcome is published already",
            f"headrace plan apply {plan} records that, then headrace plan rollback {plan}",
        )
        self.plan = plan


class DiskTooSmall(Transient):
    """The build may not fit on the disk; `needed` and `free` in bytes."""

    def __init__(self, dataset: str, path: Path, needed: int, free: int) -> None:
        super().__init__(
            f"{dataset}: {needed / 1e9:.1f} GB may be needed in {path}, {free / 1e9:.1f} GB are free; "
            "nothing was planned",
            "make room, or plan a smaller range",
        )
        self.dataset, self.needed, self.free = dataset, needed, free


def refuse_unknown_dataset(settings: Settings, dataset: str) -> None:
    """Raise DatasetUnknown for a name that is neither declared nor published, IsDerived for a derived one."""
    if dataset in derived_names(settings):
        raise IsDerived(dataset, origin_datasets(settings, dataset))
    known = sorted({*dataset_names(settings), *stream_publications(settings)})
    if dataset not in known:
        raise DatasetUnknown(dataset, known)


def refuse_conflict(settings: Settings, dataset: str, mine: Slice | None = None) -> None:
    """Raise PlanConflict when an open plan of the dataset may change the same records; None means all records."""
    for record in open_plans(settings):
        theirs = record.plan.slice
        disjoint = mine is not None and theirs is not None and not mine.overlaps(theirs)
        if dataset in record.plan.datasets and not disjoint:
            raise PlanConflict(dataset, record.plan.id, record.stage)


def predict(settings: Settings, publication: Publication) -> Prediction:
    """Return the predicted cost of a rebuild, from the published tables' logs and the stream's last reported rate."""
    reading = PinnedTables(tables_of(settings, publication))
    bronze = reading.facts(f"bronze.{publication.dataset}")
    gold = sum(reading.facts(name).rows or 0 for name in reading.tables if name.startswith("gold."))
    rate, records = reported_rate(settings, publication.dataset), bronze.rows or 0
    return Prediction(records, bronze.size, bronze.files, gold, round(records / rate, 1), rate)


def refuse_small_disk(settings: Settings, dataset: str, predicted: Prediction) -> None:
    """Raise DiskTooSmall unless BYTES_PER_BYTE times the bytes that the plan reads are free."""
    free, needed = shutil.disk_usage(settings.state).free, BYTES_PER_BYTE * predicted.bytes
    if free < needed:
        raise DiskTooSmall(dataset, settings.state, needed, free)


def reported_rate(settings: Settings, dataset: str) -> float:
    """Return the rows per second of the stream's last full run, else ASSUMED_RATE."""
    status = stream_status(settings, dataset)
    full = status.last_batch is not None and status.last_batch.rows >= ASSUMED_RATE
    return status.rates.get("refine", ASSUMED_RATE) if full else ASSUMED_RATE


def write_new_plan(settings: Settings, draft: Plan, *, dry_run: bool) -> PlanRecord:
    """Write a plan under the next free id of its kind and dataset; return that of a dry run as it is.

    Raises RunEnded when its run of Airflow has ended since it requested the plan.
    """
    if dry_run:
        return PlanRecord(draft, ())
    refuse_ended_run(settings, draft)
    return save_plan(settings, replace(draft, id=next_plan_id(settings, draft.kind, draft.dataset)))
