"""The derived datasets that a release plan takes along, and what a release takes away from those that stay.

A member reads a table of the plan's dataset, or of a member before it. Each has its own base and release.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from include.change.plan_preconditions import refuse_conflict
from include.change.table_readers import readers_of
from include.declare.column_lineage import dataset_columns, derived_lineage
from include.declare.dataset import Dataset, DatasetUnknown
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
from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import Settings
from include.plans.plan import Member
from include.plans.reader_effects import effects_on, release_together
from include.read.publication import read_publication


class MemberRefused(Terminal):
    """A dataset cannot be released together with another; `why` says what it is."""

    def __init__(self, member: str, why: str, remedy: str) -> None:
        super().__init__(f"{member}: {why}; nothing was planned", remedy)
        self.member = member


@dataclass(frozen=True)
class PlannedMembers:
    """The members of a plan, in the order of its moves, and what changes in their tables."""

    plans: Sequence[Member] = ()
    changes: Sequence[TableChange] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members."""
        return tuple(member.dataset for member in self.plans)


def plan_members(
    settings: Settings, dataset: str, tables: Collection[str], names: Sequence[str], dry_run: bool
) -> PlannedMembers:
    """Return the members by name; `tables` are those of the plan's dataset.

    Raises MemberRefused, DatasetUnknown, DeclarationRefused, NothingPublished, PlanConflict.
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
            raise MemberRefused(
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
    """Return the names in the order in which they read each other. Raises MemberRefused, DatasetUnknown."""
    for name in names:
        if name not in (known := all_dataset_names(settings)):
            raise DatasetUnknown(name, known)
        if name == dataset or name not in derived_names(settings):
            why = "it is the dataset itself" if name == dataset else "it has a topic, and reads no table of another"
            raise MemberRefused(name, why, f"headrace release run --dataset {name}")
    return [each.name for each in derived_in_order(settings) if each.name in names] if names else []


def _refuse_stranger(settings: Settings, dataset: str, declared: DerivedDataset, tables: Collection[str]) -> None:
    """Raise MemberRefused unless the member reads a table that the plan releases."""
    if set(declared.pipeline.sources.values()) & set(tables):
        return
    above = [each for each in derived_in_order(settings) if each.name == dataset]
    if above and set(above[0].pipeline.sources.values()) & derived_tables(declared):
        why = f"{dataset} reads its tables, so it comes first"
        raise MemberRefused(declared.name, why, release_together(declared.name, [dataset]))
    why = f"it reads no table of {dataset} or of the datasets before it"
    raise MemberRefused(declared.name, why, f"headrace release run --dataset {declared.name}")


def release_tables(declared: Dataset) -> set[str]:
    """Return the tables of a dataset that others may read."""
    return {f"silver.{declared.name}", *(f"gold.{gold.name}" for gold in declared.pipeline.gold)}


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
