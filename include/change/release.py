"""Release plans: ship a dataset's changed folder as a new release, built as a shadow of production.

A release of a dataset with a topic and one of a derived dataset differ in what they read; both move publications.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from include.change.compare import Side, release_sides
from include.change.contract_check import refuse_invalid_folder
from include.change.jobs import JobFailed, request_owner, run_job
from include.change.kind import Confirmation, Given, PlanKind, Request, cost_of, predict, published_gold_rows
from include.change.plan_parameters import ReleaseParameters
from include.change.readers import (
    derived_changes,
    derived_tables,
    lost_columns,
    plan_members,
    refuse_broken_readers,
    refuse_rollback,
    release_tables,
)
from include.declare.dataset import Dataset, ReleaseStart, released_dataset, snapshot_dataset
from include.declare.dataset_checks import checked_dataset, validate_datasets
from include.declare.derived_dataset import (
    DerivedDataset,
    as_dataset,
    declared_derived,
    released_derived,
    snapshot_derived,
)
from include.declare.event_times import utc_text
from include.declare.reference_tables import validate_reference_tables
from include.declare.release_diff import release_changes
from include.ground.errors import HeadraceError, Refused, Terminal
from include.ground.paths import bronze_path, warehouse
from include.ground.settings import Settings
from include.observe.processes import is_expected, observe_stream
from include.plans.dependants import drop_obsolete, published_versions, readable_versions
from include.plans.journal import plans_of_data
from include.plans.plan import (
    DERIVED_RELEASE,
    ENDED,
    RELEASE,
    RELEASES,
    Applied,
    Plan,
    PlanRecord,
    Prediction,
    ReleaseBuilt,
    Retired,
    RolledBack,
    Stage,
)
from include.read.publication import Publication, find_publication, read_publication, tables_of
from include.read.published_tables import first_batch_since, first_unexpired_batch, open_dataset, pinned
from include.state.owner_requests import (
    OwnerRequest,
    RequestKind,
    pending_request,
    submit_request,
    withdraw_own_request,
)
from include.state.release_files import active_releases_file


class ReleaseKind(PlanKind[Given]):
    """A kind that publishes another release, of datasets with a topic and of derived ones."""

    builds_whole_tables = True

    def build_job(self, plan: Plan) -> tuple[str, ...]:
        members = json.dumps({"members": [member.dataset for member in plan.members]})
        return "spark_jobs.jobs.shadow_job", plan.dataset, plan.release, members

    def explain_apply(self, plan: Plan) -> str:
        own = f"publish release {plan.release} in place of {plan.base}, all tables in one publication"
        return own + "".join(f", then {m.dataset} {m.release} in place of {m.base}" for m in plan.members)

    def refuse_applied(self, settings: Settings, plan: Plan) -> None:
        if all(_published(settings, part) == part.release for part in plan.parts):
            raise self.already_applied(plan)

    def read_build(self, output: Mapping[str, Any], seconds: float) -> ReleaseBuilt:
        return read_release_build(output, seconds)

    def refuse_apply(self, settings: Settings, record: PlanRecord) -> None:
        refuse_broken_readers(settings, record)

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        return Applied(batch=_move(settings, record.plan, _released, "apply"))

    def confirm(self, settings: Settings, record: PlanRecord, published: Publication) -> Confirmation:
        is_applied = record.stage is Stage.APPLIED
        expected = record.plan.release if is_applied else record.plan.base
        if published.release != expected:
            raise Confirmation.missing(record, f"release {published.release} is published, not {expected}")
        return Confirmation.of(record, published, "published" if is_applied else "rolled back")

    def refuse_revert(self, settings: Settings, record: PlanRecord) -> None:
        refuse_rollback(settings, record)

    def revert(self, settings: Settings, record: PlanRecord) -> RolledBack:
        return RolledBack(batch=_move(settings, record.plan, _base, "rollback"))

    def drop_build(self, settings: Settings, plan: Plan) -> None:
        """Publish the bases of a plan that is cancelled between the moves of its datasets.

        Its release is maintained no longer: as a shadow without a plan it could be neither released again nor retired.
        A release that another plan may apply again stays.
        """
        if any(_published(settings, part) == part.release for part in plan.parts):
            _move(settings, plan, _base, "cancel")
        is_active = plan.release in (active_releases_file(settings, plan.dataset).read() or ())
        published = read_publication(settings, plan.dataset).release if is_active else ""
        if is_active and plan.release not in _needed_by_others(settings, plan, published):
            retire = OwnerRequest(plan.id, RequestKind.RETIRE, plan.release, again=_command(plan, "cancel"))
            request_owner(settings, plan.dataset, retire)


def read_release_build(output: Mapping[str, Any], seconds: float) -> ReleaseBuilt:
    """Return the result of a build job's last output; `members` has the outputs of the other jobs of the plan."""
    parts = {key: output[key] for key in ("built", "published", "seen", "analysed") if key in output}
    members = {name: read_release_build(each, 0.0) for name, each in output.get("members", {}).items()}
    batch = output["built"]["batch"]
    return ReleaseBuilt.model_validate({**parts, "members": members, "batch": batch, "seconds": seconds})


def _move(settings: Settings, plan: Plan, target: Callable[[Plan], str], decision: str) -> int:
    """Have one of the two releases of each dataset of the plan published, the same for all; return the plan's batch.

    `decision` is the command on the plan that moves them, and continues a move that was interrupted.

    The owner of a derived dataset gets its request first and executes it when its sources have moved: it never follows
    them with its other release, also when this process is killed in between. Moving twice moves once (adr-0001).
    """
    first, *others = plan.parts
    for part in plan.parts:
        if (published := read_publication(settings, part.dataset).release) not in (part.base, part.release):
            what = f"plan {plan.id} is about releases {part.base} and {part.release}, {published} is published"
            raise Refused(f"{what}; nothing was done", "headrace plan list", code="other-release-published")
    waiting = [part for part in others if _has_to_move(settings, part, target) or _has_own_request(settings, part)]
    try:
        for part in waiting:
            drop_obsolete(settings, part.dataset)
            submit_request(settings, part.dataset, _request(plan, part, target, decision))
        batch = _publish(settings, first, _request(plan, first, target, decision))
    except BaseException:
        if _has_to_move(settings, first, target):
            # Those that are at the target already would follow the source back: their requests hold them there.
            for part in waiting:
                if _has_to_move(settings, part, target):
                    withdraw_own_request(settings, part.dataset, plan.id)
        raise
    for part in waiting:
        try:
            _publish(settings, part, _request(plan, part, target, decision))
        except HeadraceError as error:
            what = f"plan {plan.id} is between its moves: {part.dataset} still has the release of before"
            cancel = f"until it is applied, headrace plan cancel {plan.id} moves all back"
            remedy = f"the same command again continues; {cancel}"
            raise Terminal(f"{what} ({error.what})", remedy, code="half-moved", dataset=part.dataset) from error
    return batch


def _request(plan: Plan, part: Plan, target: Callable[[Plan], str], decision: str) -> OwnerRequest:
    """Return the request for a part of a plan, which is due when the parts before it are published."""
    earlier = plan.parts[: plan.datasets.index(part.dataset)]
    return OwnerRequest(
        plan.id,
        RequestKind.PROMOTE,
        target(part),
        after={each.dataset: target(each) for each in earlier},
        instead={each.dataset: each.base if target(each) == each.release else each.release for each in earlier},
        again=_command(plan, decision),
    )


def _command(plan: Plan, decision: str) -> str:
    return f"headrace plan {decision} {plan.id}"


def _publish(settings: Settings, part: Plan, request: OwnerRequest) -> int:
    """Have a release published; return the batch. Publishing it twice publishes it once."""
    publication = read_publication(settings, part.dataset)
    if publication.release == request.release and not _has_own_request(settings, part):
        return publication.batch
    return request_owner(settings, part.dataset, request, is_kept=bool(request.after)).batch


def _has_to_move(settings: Settings, part: Plan, target: Callable[[Plan], str]) -> bool:
    return _published(settings, part) != target(part)


def _has_own_request(settings: Settings, part: Plan) -> bool:
    """Return whether the owner has, and perhaps executes, a request of the part's plan."""
    pending = pending_request(settings, part.dataset)
    return pending is not None and pending.plan == part.id


def _published(settings: Settings, part: Plan) -> str | None:
    publication = find_publication(settings, part.dataset)
    return publication.release if publication is not None else None


def _released(part: Plan) -> str:
    return part.release


def _base(part: Plan) -> str:
    return part.base


def _nothing_to_release(dataset: str, release: str) -> Refused:
    return Refused(
        f"{dataset}: the folder is release {release}, which is published already; nothing was planned",
        f"change something in include/datasets/{dataset}/ first",
        code="nothing-to-release",
        release=release,
    )


def _start_refused(dataset: str, why: str, remedy: str = "") -> Refused:
    remedy = remedy or f"headrace ledger show --dataset {dataset}"
    return Refused(f"{dataset}: {why}; nothing was planned", remedy, code="start-point-refused")


class TopicRelease(ReleaseKind[Given]):
    """A kind that publishes another release of a dataset with a topic, built from bronze."""

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
        found = record.last(ReleaseBuilt).of(record.plan.dataset)
        return release_sides(settings, found.published, found.built)

    def apply(self, settings: Settings, record: PlanRecord) -> Applied:
        """Let a release that is far behind catch up, then publish it."""
        self._catch_up(settings, record)
        return super().apply(settings, record)

    def _catch_up(self, settings: Settings, record: PlanRecord) -> None:
        """Advance a release that was built long ago, so that the stream has at most one run left."""
        plan, publication = record.plan, read_publication(settings, record.plan.dataset)
        behind = sum(publication.offsets.values()) - sum(record.last(ReleaseBuilt).built.offsets.values())
        if record.stage is Stage.APPROVED and plan.release != publication.release and behind > settings.refine_records:
            done = run_job(settings, plan.id, plan.dataset, self.build_job(plan.parts[0]), lambda _: None)
            if "built" not in done:
                raise JobFailed(plan.id, str(done.get("failed")), str(done.get("remedy", "")))


class ReleasePlan(TopicRelease[ReleaseParameters]):
    """Ships a dataset's changed folder as a new release, built as a shadow of production."""

    name = RELEASE
    parameters = ReleaseParameters

    def over_sources(self) -> PlanKind[ReleaseParameters]:
        return DerivedReleasePlan()

    def draft(self, request: Request[ReleaseParameters]) -> Plan:
        """Plan to publish the dataset as its folder declares it now. Touches no table, reads no data file.

        With a later start, silver and rejected rows of earlier batches are inherited as they are.
        """
        settings, dataset, parameters = request.settings, request.dataset, request.parameters
        declared, publication = checked_dataset(settings, dataset), read_publication(settings, dataset)
        base = released_dataset(settings, dataset, publication.release)
        start = _release_start(settings, publication, parameters)
        if _same_code(declared, base) and start is None and base.release_start is None:
            raise _nothing_to_release(dataset, publication.release)
        if declared.pipeline.topic != base.pipeline.topic:
            what = f"{dataset}: topic {declared.pipeline.topic!r} is not {base.pipeline.topic!r}; nothing was planned"
            raise Refused(what, "make it a dataset of its own", code="release-incompatible")
        request.refuse_conflict()
        validate_reference_tables(settings, declared)
        if start is not None:
            _refuse_other_shape(base, declared)
        _refuse_active(settings, declared, start)
        refuse_invalid_folder(settings, declared, base.contract)
        members = plan_members(settings, dataset, release_tables(declared), parameters.members, parameters.dry_run)
        predicted = predict(settings, publication)
        request.refuse_small_disk(predicted, warehouse(settings))
        fresh = declared if parameters.dry_run else snapshot_dataset(settings, dataset, start, base.file_sets)
        changes = [*release_changes(base, fresh), *members.changes, *lost_columns(settings, base, fresh, members)]
        requested = _requested(settings, publication, start)
        return request.plan(
            RELEASE,
            base.release,
            fresh.release,
            predicted,
            changes=changes,
            requested=requested,
            members=members.plans,
        )

    def explain_build(self, plan: Plan) -> str:
        return f"build release {plan.release} from bronze in tables of its own"


class DerivedReleasePlan(ReleaseKind[ReleaseParameters]):
    """Ships a derived dataset's changed folder, built over the sources that the published release has used."""

    name = DERIVED_RELEASE
    parameters = ReleaseParameters

    def draft(self, request: Request[ReleaseParameters]) -> Plan:
        """Plan to publish the derived dataset as its folder declares it now. Touches no table, reads no data file."""
        settings, dataset, parameters = request.settings, request.dataset, request.parameters
        if parameters.from_batch is not None or parameters.from_timestamp is not None:
            why = "it is derived and has no batches; its release computes everything"
            raise _start_refused(dataset, why, f"headrace release plan --dataset {dataset}")
        validate_datasets(settings, [dataset])
        declared, publication = declared_derived(settings, dataset), read_publication(settings, dataset)
        base = released_derived(settings, dataset, publication.release)
        if declared.release == base.release:
            raise _nothing_to_release(dataset, base.release)
        request.refuse_conflict()
        members = plan_members(settings, dataset, derived_tables(declared), parameters.members, parameters.dry_run)
        over = _chosen_sources(settings, declared, publication)
        predicted = predicted_of_sources(settings, declared, published_gold_rows(settings, publication))
        request.refuse_small_disk(predicted, warehouse(settings))
        fresh = declared if parameters.dry_run else snapshot_derived(settings, dataset)
        changes = [*derived_changes(base, fresh), *members.changes, *lost_columns(settings, base, fresh, members)]
        return request.plan(
            DERIVED_RELEASE,
            base.release,
            fresh.release,
            predicted,
            changes=changes,
            requested=over,
            members=members.plans,
        )

    def explain_build(self, plan: Plan) -> str:
        return f"compute release {plan.release} from its sources in tables of its own"

    def sides(self, settings: Settings, record: PlanRecord) -> tuple[Side, Side]:
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
            raise _start_refused(publication.dataset, f"no record has arrived since {utc_text(since, 'minutes')} UTC")
    if batch is None or batch == 0:
        return None
    if not 0 < batch <= publication.batch + 1:
        raise _start_refused(
            publication.dataset, f"batch {batch} is not published, the last one is {publication.batch}"
        )
    bronze, silver = expired_until(settings, publication)
    if batch < bronze:
        why = f"batches before {bronze} have expired from bronze; a release from {bronze} on inherits their rows"
        raise _start_refused(publication.dataset, why)
    if silver > bronze:
        why = f"batches before {silver} have expired from silver and cannot be inherited, but bronze has them"
        raise _start_refused(publication.dataset, why)
    versions = (publication.tables[f"{layer}.{publication.dataset}"].version for layer in ("silver", "rejected"))
    return ReleaseStart(publication.release, batch, *versions)


def _requested(settings: Settings, publication: Publication, start: ReleaseStart | None) -> str:
    """Return the range in words, and which records the new tables will lack because they have expired."""
    bronze, silver = expired_until(settings, publication)
    if start is None:
        return f"without batches before {bronze}, which have expired from bronze" if bronze else ""
    gold = f", gold without batches before {silver}, which have expired from silver" if silver else ""
    return f"from batch {start.batch} on{gold}"


def expired_until(settings: Settings, publication: Publication) -> tuple[int, int]:
    """Return the first batches that have not expired from bronze and from silver."""
    tables = tables_of(settings, publication)
    bronze, silver = (first_unexpired_batch(tables[f"{layer}.{publication.dataset}"]) for layer in ("bronze", "silver"))
    return bronze, silver


def _refuse_other_shape(base: Dataset, fresh: Dataset) -> None:
    """Refuse when inherited rows would not fit: other duplicates, or no time for a new window."""
    if base.pipeline.identity != fresh.pipeline.identity:
        raise _start_refused(fresh.name, "another identity finds other duplicates, also among inherited rows")
    new = set(fresh.pipeline.time_columns) - set(base.pipeline.time_columns)
    if new:
        raise _start_refused(fresh.name, f"inherited rows may lack {', '.join(sorted(new))}, which has windows now")


def _refuse_active(settings: Settings, declared: Dataset, start: ReleaseStart | None) -> None:
    """Refuse when the stream maintains a release of this code with the same start."""
    for release in active_releases_file(settings, declared.name).read() or ():
        active = released_dataset(settings, declared.name, release)
        if _same_code(active, declared) and _start(active.release_start) == _start(start):
            raise Refused(
                f"{declared.name}: the folder is release {release}, which the stream maintains as a shadow; "
                "nothing was planned",
                "headrace plan list, then headrace plan rollback ID (publishes it again) or retire ID (ends it)",
                code="release-already-active",
                release=release,
            )


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

    Only a running stream maintains releases, so only it can retire one. Raises Refused, PlanUnreadable.
    """
    plan = record.plan
    if not is_expected(observe_stream(settings, plan.dataset)):
        what = f"plan {plan.id}: the stream of {plan.dataset} does not run; nothing was done"
        raise Refused(what, f"headrace up {plan.dataset}", code="stream-not-running", plan=plan.id)
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


def predicted_of_sources(settings: Settings, derived: DerivedDataset, gold_rows: int, share: float = 1.0) -> Prediction:
    """Return the cost of computing gold rows of a derived dataset from a share of its sources."""
    tables = pinned(settings)
    sources = [tables.facts(name) for name in set(derived.pipeline.sources.values()) if name in tables.tables]
    rows, size = (round(share * sum(of)) for of in ([t.rows or 0 for t in sources], [t.size for t in sources]))
    return cost_of(settings, derived.name, rows, size, sum(each.files for each in sources), gold_rows)
