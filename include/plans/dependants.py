"""Readers of tables, derived datasets and analyses: what a release does to them, and the versions that they read.

A reader is held to what its released snapshot reads. Types are judged by Spark, which analysed the reader's queries
over the new tables while these were built; without that, a column of another type counts as a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from include.declare.derived_dataset import ColumnUse, DerivedDataset
from include.ground.errors import Terminal
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.read.publication import SourceVersion, find_publication, published_tables
from include.read.published_tables import table_columns
from include.state.owner_requests import OwnerRequest, pending_request, withdraw_request

ColumnTypes = Mapping[str, Mapping[str, str]]
"""The columns of tables with their types, by full name."""
AFFECTED, NOT_AFFECTED = "breaks", "not affected"


@dataclass(frozen=True)
class Reader:
    """A derived dataset at its published release, or an analysis, with the columns that it reads.

    `is_running`: its driver runs or is requested; an analysis runs by a command alone.
    """

    name: str
    release: str
    is_running: bool
    uses: Sequence[ColumnUse]


@dataclass(frozen=True)
class Analysed:
    """What Spark says of a reader's release over the new tables; no `faults`: each query is valid as before."""

    release: str
    faults: Sequence[str] = ()


@dataclass(frozen=True)
class Effect:
    """What a release does to one reader; `faults` is empty when it does not affect it."""

    reader: str
    release: str
    is_running: bool
    faults: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """Whether the release may not be published now: a running reader would stand still."""
        return self.is_running and bool(self.faults)

    @property
    def sentence(self) -> str:
        if not self.faults:
            return f"{self.reader}: {NOT_AFFECTED}"
        state = "" if self.is_running or self.reader.startswith("analysis.") else " (it is stopped)"
        return f"{self.reader} {AFFECTED}{state}: {'; '.join(self.faults)}"


def dependants_break(subject: str, effects: Sequence[Effect], remedy: str) -> Terminal:
    """Return that running readers of the tables would stand still; `effects` are those that hold the change."""
    broken = "; ".join(effect.sentence for effect in effects)
    what = f"{subject} is held: {broken}; what readers see is unchanged"
    return Terminal(what, remedy, code="dependants-break", effects=effects)


ANALYSED = TypeAdapter(dict[str, Analysed])


def effects_on(
    readers: Iterable[Reader], before: ColumnTypes, after: ColumnTypes, analysed: Mapping[str, Analysed]
) -> list[Effect]:
    """Return what replacing the tables `before` by `after` does to each reader that reads one of them."""
    reading = [reader for reader in readers if any(use.table in before for use in reader.uses)]
    return [
        Effect(each.name, each.release, each.is_running, tuple(_faults(each, before, after, analysed.get(each.name))))
        for each in reading
    ]


def holding(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects that hold a release."""
    return [effect for effect in effects if effect.holds]


def release_together(dataset: str, members: Iterable[str]) -> str:
    """Return the command that releases a dataset together with its dependants."""
    return f"headrace release run --dataset {dataset}{''.join(f' --with {name}' for name in members)}"


def held_remedy(dataset: str, plan: str, members: Iterable[str], effects: Sequence[Effect]) -> str:
    """Return the commands that lead on from a held plan: release the readers with it, or stop them."""
    readers = [effect.reader for effect in effects]
    folders = ", ".join(f"include/datasets/{reader}/" for reader in readers)
    together = release_together(dataset, dict.fromkeys([*members, *readers]))
    return (
        f"correct {folders}, then headrace plan cancel {plan} && {together}   (releases them together); "
        f"or headrace down {' '.join(readers)} && headrace plan apply {plan}"
    )


def rollback_remedy(plan: str, released: Mapping[str, str | None]) -> str:
    """Return the commands that roll a plan back after its readers.

    `released`: by reader the plan that published its release; a reader without one is stopped instead.
    """
    steps = [
        f"headrace plan rollback {known}" if known else f"headrace down {reader}" for reader, known in released.items()
    ]
    return " && ".join([*dict.fromkeys(steps), f"headrace plan rollback {plan}"])


def _faults(reader: Reader, before: ColumnTypes, after: ColumnTypes, known: Analysed | None) -> Sequence[str]:
    """Return what a reader loses; a column that is missing already is not taken away."""
    changed = [use for use in reader.uses if _type(before, use) not in (None, _type(after, use))]
    if lost := [use for use in changed if _type(after, use) is None]:
        return [_loss(use, after) for use in lost]
    if known is not None and known.release == reader.release:
        return known.faults if changed else ()
    return [
        f"{use.place} reads {use.column} of {use.table}, {_type(before, use)} → {_type(after, use)}" for use in changed
    ]


def _loss(use: ColumnUse, after: ColumnTypes) -> str:
    if use.table not in after:
        return f"{use.place} reads {use.column} of {use.table}, a table that would no longer exist"
    return f"{use.place} reads {use.column}, which {use.table} would no longer have"


def _type(tables: ColumnTypes, use: ColumnUse) -> str | None:
    return {name.lower(): kind for name, kind in tables.get(use.table, {}).items()}.get(use.column)


def is_due(settings: Settings, request: OwnerRequest) -> bool:
    """Return whether the releases are published that a request comes after."""
    return all(_published(settings, dataset) == release for dataset, release in request.after.items())


def can_come(settings: Settings, request: OwnerRequest) -> bool:
    """Return whether each dataset that a request comes after has one of the plan's two releases.

    With a third one published, the plan moves it no more.
    """
    return all(
        _published(settings, dataset) in (request.after[dataset], other) for dataset, other in request.instead.items()
    )


def awaited_moves(settings: Settings, request: OwnerRequest) -> str:
    """Return in words which moves a request waits for, and the command that continues them; "" when it is due."""
    missing = [f"{each} {of}" for each, of in request.after.items() if _published(settings, each) != of]
    if not missing:
        return ""
    return f"{request.requester} has to publish {', '.join(missing)} first: {request.again or 'headrace plan list'}"


def drop_obsolete(settings: Settings, dataset: str) -> OwnerRequest | None:
    """Remove the pending request if it can never be due, and return it. Raises StateFileUnreadable."""
    request = pending_request(settings, dataset)
    if request is None or can_come(settings, request):
        return None
    withdraw_request(settings, dataset)
    return request


def _published(settings: Settings, dataset: str) -> str | None:
    publication = find_publication(settings, dataset)
    return publication.release if publication is not None else None


Versions = Mapping[str, SourceVersion]
"""Versions of tables by full name."""


class SourcesLackColumns(Terminal):
    """The tables that a derived dataset reads have no such columns; `missing` are the places that read them."""

    def __init__(self, dataset: str, missing: Sequence[ColumnUse], versions: Versions) -> None:
        owners = {table: each.path.partition("/")[0] for table, each in versions.items()}
        lacking = "; ".join(
            f"{use.place} reads {use.column}, and {owners[use.table]} published at release "
            f"{versions[use.table].release} has no {use.table}.{use.column}"
            for use in missing
        )
        first = owners[missing[0].table]
        super().__init__(
            f"{dataset}: {lacking}; readers keep the last publication",
            f"correct include/datasets/{dataset}/, then headrace release run --dataset {dataset}; or, where the folder "
            f"of {first} has the column, {release_together(first, [dataset])}",
        )
        self.dataset, self.missing = dataset, tuple(missing)


def published_versions(settings: Settings, names: Iterable[str]) -> Versions:
    """Return the published versions of tables, without the digests of their commits."""
    tables, root = published_tables(settings), warehouse(settings)
    found = {name: tables[name] for name in names if name in tables}
    return {
        name: SourceVersion(each.path.relative_to(root).as_posix(), each.version, each.release, each.batch, "")
        for name, each in found.items()
    }


def columns_at(settings: Settings, versions: Versions) -> ColumnTypes:
    """Return the columns of tables at these versions."""
    root = warehouse(settings)
    return {table: table_columns(root / each.path) for table, each in versions.items()}


def missing_columns(derived: DerivedDataset, columns: ColumnTypes, also: ColumnTypes | None = None) -> list[ColumnUse]:
    """Return what a derived dataset reads and its sources lack; `also`: columns that they have elsewhere."""
    # sqlglot takes half a second to import: only those who check need it.
    from include.declare.column_lineage import derived_uses

    known = {table: {**columns.get(table, {}), **(also or {}).get(table, {})} for table in {*columns, *(also or {})}}
    has = {table: {name.lower() for name in found} for table, found in columns.items()}
    return [use for use in derived_uses(derived, known) if use.table in has and use.column not in has[use.table]]


def readable_versions(settings: Settings, derived: DerivedDataset, used: Versions, current: Versions) -> Versions:
    """Return the versions that the published release has used, or the current ones where only they have the columns.

    Raises SourcesLackColumns when the current ones lack them: the release follows these once it is published.
    """
    before, now = columns_at(settings, used), columns_at(settings, current)
    if missing := missing_columns(derived, now, before):
        raise SourcesLackColumns(derived.name, missing, current)
    return current if missing_columns(derived, before, now) else used


def refuse_lacking(settings: Settings, derived: DerivedDataset, last: Versions, current: Versions) -> None:
    """Raise SourcesLackColumns when a source has another release than `last`, without columns that are read."""
    moved = [table for table, each in current.items() if table not in last or last[table].release != each.release]
    if moved and (missing := missing_columns(derived, columns_at(settings, current), columns_at(settings, last))):
        raise SourcesLackColumns(derived.name, missing, current)
