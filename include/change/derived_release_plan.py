"""Release plans of derived datasets: a changed folder, built over the sources that the published release has used."""

from __future__ import annotations

import json
from datetime import datetime

from include.change.compare import Side
from include.change.kind import refuse_conflict, refuse_small_disk, reported_rate, write_new_plan
from include.change.moves import release_kind
from include.change.plan_parameters import PlanParameters
from include.change.readers import derived_changes, derived_tables, lost_columns, plan_members
from include.change.release import NothingToRelease, ReleaseParameters, StartPointRefused, plan_release
from include.declare.dataset_checks import validate_datasets
from include.declare.derived_dataset import (
    DerivedDataset,
    as_dataset,
    declared_derived,
    derived_names,
    released_derived,
    snapshot_derived,
)
from include.ground.settings import Settings
from include.plans.journal import planning_lock
from include.plans.lookup import find_plan
from include.plans.plan import DERIVED_RELEASE, DRY_RUN, Plan, PlanRecord, Prediction
from include.plans.sources import published_versions, readable_versions
from include.plans.stage_results import ReleaseBuilt
from include.read.publication import Publication, read_publication, tables_of
from include.read.published_tables import open_dataset, pinned


def plan_any_release(
    settings: Settings, dataset: str, parameters: ReleaseParameters, by: str, now: datetime, origin: str = ""
) -> PlanRecord:
    """Plan to publish a dataset as its folder declares it now, derived or not.

    Raises StartPointRefused for a derived one with a first batch, and what the planner of its kind raises.
    """
    if dataset not in derived_names(settings):
        return plan_release(settings, dataset, parameters, by, now, origin)
    if parameters.from_batch is not None or parameters.from_timestamp is not None:
        why = "it is derived and has no batches; its release computes everything"
        raise StartPointRefused(dataset, why, f"headrace release plan --dataset {dataset}")
    return plan_derived_release(settings, dataset, parameters, by, now, origin)


def plan_derived_release(
    settings: Settings, dataset: str, parameters: ReleaseParameters, by: str, now: datetime, origin: str = ""
) -> PlanRecord:
    """Plan to publish the derived dataset as its folder declares it now. Touches no table, reads no data file.

    Raises DerivedUnknown, DeclarationRefused, NothingPublished, NothingToRelease, PlanConflict, PlanBusy, DiskTooSmall.
    """
    with planning_lock(settings):
        if known := find_plan(settings, origin):
            return known
        validate_datasets(settings, [dataset])
        declared, publication = declared_derived(settings, dataset), read_publication(settings, dataset)
        base = released_derived(settings, dataset, publication.release)
        if declared.release == base.release:
            raise NothingToRelease(dataset, base.release)
        if not parameters.dry_run:
            refuse_conflict(settings, dataset)
        members = plan_members(settings, dataset, derived_tables(declared), parameters.members, parameters.dry_run)
        over = _chosen_sources(settings, declared, publication)
        predicted = predicted_of_sources(settings, declared, _gold_rows(settings, publication))
        refuse_small_disk(settings, dataset, predicted)
        fresh = declared if parameters.dry_run else snapshot_derived(settings, dataset)
        draft = Plan(
            id=DRY_RUN,
            kind=DERIVED_RELEASE,
            dataset=dataset,
            base=base.release,
            release=fresh.release,
            planned_at=now,
            planned_by=by,
            threshold=parameters.threshold,
            changes=[*derived_changes(base, fresh), *members.changes, *lost_columns(settings, base, fresh, members)],
            predicted=predicted,
            requested=over,
            origin=origin,
            members=members.plans,
        )
        return write_new_plan(settings, draft, dry_run=parameters.dry_run)


def _chosen_sources(settings: Settings, declared: DerivedDataset, publication: Publication) -> str:
    """Return over which versions the release is built, in words: "" for those of the published release.

    Raises SourcesLackColumns.
    """
    current = published_versions(settings, declared.pipeline.sources.values())
    used = {name: publication.sources.get(name, each) for name, each in current.items()}
    if readable_versions(settings, declared, used, current) is used:
        return ""
    return "over the published versions of its sources, which have the columns that it reads"


def _gold_rows(settings: Settings, publication: Publication) -> int:
    tables = pinned(settings)
    return sum(tables.facts(name).rows or 0 for name in publication.tables)


def predicted_of_sources(settings: Settings, derived: DerivedDataset, gold_rows: int, share: float = 1.0) -> Prediction:
    """Return the cost of computing gold rows of a derived dataset from a share of its sources."""
    tables = pinned(settings)
    sources = [tables.facts(name) for name in set(derived.pipeline.sources.values()) if name in tables.tables]
    rows, rate = round(share * sum(each.rows or 0 for each in sources)), reported_rate(settings, derived.name)
    size, files = round(share * sum(each.size for each in sources)), sum(each.files for each in sources)
    return Prediction(rows, size, files, gold_rows, round(rows / rate, 1), rate)


def _sides(settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
    found = record.last(ReleaseBuilt).of(record.plan.dataset)

    def side(publication: Publication) -> Side:
        tables = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
        return Side(as_dataset(released_derived(settings, publication.dataset, publication.release)), tables)

    return side(found.published), side(found.built)


KIND = release_kind(
    DERIVED_RELEASE,
    PlanParameters,
    describe_build=lambda plan: f"compute release {plan.release} from its sources in tables of its own",
    build_job=lambda plan: (
        *("spark_jobs.jobs.derived_build_job", plan.dataset, plan.release),
        json.dumps({"members": [member.dataset for member in plan.members]}),
    ),
    sides=_sides,
)
