"""Progress of all datasets: processes, batches, rates, lag and rows per layer; each source is read once.

Reads run and status files, publications, the ledger and Kafka's offsets; never acts. An unknown value is None,
with a note that says why: a broken part must not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from include.declare.contract_file import has_earlier_types
from include.declare.dataset import code_hash, content_hash, dataset_names, declared_dataset
from include.declare.derived_dataset import all_dataset_names, derived_names, load_derived
from include.declare.gold import full_name
from include.declare.pipeline import load_pipeline
from include.declare.release_diff import TableChange, folder_changes
from include.declare.time_zones import changed_zones
from include.ground.delta_log import LogDamaged, refuse_lost_commits
from include.ground.errors import HeadraceError
from include.ground.kafka import TopicMissing, log_end_offsets, log_start_offsets, readable_end_offsets
from include.ground.paths import local_warehouse, snapshot_path
from include.ground.settings import Settings
from include.observe.ledger_reader import DatasetTotals, LedgerReader, ReleaseTotals, open_reader
from include.observe.processes import (
    is_started,
    observe_jobs,
    observe_optional,
    observe_process,
    observe_processes,
    started_datasets,
)
from include.observe.watermark import WatermarkStatus, watermark_status
from include.read.publication import (
    Publication,
    PublishedTable,
    batches_behind,
    find_publication,
    published_tables,
    tables_of,
)
from include.read.published_tables import table_stats
from include.state.lease_table import LeaseRow, held_leases
from include.state.process_states import AIRFLOW, RUNNER, ProcessStatus, stream_name
from include.state.run_files import bootstrap_servers
from include.state.streams import DriverStatus, LastRun, desired_stream, stream_status


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


KAFKA_SECONDS = 3.0
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class TopicExtent:
    """Offsets [start, end) of a topic's partitions that a `read_committed` consumer can read now.

    `uncommitted`: offsets after `end`, from the first open transaction on; only partitions that have some.
    """

    start: Mapping[int, int]
    end: Mapping[int, int]
    uncommitted: Mapping[int, int] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """Number of offsets: at least the number of records, more when some offsets have none."""
        return sum(self.end[part] - self.start.get(part, 0) for part in self.end)


@dataclass(frozen=True)
class Batches:
    """The last batch in bronze, the last refined one and the last published one; None before the first."""

    ingested: int | None
    refined: int | None
    published: int | None


@dataclass(frozen=True)
class Lag:
    """How far readers are behind Kafka: `offsets` (records, or more: offsets may have holes) and `seconds`, the age of
    the oldest unpublished record. None: unknown. `uncommitted`: offsets behind an open transaction, which
    nobody can read before it ends; they are not among `offsets`."""

    offsets: int | None
    seconds: float | None
    uncommitted: int | None = 0


@dataclass(frozen=True)
class DatasetProgress:
    """One dataset. `rates` are rows/s by `ingest` and `refine`; `rows` by kafka (offsets), bronze, silver, rejected and
    each gold table, in this order; `rejected` by reason. `folder_differs`: the folder is not the release that runs,
    `changes`: how."""

    dataset: str
    process: ProcessStatus
    release: str | None
    folder_differs: bool | None
    batches: Batches
    rates: Mapping[str, float | None]
    lag: Lag
    rows: Mapping[str, int | None]
    rejected: Mapping[str, int]
    reported: DriverStatus
    changes: Sequence[TableChange] = ()
    warned: Mapping[str, int] = field(default_factory=dict)
    """Records that broke a rule which only warns, by rule."""
    watermark: WatermarkStatus | None = None
    """None before the first publication, and when it is not known."""


@dataclass(frozen=True)
class Progress:
    """One observation of everything; `notes` give the reason for each unknown value."""

    at: datetime
    processes: tuple[ProcessStatus, ...]
    datasets: tuple[DatasetProgress, ...]
    notes: tuple[str, ...]
    derived: tuple[DerivedProgress, ...] = ()
    leases: tuple[LeaseRow, ...] = ()
    """With HEADRACE_LEASE_URL: who holds what, on which host."""


def observe_progress(settings: Settings, ledger: LedgerReader | None = None) -> Progress:
    """Return the progress of every process and dataset; a loop passes its `ledger` reader.

    The error of one source becomes a note.
    """
    notes: list[str] = []
    names, ledger = dataset_names(settings), ledger or open_reader(settings)
    known = sorted({*all_dataset_names(settings), *started_datasets(settings)})
    pages = [each for each in (*observe_optional(settings), observe_process(settings, AIRFLOW)) if is_started(each)]
    processes = (*observe_processes(settings, known), *pages, *observe_jobs(settings))
    # Before the first publication nobody misses a ledger or a broker.
    missing = notes if any(local_warehouse(settings).glob("*/publication.json")) else []
    totals = value_or_note(missing, ledger.totals)
    bootstrap = value_or_note(missing, lambda: bootstrap_servers(settings))
    by_name = {process.name: process for process in processes}
    datasets = tuple(
        observe_dataset(settings, name, by_name[stream_name(name)], totals_of(totals, name), bootstrap, notes, ledger)
        for name in names
    )
    derived = observe_derived(settings, {name: by_name[stream_name(name)] for name in known}, notes)
    leases = tuple(value_or_note(notes, lambda: held_leases(settings)) or ())
    return Progress(datetime.now(UTC), processes, datasets, tuple(dict.fromkeys(notes)), tuple(derived), leases)


def value_or_note(notes: list[str], question: Callable[[], Answer]) -> Answer | None:
    """Return the result of a call, or None with the error's text among the notes."""
    try:
        return question()
    except HeadraceError as error:
        notes.append(error.what)
        return None


def totals_of(totals: Mapping[str, DatasetTotals] | None, dataset: str) -> DatasetTotals | None:
    """Return a dataset's totals, zeros when the ledger has no rows of it, None when the ledger does not answer."""
    return None if totals is None else totals.get(dataset, DatasetTotals(dataset, None, 0, {}))


def observe_dataset(
    settings: Settings,
    dataset: str,
    process: ProcessStatus,
    totals: DatasetTotals | None,
    bootstrap: str | None,
    notes: list[str],
    ledger: LedgerReader,
) -> DatasetProgress:
    """Return the progress of one dataset; `totals` and `bootstrap` are None when ledger or broker do not answer."""
    reported = stream_status(settings, dataset)
    publication = value_or_note(notes, lambda: find_publication(settings, dataset))
    extent = value_or_note(notes, lambda: _topic_extent(settings, dataset, bootstrap)) if bootstrap else None
    release = reported.release or (publication.release if publication else None)
    refined = totals.releases.get(release) if totals and release else None
    differs = None if release is None else is_outdated(settings, dataset, release)

    def watermark() -> WatermarkStatus | None:
        if publication is None:
            return None
        behind = None if extent is None else offsets_behind(extent, publication)
        uncommitted = extent.uncommitted if extent else {}
        return watermark_status(settings, publication, ledger, behind, uncommitted)

    return DatasetProgress(
        dataset=dataset,
        process=process,
        release=release,
        folder_differs=differs,
        changes=folder_changes(settings, dataset, release) if differs and release else (),
        batches=Batches(
            _batch(reported.ingested_batch, totals.last_batch if totals else None),
            _batch(reported.refined_batch, refined.last_batch if refined else None),
            publication.batch if publication else None,
        ),
        # 0 when the driver is gone, None when it has not reported.
        rates={kind: reported.rates.get(kind) if process.pid else 0.0 for kind in ("ingest", "refine")},
        lag=_lag(reported.lag_seconds if process.pid else None, extent, publication),
        rows=_rows_per_layer(extent, totals, refined),
        rejected=dict(refined.reasons) if refined else {},
        warned=dict(refined.warned) if refined else {},
        reported=reported,
        watermark=value_or_note(notes, watermark),
    )


def _batch(reported: int, entered: int | None) -> int | None:
    """Return the driver's number where it reported one, else the ledger's; -1 means none yet."""
    found = entered if reported < 0 else reported
    return None if found is None or found < 0 else found


def is_outdated(settings: Settings, dataset: str, release: str) -> bool:
    """Return whether a release of the folder would be another one, also by other rules of time zones or types alone."""
    if content_hash(settings.datasets / dataset) != code_hash(settings, dataset, release):
        return True
    snapshot = snapshot_path(settings, dataset, release)
    return bool(changed_zones(snapshot)) or has_earlier_types(snapshot)


def _topic_extent(settings: Settings, dataset: str, bootstrap: str) -> TopicExtent:
    """Return the offsets of the dataset's topic; none when the topic does not exist yet."""
    topic = load_pipeline(settings.datasets / dataset).topic
    try:
        start = log_start_offsets(bootstrap, topic, KAFKA_SECONDS)
        written = log_end_offsets(bootstrap, topic, KAFKA_SECONDS)
        # Read after `written`: records that arrive in between do not count as an open transaction.
        end = readable_end_offsets(bootstrap, topic, KAFKA_SECONDS)
        return TopicExtent(start, end, {p: written[p] - end[p] for p in end if written.get(p, 0) > end[p]})
    except TopicMissing:
        return TopicExtent({}, {})


def _lag(seconds: float | None, extent: TopicExtent | None, publication: Publication | None) -> Lag:
    if extent is None:
        return Lag(None, seconds, None)
    behind, uncommitted = sum(offsets_behind(extent, publication).values()), sum(extent.uncommitted.values())
    return Lag(behind, seconds, uncommitted) if behind or uncommitted else Lag(0, 0.0)


def offsets_behind(extent: TopicExtent, publication: Publication | None) -> dict[int, int]:
    """Return, for each partition that is not published to its end, the offsets that are missing."""
    published = publication.offsets if publication else {}
    missing = {part: end - published.get(part, extent.start.get(part, 0)) for part, end in extent.end.items()}
    return {part: count for part, count in missing.items() if count > 0}


def _rows_per_layer(
    extent: TopicExtent | None, totals: DatasetTotals | None, refined: ReleaseTotals | None
) -> dict[str, int | None]:
    """Return rows (Kafka: offsets) per layer; None where source or ledger do not answer."""
    nothing = 0 if totals else None
    rows: dict[str, int | None] = {
        "kafka": extent.offsets if extent else None,
        "bronze": totals.bronze if totals else None,
        "silver": refined.accepted if refined else nothing,
        "rejected": refined.rejected if refined else nothing,
    }
    gold = refined.gold if refined else {}
    return rows | {full_name(table): total for table, total in gold.items()}


@dataclass(frozen=True)
class CatchUpProgress:
    """What `wait --caught-up` polls: `behind` and `uncommitted` offsets per dataset and partition; `ends` shows whether
    two observations differ; `blocked_by`: why waiting cannot help (None: it may)."""

    behind: Mapping[str, Mapping[int, int]]
    ends: Mapping[str, Mapping[int, int]]
    unknown: tuple[str, ...]
    blocked_by: str | None
    uncommitted: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    unfollowed: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    """By derived dataset the sources of which it has not used all batches, with how many."""
    unrefreshed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By dataset the gold tables that their refresh leaves behind, with the batch that they have."""

    @property
    def caught_up(self) -> bool:
        """Whether everything in Kafka is published and can be read, in derived datasets too."""
        waiting = self.behind or self.uncommitted or self.unfollowed or self.unrefreshed
        return not waiting and not self.unknown


def observe_catch_up(settings: Settings, datasets: list[str]) -> CatchUpProgress:
    """Return what the datasets' publications lack; without names: of all datasets that have a topic, and of derived
    ones whose stream is requested.

    A topic that does not exist or is empty lacks nothing. Raises DatasetUnknown.
    """
    chosen = datasets or [*dataset_names(settings), *requested_derived(settings)]
    derived = [name for name in chosen if name in derived_names(settings)]
    names = [declared_dataset(settings, name).name for name in chosen if name not in derived]
    notes: list[str] = []
    known = known_extents(settings, names, notes)
    published = {name: find_publication(settings, name) for name in known}
    behind = {
        name: missing
        for name, extent in known.items()
        if extent.offsets and (missing := offsets_behind(extent, published[name]))
    }
    for name, publication in published.items():
        if publication is not None:
            notes += contradictions(settings, publication, known[name])
    ends = {name: extent.end for name, extent in known.items()}
    uncommitted = {name: extent.uncommitted for name, extent in known.items() if extent.uncommitted}
    unfollowed = {name: unused for name in derived if (unused := sources_behind(settings, name))}
    unrefreshed = {name: found for name, each in published.items() if each and (found := batches_behind(each))}
    blocked_by = blocking_process(observe_processes(settings, sorted({*behind, *unfollowed, *unrefreshed})))
    return CatchUpProgress(behind, ends, tuple(notes), blocked_by, uncommitted, unfollowed, unrefreshed)


def requested_derived(settings: Settings) -> list[str]:
    """Return the derived datasets whose driver is requested and whose sources are all published."""
    published = published_tables(settings)
    return [
        name
        for name in derived_names(settings)
        if (request := desired_stream(settings, name)) is not None
        and request.desired
        and set(load_derived(name, settings.datasets / name, strict=False).pipeline.sources.values()) <= set(published)
    ]


def contradictions(settings: Settings, publication: Publication, extent: TopicExtent) -> list[str]:
    """Return why the published offsets cannot be trusted: Kafka lost published records, or a table lost commits."""
    name, found = publication.dataset, []
    for partition, end in publication.offsets.items():
        if extent.end.get(partition, 0) < end:
            readable = extent.end.get(partition, 0)
            found.append(f"{name}: partition {partition} is published up to {end}, Kafka has it up to {readable}")
    for table in tables_of(settings, publication).values():
        try:
            refuse_lost_commits(table.path, table.version)
        except LogDamaged as error:
            found.append(f"{table.name} cannot be read: {error.what}")
    return found


def known_extents(settings: Settings, names: list[str], notes: list[str]) -> dict[str, TopicExtent]:
    """Return the offsets of the datasets' topics; a note instead of those that do not answer."""
    bootstrap = value_or_note(notes, lambda: bootstrap_servers(settings))
    if bootstrap is None:
        return {}
    found = {name: value_or_note(notes, partial(_topic_extent, settings, name, bootstrap)) for name in names}
    return {name: extent for name, extent in found.items() if extent is not None}


def blocking_process(needed: list[ProcessStatus]) -> str | None:
    """Return why a process that is gone cannot finish the work, None when all needed ones run or will be started."""
    for process in needed:
        # A process that only the runner would start stays down when the runner is gone.
        if process.name != RUNNER and process.state.terminal:
            reported = f": {process.detail}" if process.detail else ""
            return f"{process.name} is {process.state.label}{reported}"
    return None
