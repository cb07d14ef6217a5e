"""Planning a release: what changed in a dataset's folder, what that means for each table, what it will take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from include.catalog.dataset import CODE, Dataset, declared_dataset, released_dataset, snapshot_dataset
from include.catalog.pipeline import AdditiveGold, Gold, LatestGold, QueryGold
from include.errors import Terminal
from include.places import status_path
from include.planning.journal import all_plans, keep_plan, new_id
from include.planning.plan import Change, Plan, PlanRecord, Prediction
from include.reading.publication import Publication, read_publication, tables_of
from include.reading.tables import Reading
from include.settings import Settings
from include.supervision.states import stream_name

KIND = "release"
# Rows a second on 2 slow cores; used until a stream has told its own rate.
ASSUMED_RATE = 20_000.0


class NothingToRelease(Terminal):
    """The folder is what readers see already."""

    def __init__(self, dataset: str, release: str) -> None:
        super().__init__(
            f"{dataset}: the folder is release {release}, which readers see already; nothing was planned",
            f"change something in include/datasets/{dataset}/ first",
        )
        self.dataset, self.release = dataset, release


class PlanInTheWay(Terminal):
    """Another plan of the dataset is open: one of them would undo the other."""

    def __init__(self, dataset: str, plan: str, stage: str) -> None:
        super().__init__(
            f"{dataset}: plan {plan} is {stage}; a second plan of the same history was refused",
            f"headrace plan apply {plan}, or headrace plan cancel {plan}",
        )
        self.dataset, self.plan = dataset, plan


class ReleaseIncompatible(Terminal):
    """The changed folder reads something else than bronze holds."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was planned", "make it a dataset of its own")
        self.dataset = dataset


def plan_release(settings: Settings, dataset: str, by: str, now: datetime, threshold: float = 0.0) -> PlanRecord:
    """Plan to let readers see the dataset as its folder says now. No table is touched, no data file read.

    Errors: DatasetUnknown, DeclarationRefused, NothingPublished, NothingToRelease, ReleaseIncompatible, PlanInTheWay.
    """
    declared, seen = declared_dataset(settings, dataset), read_publication(settings, dataset)
    base = released_dataset(settings, dataset, seen.release)
    if declared.release == seen.release:
        raise NothingToRelease(dataset, seen.release)
    if declared.pipeline.topic != base.pipeline.topic:
        raise ReleaseIncompatible(dataset, f"topic {declared.pipeline.topic!r} is not {base.pipeline.topic!r}")
    for record in all_plans(settings):
        if record.plan.dataset == dataset and record.is_open:
            raise PlanInTheWay(dataset, record.plan.id, record.stage)
    snapshot_dataset(settings, dataset)
    plan = Plan(
        id=new_id(settings, KIND, dataset),
        kind=KIND,
        dataset=dataset,
        base=base.release,
        release=declared.release,
        planned_at=now,
        planned_by=by,
        threshold=threshold,
        changes=changes(base, declared),
        predicted=predicted(settings, seen),
    )
    return keep_plan(settings, plan)


def changes(base: Dataset, fresh: Dataset) -> list[Change]:
    """Return what differs between two releases, table by table; all tables when what they come from differs."""
    found: list[Change] = []
    if _differs(base, fresh, ["contract.yaml"]):
        found.append(Change("silver and rejected", "changed", "contract.yaml differs: other records may be accepted"))
    if _differs(base, fresh, _modules(base, fresh)):
        found.append(Change("silver", "changed", "silver.py differs: rows or columns may"))
    if (base.pipeline.identity, base.pipeline.horizon) != (fresh.pipeline.identity, fresh.pipeline.horizon):
        found.append(Change("silver and rejected", "changed", "other records may be duplicates"))
    return found + _gold_changes(base.pipeline.gold, fresh.pipeline.gold)


def _gold_changes(base: Sequence[Gold], fresh: Sequence[Gold]) -> list[Change]:
    before, after = {gold.name: gold for gold in base}, {gold.name: gold for gold in fresh}
    found = [Change(f"gold.{name}", "removed", "declared no longer") for name in before if name not in after]
    found += [Change(f"gold.{name}", "additive", "declared anew") for name in after if name not in before]
    for name in [name for name in after if name in before and before[name] != after[name]]:
        found.append(Change(f"gold.{name}", *_how(before[name], after[name])))
    return found


def _how(before: Gold, after: Gold) -> tuple[str, str]:
    """Whether readers of the old columns can go on, and what changed."""
    if type(before) is not type(after):
        return "incompatible", "another kind of table"
    if not set(_columns(before)) <= set(_columns(after)):
        gone = ", ".join(sorted(set(_columns(before)) - set(_columns(after))))
        return "incompatible", f"without {gone}"
    added = sorted(set(_columns(after)) - set(_columns(before)))
    return "changed", f"{'with ' + ', '.join(added) if added else 'computed otherwise'}"


def _columns(gold: Gold) -> Iterable[str]:
    if isinstance(gold, AdditiveGold):
        return (gold.window.name, *gold.keys, *(measure.name for measure in gold.measures))
    if isinstance(gold, LatestGold):
        return (*gold.keys, *(name for name, _ in gold.columns))
    assert isinstance(gold, QueryGold)
    return (gold.window.name, *gold.keys)


def _modules(base: Dataset, fresh: Dataset) -> list[str]:
    found = {p.relative_to(d.folder).as_posix() for d in (base, fresh) for p in d.folder.rglob("*.py")}
    return sorted(name for name in found if "__pycache__" not in name)


def _differs(base: Dataset, fresh: Dataset, names: Sequence[str]) -> bool:
    return any(_hash(base.folder / name) != _hash(fresh.folder / name) for name in names)


def _hash(path: Path) -> str:
    assert path.suffix in CODE
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def predicted(settings: Settings, seen: Publication) -> Prediction:
    """Predict from the logs of the published tables, and the rate that the stream told last."""
    reading = Reading(tables_of(settings, seen))
    bronze = reading.facts(f"bronze.{seen.dataset}")
    gold = sum(reading.facts(name).rows or 0 for name in reading.tables if name.startswith("gold."))
    rate, records = told_rate(settings, seen.dataset), bronze.rows or 0
    return Prediction(records, bronze.size, gold, round(records / rate, 1), rate)


def told_rate(settings: Settings, dataset: str) -> float:
    """Return the rows per second of the stream's last full run, else what a small machine does."""
    try:
        said = json.loads(status_path(settings, stream_name(dataset)).read_text("utf-8"))
        if said["last_batch"]["rows"] >= ASSUMED_RATE:
            return float(said["rates"]["refine"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ASSUMED_RATE
