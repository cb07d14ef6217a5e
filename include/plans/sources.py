"""What moves a derived dataset: the versions of its sources that a release reads, and requests that wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from include.declare.derived_dataset import ColumnUse, DerivedDataset
from include.ground.errors import Terminal
from include.ground.paths import warehouse
from include.ground.settings import Settings
from include.plans.reader_effects import ColumnTypes, release_together
from include.read.publication import SourceVersion, find_publication, published_tables
from include.read.published_tables import table_columns
from include.state.owner_requests import OwnerRequest, pending_request, withdraw_request


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
