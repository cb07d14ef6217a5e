"""Progress of derived datasets: the publication of each against those of its sources.

Reads publications, status files and Delta logs; never acts. An unknown value is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from include.declare.dataset import content_hash
from include.declare.derived_dataset import derived_names, load_derived
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.read.publication import Publication, PublishedTable, find_publication, published_tables, tables_of
from include.read.published_tables import table_stats
from include.state.driver_status import LastRun, stream_status
from include.state.process_states import ProcessStatus


@dataclass(frozen=True)
class DerivedProgress:
    """One derived dataset. `behind`: by source, how many published batches it has not used yet, None when it has used
    another release of it or none; `seconds`: for how long its driver has been behind; `rows` by gold table.
    """

    dataset: str
    process: ProcessStatus
    release: str | None
    folder_differs: bool | None
    run: int | None
    behind: Mapping[str, int | None] = field(default_factory=dict)
    seconds: float | None = None
    rows: Mapping[str, int | None] = field(default_factory=dict)
    last_run: LastRun | None = None


def observe_derived(
    settings: Settings, processes: Mapping[str, ProcessStatus], notes: list[str]
) -> list[DerivedProgress]:
    """Return the progress of every derived dataset; `processes` by dataset. The error of one becomes a note."""
    found = []
    for name in derived_names(settings):
        try:
            found.append(derived_progress(settings, name, processes[name]))
        except HeadraceError as error:
            notes.append(error.what)
    return found


def sources_behind(settings: Settings, name: str) -> dict[str, int | None]:
    """Return by source how many published batches a derived dataset has not used; only sources with some.

    None: it has used none, or another release. Raises DeclarationRefused, PublicationUnreadable.
    """
    published, publication = published_tables(settings), find_publication(settings, name)
    sources = load_derived(name, settings.datasets / name, strict=False).pipeline.sources.values()
    found = {table: _batches_behind(published.get(table), publication, table) for table in sources}
    return {table: behind for table, behind in found.items() if behind != 0}


def _batches_behind(now: PublishedTable | None, publication: Publication | None, table: str) -> int | None:
    used = publication.sources.get(table) if publication else None
    if now is None or used is None:
        return None
    return now.batch - used.batch if now.release == used.release else None


def derived_progress(settings: Settings, name: str, process: ProcessStatus) -> DerivedProgress:
    """Return the progress of one derived dataset. Raises DeclarationRefused, PublicationUnreadable."""
    publication, reported = find_publication(settings, name), stream_status(settings, name)
    release = publication.release if publication else reported.release or None
    tables = tables_of(settings, publication) if publication else {}
    return DerivedProgress(
        dataset=name,
        process=process,
        release=release,
        folder_differs=None if release is None else content_hash(settings.datasets / name) != release,
        run=publication.batch if publication else None,
        behind=sources_behind(settings, name),
        seconds=reported.lag_seconds if process.pid else None,
        rows={table: table_stats(each).rows for table, each in tables.items()},
        last_run=reported.last_batch,
    )
