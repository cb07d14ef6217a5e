"""A derived dataset: a folder with `derived.yaml` instead of a contract and a topic.

Its gold tables are queries over the silver and gold of other datasets, its *sources*. A grain is one combination of the
columns `grain`. `touched_by` says for each source which grains a row of it touches: one SQL expression for each of
those columns; an expression that gives an array touches each of its elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from datetime import timedelta
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from include.declare.children import child_table
from include.declare.contract import Contract
from include.declare.contract_rules import RuleModel, typed_rule
from include.declare.dataset import (
    DERIVED,
    Dataset,
    DatasetUnknown,
    content_hash,
    copied_folder,
    dataset_names,
    declared_dataset,
    refuse_changed,
    released_dataset,
    released_folder,
)
from include.declare.gold import Gold, QueryGold, QueryText
from include.declare.pipeline import Pipeline, Retention, load_pipeline, named_items
from include.declare.yaml_declarations import CONFIG, NAME, Document, raise_problems
from include.ground.errors import Terminal
from include.ground.paths import snapshot_path
from include.ground.settings import Settings


@dataclass(frozen=True, config=CONFIG)
class OutputColumn:
    """What readers may rely on: the type of a column, as Spark writes it (`bigint`), and what it means."""

    type: str
    description: str = ""


@dataclass(frozen=True, config=CONFIG)
class DerivedGold:
    """Grains recomputed by an SQL query over the sources, by their names; its columns include the grain's.

    `quality`: rules of the whole table, as in a contract; `columns`: the columns whose types are promised.
    """

    name: str
    query: QueryText
    grain: tuple[str, ...]
    touched_by: dict[str, dict[str, str]]
    partition: str = ""
    quality: tuple[RuleModel, ...] = ()
    columns: dict[str, OutputColumn] = field(default_factory=dict)

    @property
    def table(self) -> str:
        return f"gold.{self.name}"


@dataclass(frozen=True, config=CONFIG)
class DerivedPipeline:
    """`sources` are tables (`silver.<dataset>` or `gold.<table>`) by the name that queries read them under."""

    sources: dict[str, str]
    gold: Annotated[tuple[DerivedGold, ...], BeforeValidator(named_items)]
    retention: Retention = Retention()


@plain_dataclass(frozen=True)
class DerivedDataset:
    """A derived dataset's folder as a value; `release` is its content hash."""

    name: str
    folder: Path
    release: str
    pipeline: DerivedPipeline


def as_query(gold: DerivedGold) -> QueryGold:
    """Return a gold table of a derived dataset as one of kind `query`, whose keys are the grain."""
    return QueryGold(gold.name, gold.partition, gold.query, None, gold.grain)


def as_dataset(derived: DerivedDataset) -> Dataset:
    """Return it as a dataset for comparisons and checkpoints: the gold tables, and a contract with their rules."""
    gold, nothing = tuple(as_query(each) for each in derived.pipeline.gold), timedelta()
    pipeline = Pipeline("", 0, "", nothing, (), nothing, gold, (), derived.pipeline.retention)
    rules = {each.table: each.quality for each in derived.pipeline.gold}
    typed = {table: tuple(typed_rule(rule, None, strict=False) for rule in found) for table, found in rules.items()}
    contract = Contract(derived.name, "", (), (), (), typed)
    return Dataset(derived.name, derived.folder, derived.release, contract, pipeline, derived.release)


def derived_names(settings: Settings) -> list[str]:
    """Return the names of the folders with a `derived.yaml`, sorted."""
    found = (path.parent.name for path in settings.datasets.glob(f"*/{DERIVED}"))
    return sorted(name for name in found if NAME.fullmatch(name))


def all_dataset_names(settings: Settings) -> list[str]:
    """Return the names of all datasets that have a driver: those with a topic, and derived ones."""
    return sorted({*dataset_names(settings), *derived_names(settings)})


def require_declared(settings: Settings, dataset: str) -> None:
    """Raise DatasetUnknown unless a folder declares the dataset, with a topic or derived."""
    if dataset not in (known := all_dataset_names(settings)):
        raise DatasetUnknown(dataset, known)


def require_derived(settings: Settings, name: str) -> None:
    """Raise Terminal (derived-unknown) unless a folder declares the derived dataset."""
    if name not in (known := derived_names(settings)):
        remedy = f"use one of: {', '.join(known) or 'none'}"
        raise Terminal(f"derived dataset {name!r} is unknown", remedy, code="derived-unknown", name=name, known=known)


def read_derived(document: Document) -> DerivedPipeline | None:
    """Return the pipeline that a document declares; None when it is none, and the document has the problems."""
    return document.parsed(DerivedPipeline, folder=document.path.parent)


def load_derived(name: str, folder: Path, *, strict: bool = True) -> DerivedDataset:
    """Return a derived dataset's folder as a value; raises DeclarationRefused for keys and types that are wrong."""
    document = Document(folder / DERIVED, strict=strict)
    pipeline = read_derived(document)
    raise_problems(document)
    assert pipeline is not None
    return DerivedDataset(name, folder, content_hash(folder), pipeline)


def declared_derived(settings: Settings, name: str) -> DerivedDataset:
    """Return the derived dataset as its folder declares it now. Raises as `require_derived`, DeclarationRefused."""
    require_derived(settings, name)
    return load_derived(name, settings.datasets / name)


def derived_in_order(settings: Settings) -> list[DerivedDataset]:
    """Return the declared derived datasets, each after those whose tables it reads. Raises DeclarationRefused."""
    found = {name: declared_derived(settings, name) for name in derived_names(settings)}
    owners = {gold.table: name for name, derived in found.items() for gold in derived.pipeline.gold}
    needed = {
        name: {owners[table] for table in derived.pipeline.sources.values() if table in owners}
        for name, derived in found.items()
    }
    return [found[name] for name in TopologicalSorter(needed).static_order()]


def origin_datasets(settings: Settings, name: str) -> list[str]:
    """Return the datasets with a topic from which a derived dataset is computed, sorted. Raises DeclarationRefused."""
    sources = {each.name: set(each.pipeline.sources.values()) for each in derived_in_order(settings)}
    derived = {gold.table: each.name for each in derived_in_order(settings) for gold in each.pipeline.gold}
    tables = sources[name]
    while below := tables & set(derived):
        tables = (tables - below).union(*(sources[derived[table]] for table in below))
    declared = {each: load_pipeline(settings.datasets / each) for each in dataset_names(settings)}
    owned = {
        each: {
            f"silver.{each}",
            *(f"silver.{child_table(each, children.name)}" for children in found.children),
            *(gold.table for gold in found.gold),
        }
        for each, found in declared.items()
    }
    return sorted(each for each, own in owned.items() if own & tables)


def snapshot_derived(settings: Settings, name: str) -> DerivedDataset:
    """Copy the folder to its release's own place, once, and return it as read from there."""
    declared = declared_derived(settings, name)
    place = snapshot_path(settings, name, declared.release)
    if not place.is_dir():
        copied_folder(settings, name, declared.folder, declared.release).rename(place)
    return released_derived(settings, name, declared.release)


def released_derived(settings: Settings, name: str, release: str) -> DerivedDataset:
    """Return the derived dataset as a release's snapshot has it; ReleaseUnknown, DeclarationRefused when changed."""
    folder = released_folder(settings, name, release)
    derived = load_derived(name, folder, strict=False)
    refuse_changed(folder, derived.release, release)
    return derived


def release_retention(settings: Settings, name: str, release: str) -> Retention:
    """Return the `retention` that a release of any dataset declares; raises ReleaseUnknown."""
    is_derived = (snapshot_path(settings, name, release) / DERIVED).is_file()
    read = released_derived if is_derived else released_dataset
    return read(settings, name, release).pipeline.retention


def declared_contract(settings: Settings, name: str) -> Contract:
    """Return the contract of a folder as it is now, derived or not; raises DatasetUnknown, DeclarationRefused."""
    if name in derived_names(settings):
        return as_dataset(declared_derived(settings, name)).contract
    return declared_dataset(settings, name).contract


def released_contract(settings: Settings, name: str, release: str) -> Contract:
    """Return the contract of a release of any dataset; a derived one has only rules of gold tables."""
    if (snapshot_path(settings, name, release) / DERIVED).is_file():
        return as_dataset(released_derived(settings, name, release)).contract
    return released_dataset(settings, name, release).contract


@plain_dataclass(frozen=True, order=True)
class ColumnUse:
    """A column of a table that a text reads; `place`: file and line, such as `gold/taps_hours.sql:2`."""

    table: str
    column: str
    place: str


REFERENCE = "reference "


@plain_dataclass(frozen=True)
class LineageEdge:
    """`target` is computed from `source`; `by` names the step."""

    source: str
    target: str
    by: str


def lineage_edges(dataset: Dataset) -> Iterator[LineageEdge]:
    """Yield the edges from a dataset's topic to its gold tables."""
    name, pipeline = dataset.name, dataset.pipeline
    bronze, silver = f"bronze.{name}", f"silver.{name}"
    yield LineageEdge(f"topic {pipeline.topic}", bronze, "every record, byte for byte")
    yield LineageEdge(bronze, f"rejected.{name}", "records that break the contract, and duplicates")
    yield LineageEdge(bronze, silver, "contract.yaml, silver.py")
    for table in pipeline.reference:
        yield LineageEdge(f"{REFERENCE}{name}.{table.name}", silver, "joined as of the batch")
    yield from (LineageEdge(silver, gold.table, described_gold(gold)) for gold in pipeline.gold)


def derived_edges(derived: DerivedDataset) -> Iterator[LineageEdge]:
    """Yield the edges from the sources of a derived dataset to its gold tables."""
    for gold in derived.pipeline.gold:
        by = f"derived by {', '.join(gold.grain)}"
        yield from (LineageEdge(source, gold.table, by) for source in derived.pipeline.sources.values())


def described_gold(gold: Gold) -> str:
    """Describe kind and grain of a gold table, and what its rows are computed from, unless that is silver."""
    if gold.only_adds and gold.over is not None:
        return f"{'bad ' if gold.over.are_rejected else ''}elements of {gold.over.column}, a row for each"
    window, session = gold.window, gold.session
    grain = list(gold.grain_columns)
    if window is not None:
        grain[0] += f" ({window.size} every {window.slide})" if window.slide else f" ({window.size})"
    sessions = f", sessions with gaps of {session.gap}" if session else ""
    over = f" over {gold.over.name}" if gold.over else ""
    return f"{gold.kind} by {', '.join(grain)}{sessions}{over}"
