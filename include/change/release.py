"""Release plans: ship a dataset's changed folder as a new release, built as a shadow of production."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime

from include.change.compare import Side
from include.change.contract_check import refuse_invalid_folder
from include.change.jobs import JobFailed, request_owner, run_job
from include.change.kind import predict, refuse_conflict, refuse_small_disk, reported_rate, write_new_plan
from include.change.moves import ReleaseKind
from include.change.plan_parameters import ReleaseParameters
from include.change.readers import derived_changes, derived_tables, lost_columns, plan_members, release_tables
from include.change.sides import release_sides
from include.declare.dataset import Dataset, ReleaseStart, released_dataset, snapshot_dataset
from include.declare.dataset_checks import checked_dataset, validate_datasets
from include.declare.derived_dataset import (
    DerivedDataset,
    as_dataset,
    declared_derived,
    derived_names,
    released_derived,
    snapshot_derived,
)
from include.declare.event_times import utc_text
from include.declare.reference_tables import validate_reference_tables
from include.declare.release_diff import release_changes
from include.ground.errors import Terminal
from include.ground.paths import bronze_path
from include.ground.settings import Settings
from include.observe.processes import is_expected, observe_stream
from include.plans.journal import planning_lock
from include.plans.lookup import find_plan, plans_of_data
from include.plans.plan import DERIVED_RELEASE, DRY_RUN, ENDED, RELEASE, RELEASES, Plan, PlanRecord, Prediction
from include.plans.sources import published_versions, readable_versions
from include.plans.stage_results import Applied, ReleaseBuilt, Retired, Stage
from include.read.publication import Publication, read_publication, tables_of
from include.read.published_tables import first_batch_since, first_unexpired_batch, open_dataset, pinned
from include.state.owner_requests import OwnerRequest, RequestKind
from include.state.release_files import active_releases_file


class NothingToRelease(Terminal):
    """The folder is the published release."""

    def __init__(self, dataset: str, release: str) -> None:
        super().__init__(
            f"{dataset}: the folder is release {release}, which is published already; nothing was planned",
            f"change something in include/datasets/{dataset}/ first",
        )
        self.dataset, self.release = dataset, release


class ReleaseAlreadyActive(Terminal):
    """The folder is a shadow release that the stream maintains: there is nothing to build."""

    def __init__(self, dataset: str, release: str) -> None:
        super().__init__(
            f"{dataset}: the folder is release {release}, which the stream maintains as a shadow; nothing was planned",
            "headrace plan list, then headrace plan rollback ID (publishes it again) or retire ID (ends it)",
        )
        self.dataset, self.release = dataset, release


class StartPointRefused(Terminal):
    """A release cannot start at that batch or time."""

    def __init__(self, dataset: str, why: str, remedy: str = "") -> None:
        super().__init__(
            f"{dataset}: {why}; nothing was planned", remedy or f"headrace ledger show --dataset {dataset}"
        )
        self.dataset = dataset


class ReleaseIncompatible(Terminal):
    """The changed folder reads another topic than bronze holds."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was planned", "make it a dataset of its own")
        self.dataset = dataset


class StreamNotRunning(Terminal):
    """Only a running stream maintains releases, so only it can retire one."""

    def __init__(self, plan: str, dataset: str) -> None:
        super().__init__(
            f"plan {plan}: the stream of {dataset} does not run; nothing was done", f"headrace up {dataset}"
        )
        self.plan = plan


class ReleasePlan(ReleaseKind[ReleaseParameters]):
    """Ships a dataset's changed folder as a new release, built as a shadow of production."""

    name = RELEASE
    parameters = ReleaseParameters

    def plan(
        self, settings: Settings, dataset: str, parameters: ReleaseParameters, by: str, now: datetime, origin: str = ""
    ) -> PlanRecord:
        """Plan to publish the dataset as its folder declares it now. Touches no table, reads no data file.

        With a later start, silver and rejected rows of earlier batches are inherited as they are. Raises
        DatasetUnknown, DeclarationRefused, NothingPublished, NothingToRelease, StartPointRefused, ReleaseIncompatible,
        ReleaseAlreadyActive, PlanConflict, PlanBusy, DiskTooSmall, ReferenceLost.
        """
        if dataset in derived_names(settings):
            return DerivedReleasePlan().plan(settings, dataset, parameters, by, now, origin)
        with planning_lock(settings):
            if known := find_plan(settings, origin):
                return known
            declared, publication = checked_dataset(settings, dataset), read_publication(settings, dataset)
            base = released_dataset(settings, dataset, publication.release)
            start = _release_start(settings, publication, parameters)
            if _same_code(declared, base) and start is None and base.release_start is None:
                raise NothingToRelease(dataset, publication.release)
            if declared.pipeline.topic != base.pipeline.topic:
                raise ReleaseIncompatible(dataset, f"topic {declared.pipeline.topic!r} is not {base.pipeline.topic!r}")
            if not parameters.dry_run:
                refuse_conflict(settings, dataset)
            validate_reference_tables(settings, declared)
            if start is not None:
                _refuse_other_shape(base, declared)
            _refuse_active(settings, declared, start)
            refuse_invalid_folder(settings, declared, base.contract)
            members = plan_members(settings, dataset, release_tables(declared), parameters.members, parameters.dry_run)
            predicted = predict(settings, publication)
            refuse_small_disk(settings, dataset, predicted)
            fresh = declared if parameters.dry_run else snapshot_dataset(settings, dataset, start)
            draft = Plan(
                id=DRY_RUN,
                kind=RELEASE,
                dataset=dataset,
                base=base.release,
                release=fresh.release,
                planned_at=now,
                planned_by=by,
                threshold=parameters.threshold,
                changes=[
                    *release_changes(base, fresh),
                    *members.changes,
                    *lost_columns(settings, base, fresh, members),
                ],
                predicted=predicted,
                requested=_requested(settings, publication, start),
                origin=origin,
                members=members.plans,
            )
            return write_new_plan(settings, draft, dry_run=parameters.dry_run)

    def explain_build(self, plan: Plan) -> str:
        """Say what is built from what."""
        return f"build release {plan.release} from bronze in tables of its own"

    def build_job(self, plan: Plan) -> tuple[str, ...]:
        """Return the job and the names of what it builds."""
        return "spark_jobs.jobs.shadow_job", plan.dataset, plan.release, *(member.dataset for member in plan.members)

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        """Return both sides at the build's batch."""
        found = record.last(ReleaseBuilt).of(record.plan.dataset)
        return release_sides(settings, found.published, found.built)

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Let a release that is far behind catch up, then publish it."""
        began = time.monotonic()
        self._catch_up(settings, record)
        applied = super().apply(settings, record)
        return applied.model_copy(update={"seconds": round(time.monotonic() - began, 2)})

    def _catch_up(self, settings: Settings, record: PlanRecord) -> None:
        """Advance a release that was built long ago, so that the stream has at most one run left."""
        plan, publication = record.plan, read_publication(settings, record.plan.dataset)
        behind = sum(publication.offsets.values()) - sum(record.last(ReleaseBuilt).built.offsets.values())
        if record.stage is Stage.APPROVED and plan.release != publication.release and behind > settings.refine_records:
            done = run_job(settings, plan.id, plan.dataset, self.build_job(plan.parts[0]), lambda _: None)
            if "built" not in done:
                raise JobFailed(plan.id, str(done.get("failed")), str(done.get("remedy", "")))


class DerivedReleasePlan(ReleaseKind[ReleaseParameters]):
    """Ships a derived dataset's changed folder, built over the sources that the published release has used."""

    name = DERIVED_RELEASE
    parameters = ReleaseParameters

    def plan(
        self, settings: Settings, dataset: str, parameters: ReleaseParameters, by: str, now: datetime, origin: str = ""
    ) -> PlanRecord:
        """Plan to publish the derived dataset as its folder declares it now. Touches no table, reads no data file.

        Raises DerivedUnknown, StartPointRefused, and what a release of a dataset with a topic raises.
        """
        if parameters.from_batch is not None or parameters.from_timestamp is not None:
            why = "it is derived and has no batches; its release computes everything"
            raise StartPointRefused(dataset, why, f"headrace release plan --dataset {dataset}")
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
                changes=[
                    *derived_changes(base, fresh),
                    *members.changes,
                    *lost_columns(settings, base, fresh, members),
                ],
                predicted=predicted,
                requested=over,
                origin=origin,
                members=members.plans,
            )
            return write_new_plan(settings, draft, dry_run=parameters.dry_run)

    def explain_build(self, plan: Plan) -> str:
        """Say what is built from what."""
        return f"compute release {plan.release} from its sources in tables of its own"

    def build_job(self, plan: Plan) -> tuple[str, ...]:
        """Return the job and the names of what it builds."""
        members = json.dumps({"members": [member.dataset for member in plan.members]})
        return "spark_jobs.jobs.derived_build_job", plan.dataset, plan.release, members

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        """Return both sides at the build's batch."""
        found = record.last(ReleaseBuilt).of(record.plan.dataset)

        def side(publication: Publication) -> Side:
            tables = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
            return Side(as_dataset(released_derived(settings, publication.dataset, publication.release)), tables)

        return side(found.published), side(found.built)


def _release_start(settings: Settings, publication: Publication, parameters: ReleaseParameters) -> ReleaseStart | None:
    batch, since = parameters.from_batch, parameters.from_timestamp
    if since is not None:
        batch = first_batch_since(bronze_path(settings, publication.dataset), since)
        if batch is None:
            raise StartPointRefused(
                publication.dataset, f"no record has arrived since {utc_text(since, 'minutes')} UTC"
            )
    if batch is None or batch == 0:
        return None
    if not 0 < batch <= publication.batch + 1:
        raise StartPointRefused(
            publication.dataset, f"batch {batch} is not published, the last one is {publication.batch}"
        )
    bronze, silver = _expired_until(settings, publication)
    if batch < bronze:
        why = f"batches before {bronze} have expired from bronze; a release from {bronze} on inherits their rows"
        raise StartPointRefused(publication.dataset, why)
    if silver > bronze:
        why = f"batches before {silver} have expired from silver and cannot be inherited, but bronze has them"
        raise StartPointRefused(publication.dataset, why)
    versions = (publication.tables[f"{layer}.{publication.dataset}"].version for layer in ("silver", "rejected"))
    return ReleaseStart(publication.release, batch, *versions)


def _requested(settings: Settings, publication: Publication, start: ReleaseStart | None) -> str:
    """Return the range in words, and which records the new tables will lack because they have expired."""
    bronze, silver = _expired_until(settings, publication)
    if start is None:
        return f"without batches before {bronze}, which have expired from bronze" if bronze else ""
    gold = f", gold without batches before {silver}, which have expired from silver" if silver else ""
    return f"from batch {start.batch} on{gold}"


def _expired_until(settings: Settings, publication: Publication) -> tuple[int, int]:
    """Return the first batches that have not expired from bronze and from silver."""
    tables = tables_of(settings, publication)
    bronze, silver = (first_unexpired_batch(tables[f"{layer}.{publication.dataset}"]) for layer in ("bronze", "silver"))
    return bronze, silver


def _refuse_other_shape(base: Dataset, fresh: Dataset) -> None:
    """Raise StartPointRefused when inherited rows would not fit: other duplicates, or no time for a new window."""
    if base.pipeline.identity != fresh.pipeline.identity:
        raise StartPointRefused(fresh.name, "another identity finds other duplicates, also among inherited rows")
    new = set(fresh.pipeline.time_columns) - set(base.pipeline.time_columns)
    if new:
        raise StartPointRefused(fresh.name, f"inherited rows may lack {', '.join(sorted(new))}, which has windows now")


def _refuse_active(settings: Settings, declared: Dataset, start: ReleaseStart | None) -> None:
    """Raise ReleaseAlreadyActive when the stream maintains a release of this code with the same start."""
    for release in active_releases_file(settings, declared.name).read() or ():
        active = released_dataset(settings, declared.name, release)
        if _same_code(active, declared) and _start(active.release_start) == _start(start):
            raise ReleaseAlreadyActive(declared.name, release)


def _same_code(one: Dataset, other: Dataset) -> bool:
    """Whether two releases compute the same from their first batch on: by one folder, rules of time zones and types."""
    return _computed_by(one) == _computed_by(other)


def _computed_by(release: Dataset) -> tuple[object, ...]:
    return release.code, release.pipeline.window_zones, release.contract.types


def _start(start: ReleaseStart | None) -> tuple[str, int] | None:
    return (start.base, start.batch) if start else None


def _needed_by_others(settings: Settings, plan: Plan, published: str) -> Iterator[str]:
    """Yield the releases of plans that may still be applied or rolled back: newer ones, and of the published release.

    An older plan of other releases could be rolled back only after this one, which is no longer possible.
    """
    records = plans_of_data(settings, plan.dataset)
    for other in (record.of(plan.dataset).plan for record in records if record.stage not in ENDED):
        is_other = other.kind in RELEASES and other.id != plan.id
        if is_other and (other.planned_at > plan.planned_at or published in (other.base, other.release)):
            yield from (other.base, other.release)


def retire_release(settings: Settings, record: PlanRecord) -> Retired:
    """Have the stream stop maintaining the plan's unpublished releases, except those that another plan needs.

    Raises StreamNotRunning, PlanUnreadable.
    """
    plan = record.plan
    if not is_expected(observe_stream(settings, plan.dataset)):
        raise StreamNotRunning(plan.id, plan.dataset)
    publication = read_publication(settings, plan.dataset)
    needed = {publication.release, *_needed_by_others(settings, plan, publication.release)}
    others = sorted({plan.base, plan.release} - needed)
    requests = [OwnerRequest(plan.id, RequestKind.RETIRE, other) for other in others]
    batches = [request_owner(settings, plan.dataset, request).batch for request in requests]
    return Retired(releases=others, batch=max(batches, default=publication.batch))


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
