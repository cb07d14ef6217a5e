"""Who reads the tables of a dataset: published derived datasets at their releases, and declared analyses.

Reads: publications, snapshots, Delta logs of the tables.
Does not: know readers outside, such as subscriptions or views of a BI tool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from include.declare.analyses import declared_analyses
from include.declare.column_uses import Columns, analysis_uses, derived_uses
from include.declare.dataset import dataset_names
from include.declare.derived_dataset import released_derived
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.observe.processes import is_expected, observe_stream
from include.plans.plan import RELEASES, PlanRecord
from include.plans.plan_lookup import plans_of_data
from include.plans.reader_effects import (
    Analysed,
    ColumnTypes,
    DependantsBreak,
    Effect,
    Reader,
    effects_on,
    held_remedy,
    holding,
    rollback_remedy,
)
from include.plans.stage_results import ReleaseBuilt, Stage
from include.read.publication import Publication, find_publication, publications, published_tables
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
    """Raise DependantsBreak while the plan's release would stop a running reader."""
    effects = holding(effects_of_plan(settings, record))
    if effects:
        plan, members = record.plan, [member.dataset for member in record.plan.members]
        raise DependantsBreak(f"plan {plan.id}", effects, held_remedy(plan.dataset, plan.id, members, effects))


def refuse_rollback(settings: Settings, record: PlanRecord) -> None:
    """Raise DependantsBreak while rolling the plan back would stop a running reader."""
    built = record.find(ReleaseBuilt)
    if built is None:
        return
    # A reader whose release was published at the build has run over the tables that come back: their types fit it.
    fits = {name: Analysed(known.release) for name, known in built.analysed.items()}
    effects = holding(effects_of(settings, {part.published.dataset: part.published for part in built.parts}, fits))
    if effects:
        plan, released = record.plan.id, {effect.reader: _applied_release(settings, effect) for effect in effects}
        raise DependantsBreak(f"the rollback of {plan}", effects, rollback_remedy(plan, released))


def _applied_release(settings: Settings, effect: Effect) -> str | None:
    """Return the plan that published the reader's release, None when no plan did."""
    records = plans_of_data(settings, effect.reader)
    applied = (r.plan for r in records if r.plan.kind in RELEASES and r.stage is Stage.APPLIED)
    return next((plan.id for plan in applied if effect.release in [part.release for part in plan.parts]), None)
