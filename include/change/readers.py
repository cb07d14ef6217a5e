"""Who reads the tables of a plan: the derived datasets that it takes along, and all others, which may lose columns.

A member reads a table of the plan's dataset, or of a member before it. Each has its own base and release. Readers
outside, such as subscriptions or views of a BI tool, are not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from include.change.kind import refuse_conflict
from include.declare.analyses import declared_analyses
from include.declare.column_lineage import Columns, analysis_uses, dataset_columns, derived_lineage, derived_uses
from include.declare.dataset import Dataset, DatasetUnknown, dataset_names
from include.declare.dataset_checks import validate_datasets
from include.declare.derived_dataset import (
    DerivedDataset,
    all_dataset_names,
    as_dataset,
    declared_derived,
    derived_in_order,
    derived_names,
    released_derived,
    snapshot_derived,
)
from include.declare.release_diff import TableChange, gold_changes
from include.ground.errors import HeadraceError, Refused
from include.ground.settings import Settings
from include.observe.processes import is_expected, observe_stream
from include.plans.dependants import (
    Analysed,
    ColumnTypes,
    Effect,
    Reader,
    dependants_break,
    effects_on,
    held_remedy,
    holding,
    release_together,
    rollback_remedy,
)
from include.plans.journal import plans_of_data
from include.plans.plan import RELEASES, Member, PlanRecord, ReleaseBuilt, Stage
from include.read.publication import Publication, find_publication, publications, published_tables, read_publication
from include.read.published_tables import columns_of, table_columns


def effects_of(settings: Settings, after: Mapping[str, Publication], analysed: Mapping[str, Analysed]) -> list[Effect]:
    """Return what publishing these tables, by dataset, does to those outside that read the published ones."""
    old, new = dict[str, Mapping[str, str]](), dict[str, Mapping[str, str]]()
    for dataset, publication in after.items():
        if (published := find_publication(settings, dataset)) is not None:
            old |= columns_of(settings, published)
            new |= columns_of(settings, publication)
    return effects_on(readers_of(settings, old, set(after)), old, new, analysed)


def readers_of(settings: Settings, tables: ColumnTypes, without: Collection[str] = ()) -> list[Reader]:
    """Return the derived datasets and analyses that read one of these tables, except the datasets `without`."""
    found = [*_derived_readers(settings, tables, without), *_analyses(settings, tables)]
    return sorted(found, key=lambda reader: reader.name)


def _derived_readers(settings: Settings, tables: ColumnTypes, without: Collection[str]) -> Iterator[Reader]:
    for name, publication in publications(settings).items():
        if publication.is_derived and name not in without and set(publication.sources) & set(tables):
            derived = released_derived(settings, name, publication.release)
            columns = _with_others(settings, tables, derived.pipeline.sources.values())
            is_running = is_expected(observe_stream(settings, name))
            yield Reader(name, publication.release, is_running, derived_uses(derived, columns))


def _analyses(settings: Settings, tables: ColumnTypes) -> Iterator[Reader]:
    for dataset in dataset_names(settings):
        # An analysis that cannot be read runs for nobody; `contract check` names it.
        with suppress(HeadraceError):
            for analysis in declared_analyses(settings, dataset).values():
                uses = analysis_uses(analysis, tables)
                yield Reader(f"analysis.{analysis.name}", analysis.code, False, uses)


def _with_others(settings: Settings, tables: ColumnTypes, names: Collection[str]) -> Columns:
    """Return the columns of tables by name, those that are not given as they are published."""
    missing = [name for name in names if name not in tables]
    published = published_tables(settings) if missing else {}
    return {**tables, **{name: table_columns(published[name].path) for name in missing if name in published}}


def effects_of_plan(settings: Settings, record: PlanRecord) -> list[Effect]:
    """Return what applying a built release plan does to those outside that read its tables."""
    built = record.find(ReleaseBuilt)
    if built is None:
        return []
    return effects_of(settings, {part.built.dataset: part.built for part in built.parts}, built.analysed)


def refuse_broken_readers(settings: Settings, record: PlanRecord) -> None:
    """Raise Terminal (`dependants-break`) while the plan's release would stop a running reader."""
    effects = holding(effects_of_plan(settings, record))
    if effects:
        plan, members = record.plan, [member.dataset for member in record.plan.members]
        raise dependants_break(f"plan {plan.id}", effects, held_remedy(plan.dataset, plan.id, members, effects))


def refuse_rollback(settings: Settings, record: PlanRecord) -> None:
    """Raise Terminal (`dependants-break`) while rolling the plan back would stop a running reader."""
    built = record.find(ReleaseBuilt)
    if built is None:
        return
    # A reader whose release was published at the build has run over the tables that come back: their types fit it.
    fits = {name: Analysed(known.release) for name, known in built.analysed.items()}
    effects = holding(effects_of(settings, {part.published.dataset: part.published for part in built.parts}, fits))
    if effects:
        plan, released = record.plan.id, {effect.reader: _applied_release(settings, effect) for effect in effects}
        raise dependants_break(f"the rollback of {plan}", effects, rollback_remedy(plan, released))


def _applied_release(settings: Settings, effect: Effect) -> str | None:
    """Return the plan that published the reader's release, None when no plan did."""
    records = plans_of_data(settings, effect.reader)
    applied = (r.plan for r in records if r.plan.kind in RELEASES and r.stage is Stage.APPLIED)
    return next((plan.id for plan in applied if effect.release in [part.release for part in plan.parts]), None)


def _member_refused(member: str, why: str, remedy: str) -> Refused:
    """Return that a dataset cannot be released together with another; `why` says what it is."""
    return Refused(f"{member}: {why}; nothing was planned", remedy, code="member-refused", member=member)


@dataclass(frozen=True)
class PlannedMembers:
    """The members of a plan, in the order of its moves, and what changes in their tables."""

    plans: Sequence[Member] = ()
    changes: Sequence[TableChange] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.dataset for member in self.plans)


def plan_members(
    settings: Settings, dataset: str, tables: Collection[str], names: Sequence[str], dry_run: bool
) -> PlannedMembers:
    """Return the members by name; `tables` are those of the plan's dataset.

    Raises `member-refused`, DatasetUnknown, DeclarationRefused, NothingPublished, PlanConflict.
    """
    ordered = _in_order(settings, dataset, names)
    if not ordered:
        return PlannedMembers()
    validate_datasets(settings, ordered)
    known, plans, changes = set(tables), list[Member](), list[TableChange]()
    for name in ordered:
        declared, published = declared_derived(settings, name), read_publication(settings, name).release
        base = released_derived(settings, name, published)
        _refuse_stranger(settings, dataset, declared, known)
        if declared.release == published:
            why = f"its folder is release {published}, which is published already"
            raise _member_refused(
                name, why, f"change something in include/datasets/{name}/ first, or leave out --with {name}"
            )
        if not dry_run:
            refuse_conflict(settings, name)
            snapshot_derived(settings, name)
        plans.append(Member(name, published, declared.release))
        changes += derived_changes(base, declared)
        known |= derived_tables(declared)
    return PlannedMembers(plans, changes)


def _in_order(settings: Settings, dataset: str, names: Sequence[str]) -> list[str]:
    """Return the names in the order in which they read each other. Raises `member-refused`, DatasetUnknown."""
    for name in names:
        if name not in (known := all_dataset_names(settings)):
            raise DatasetUnknown(name, known)
        if name == dataset or name not in derived_names(settings):
            why = "it is the dataset itself" if name == dataset else "it has a topic, and reads no table of another"
            raise _member_refused(name, why, f"headrace release run --dataset {name}")
    return [each.name for each in derived_in_order(settings) if each.name in names] if names else []


def _refuse_stranger(settings: Settings, dataset: str, declared: DerivedDataset, tables: Collection[str]) -> None:
    """Refuse unless the member reads a table that the plan releases."""
    if set(declared.pipeline.sources.values()) & set(tables):
        return
    above = [each for each in derived_in_order(settings) if each.name == dataset]
    if above and set(above[0].pipeline.sources.values()) & derived_tables(declared):
        why = f"{dataset} reads its tables, so it comes first"
        raise _member_refused(declared.name, why, release_together(declared.name, [dataset]))
    why = f"it reads no table of {dataset} or of the datasets before it"
    raise _member_refused(declared.name, why, f"headrace release run --dataset {declared.name}")


def release_tables(declared: Dataset) -> set[str]:
    """Return the tables of a dataset that others may read."""
    return {f"silver.{declared.name}", *(gold.table for gold in declared.pipeline.gold)}


def derived_tables(derived: DerivedDataset) -> set[str]:
    """Return the tables of a derived dataset."""
    return {f"gold.{gold.name}" for gold in derived.pipeline.gold}


def derived_changes(base: DerivedDataset, fresh: DerivedDataset) -> list[TableChange]:
    """Return what differs between two releases of a derived dataset."""
    found = gold_changes(as_dataset(base).pipeline.gold, as_dataset(fresh).pipeline.gold)
    return found or [TableChange(f"all of {fresh.name}", "changed", "a file differs in another way")]


def lost_columns(
    settings: Settings, base: Dataset | DerivedDataset, fresh: Dataset | DerivedDataset, members: PlannedMembers
) -> Iterator[TableChange]:
    """Yield the readers that would lose columns, by what the texts show; the build and the comparison know all."""
    with suppress(HeadraceError):
        before, after = (_named_columns(each) for each in (base, fresh))
        for effect in effects_on(readers_of(settings, before, {base.name, *members.names}), before, after, {}):
            if effect.faults:
                command = release_together(base.name, [*members.names, effect.reader])
                yield TableChange(
                    effect.reader, "incompatible", f"{'; '.join(effect.faults)}; released together: {command}"
                )


def _named_columns(dataset: Dataset | DerivedDataset) -> Mapping[str, Mapping[str, str]]:
    """Return the columns that the texts of a folder name, without their types."""
    found = dataset_columns(dataset) if isinstance(dataset, Dataset) else derived_lineage(dataset, {})
    return {table: dict.fromkeys(each.columns, "") for table, each in found.items() if each.columns}
