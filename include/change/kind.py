"""What every kind of plan implements, what every planner checks before it writes a plan, and the predicted cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from include.change.compare import Side
from include.change.plan_parameters import PlanParameters
from include.declare.dataset import DatasetUnknown, IsDerived, dataset_names
from include.declare.derived_dataset import derived_names, origin_datasets
from include.declare.history_slice import Slice
from include.declare.release_diff import TableChange
from include.ground.errors import Terminal, Transient
from include.ground.settings import Settings
from include.ground.stored_path import free_bytes
from include.plans.comparison import Comparison
from include.plans.journal import find_plan, next_plan_id, open_plans, planning_lock, refuse_ended_run, save_plan
from include.plans.plan import DRY_RUN, Applied, Built, Member, Plan, PlanRecord, Prediction, RolledBack, Stage
from include.read.publication import Publication, stream_publications, tables_of
from include.read.published_tables import PinnedTables
from include.state.streams import stream_status

Given = TypeVar("Given", bound=PlanParameters)


@dataclass(frozen=True)
class Request(Generic[Given]):
    """What is to be planned: for which dataset, with which parameters, by whom, when, for which run of Airflow."""

    settings: Settings
    dataset: str
    parameters: Given
    by: str
    now: datetime
    origin: str = ""

    def refuse_conflict(self, mine: Slice | None = None) -> None:
        """Raise PlanConflict when an open plan may change the same records; a dry run changes none."""
        if not self.parameters.dry_run:
            refuse_conflict(self.settings, self.dataset, mine)

    def refuse_small_disk(self, predicted: Prediction, folder: Path) -> None:
        """Raise Transient unless BYTES_PER_BYTE times the bytes that the plan reads are free where it writes."""
        free, needed = free_bytes(folder), BYTES_PER_BYTE * predicted.bytes
        if free < needed:
            raise Transient(
                f"{self.dataset}: {needed / 1e9:.1f} GB may be needed in {folder}, {free / 1e9:.1f} GB are free; "
                "nothing was planned",
                "make room, or plan a smaller range",
                code="disk-too-small",
                needed=needed,
                free=free,
            )

    def plan(
        self,
        kind: str,
        base: str,
        release: str,
        predicted: Prediction,
        changes: Sequence[TableChange] = (),
        slice: Slice | None = None,
        requested: str = "",
        members: Sequence[Member] = (),
    ) -> Plan:
        """Return the plan; a written one gets an id."""
        return Plan(
            DRY_RUN,
            kind,
            self.dataset,
            base,
            release,
            planned_at=self.now,
            planned_by=self.by,
            threshold=self.parameters.threshold,
            changes=changes,
            predicted=predicted,
            slice=slice,
            requested=requested,
            origin=self.origin,
            members=members,
        )


@dataclass(frozen=True)
class Confirmation:
    """What the tables have of an applied or rolled back plan, at the published release and batch."""

    plan: str
    stage: str
    release: str
    batch: int
    result: str
    silver_version: int | None = None

    @classmethod
    def of(cls, record: PlanRecord, publication: Publication, result: str, version: int | None = None) -> Confirmation:
        return cls(record.plan.id, str(record.stage), publication.release, publication.batch, result, version)

    @staticmethod
    def missing(record: PlanRecord, why: str) -> Terminal:
        """Return that a plan's events record an outcome that the tables do not have; `why` names what is missing."""
        what = f"plan {record.plan.id} is recorded as {record.stage}, but {why}"
        return Terminal(what, "headrace audit", code="not-confirmed", plan=record.plan.id, stage=record.stage)


# The version of the plan's transaction in each table that it changed.
TRANSACTION = {Stage.APPLIED: 1, Stage.ROLLED_BACK: 2}


class PlanKind(ABC, Generic[Given]):
    """One kind of plan: its own steps, which `stages.py` takes in the order of these methods."""

    name: ClassVar[str]
    parameters: ClassVar[type[PlanParameters]]
    builds_whole_tables: ClassVar[bool] = False
    """Whether the build is whole tables: then the contract's rules are evaluated on them even if they are equal."""

    def plan(
        self, settings: Settings, dataset: str, parameters: Given, by: str, now: datetime, origin: str = ""
    ) -> PlanRecord:
        """Write a plan, unless it is a dry run. A second call with the same `origin` returns the first call's plan.

        Raises PlanBusy, `run-ended`, and what `draft` raises.
        """
        kind = self.over_sources() if dataset in derived_names(settings) else self
        request = Request(settings, dataset, parameters, by, now, origin)
        with planning_lock(settings):
            return find_plan(settings, origin) or kind.write(request, kind.draft(request))

    def over_sources(self) -> PlanKind[Given]:
        """Return the kind that plans the same for a derived dataset."""
        return self

    @abstractmethod
    def draft(self, request: Request[Given]) -> Plan:
        """Return a plan without an id. Raises why it cannot be planned; writes at most a snapshot of a release."""

    def write(self, request: Request[Given], draft: Plan) -> PlanRecord:
        """Write a plan under the next free id of its kind and dataset; return that of a dry run as it is.

        Refuses when its run of Airflow has ended since it requested the plan.
        """
        if request.parameters.dry_run:
            return PlanRecord(draft, ())
        settings = request.settings
        refuse_ended_run(settings, draft)
        return save_plan(settings, replace(draft, id=next_plan_id(settings, draft.kind, draft.dataset)))

    @abstractmethod
    def explain_build(self, plan: Plan) -> str:
        """Return in words what the build does."""

    @abstractmethod
    def explain_apply(self, plan: Plan) -> str:
        """Return in words what applying the plan does."""

    @abstractmethod
    def refuse_applied(self, settings: Settings, plan: Plan) -> None:
        """Raise when the tables have the plan's outcome although its events do not record it."""

    def already_applied(self, plan: Plan) -> Terminal:
        """Return that a plan's outcome is published: the command that applied it was killed before it recorded that."""
        return Terminal(
            f"plan {plan.id} cannot be rebuilt or cancelled: its outcome is published already",
            f"headrace plan apply {plan.id} records that, then headrace plan rollback {plan.id}",
            code="already-published",
            plan=plan.id,
        )

    def prepare(self, settings: Settings, plan: Plan, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Do what the build job needs to have been done."""

    @abstractmethod
    def build_job(self, plan: Plan) -> tuple[str, ...]:
        """Return the build job's module and arguments."""

    @abstractmethod
    def read_build(self, output: Mapping[str, Any], seconds: float) -> Built:
        """Turn the job's last output and its seconds into a result."""

    @abstractmethod
    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        """Return what is compared: what is published and what was built."""

    def record_comparison(self, settings: Settings, record: PlanRecord, found: Comparison) -> None:
        """Note what the comparison proves."""

    def refuse_apply(self, settings: Settings, record: PlanRecord) -> None:
        """Raise why the outcome must not be published now, before it is approved and before it is applied."""

    @abstractmethod
    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Have the owner of the tables publish the outcome."""

    @abstractmethod
    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        """Return what the tables have of the applied or rolled back plan. Raises `not-confirmed`."""

    @abstractmethod
    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        """Raise why the plan cannot be rolled back."""

    @abstractmethod
    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
        """Have the owner of the tables publish the state from before the plan."""

    @abstractmethod
    def drop_build(self, settings: Settings, plan: Plan) -> None:
        """Remove what a cancelled plan has built, where nothing else uses it."""

    def undo_decisions(self, settings: Settings, plan: Plan, by: str) -> None:
        """Take back decisions that the plan has made, when it is cancelled, rejected or rolled back."""


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
        self.plan = plan


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
    bronze = PinnedTables(tables_of(settings, publication)).facts(f"bronze.{publication.dataset}")
    gold = published_gold_rows(settings, publication)
    return cost_of(settings, publication.dataset, bronze.rows or 0, bronze.size, bronze.files, gold)


def cost_of(settings: Settings, dataset: str, records: int, size: int, files: int, gold_rows: int) -> Prediction:
    """Return the predicted cost, by the rate that the dataset's stream reported last."""
    rate = reported_rate(settings, dataset)
    return Prediction(records, size, files, gold_rows, round(records / rate, 1), rate)


def published_gold_rows(settings: Settings, publication: Publication) -> int:
    """Return how many rows the published gold tables have."""
    reading = PinnedTables(tables_of(settings, publication))
    return sum(reading.facts(name).rows or 0 for name in reading.tables if name.startswith("gold."))


def reported_rate(settings: Settings, dataset: str) -> float:
    """Return the rows per second of the stream's last full run, else ASSUMED_RATE."""
    status = stream_status(settings, dataset)
    full = status.last_batch is not None and status.last_batch.rows >= ASSUMED_RATE
    return status.rates.get("refine", ASSUMED_RATE) if full else ASSUMED_RATE
