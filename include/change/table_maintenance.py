"""Requests compaction of a dataset's tables from their owner, while no plan is open.

Reads: the plans.  Writes: what the owner does (`spark_jobs/stream/compaction.py`).
Guarantee: the rows are the same, and published versions stay readable.
After a crash: the next run does the rest.
Does not: choose files, or run while a plan is open, whose table versions might be removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from include.change.owner_client import request_owner
from include.ground.errors import Transient
from include.ground.settings import Settings
from include.plans.plan_lookup import open_plans
from include.read.publication import read_publication
from include.state.owner_requests import OwnerRequest, RequestKind


class PlanOpen(Transient):
    """A plan of the dataset is open and reads versions of its tables."""

    def __init__(self, dataset: str, plan: str, stage: str) -> None:
        super().__init__(
            f"{dataset}: plan {plan} is {stage}; its tables were not compacted",
            f"headrace plan apply {plan} or headrace plan cancel {plan}, then headrace maintain",
        )
        self.dataset, self.plan = dataset, plan


@dataclass(frozen=True)
class TableMaintenance:
    """One table: its path in the warehouse, files before and now, old files removed, groups left for the next run."""

    table: str
    files: int
    now: int
    removed: int
    left: int


def maintain_tables(settings: Settings, dataset: str) -> list[TableMaintenance]:
    """Compact small files and remove old ones in the tables of active releases. Raises NothingPublished.

    Raises PlanOpen; RequestPending, RequestRefused, NoResponse, JobFailed, JobDied as for any request.
    """
    publication = read_publication(settings, dataset)
    for record in open_plans(settings):
        if dataset in record.plan.datasets:
            raise PlanOpen(dataset, record.plan.id, record.stage)
    response = request_owner(settings, dataset, OwnerRequest("", RequestKind.COMPACT, publication.release))
    return [_maintained(table, facts) for table, facts in response.done.items()]


def _maintained(table: str, facts: Mapping[str, Any]) -> TableMaintenance:
    return TableMaintenance(table, **{name: int(facts[name]) for name in ("files", "now", "removed", "left")})
