"""Health of one stream, for Airflow: state, batch, lag, watermark, share of rejected records. Reads; never acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from include.declare.dataset import DatasetUnknown
from include.declare.derived_dataset import all_dataset_names, derived_names
from include.ground.settings import Settings
from include.observe.derived_progress import derived_progress
from include.observe.ledger_reader import DatasetTotals, open_reader
from include.observe.process_status import observe_runner, observe_stream
from include.observe.stream_progress import observe_dataset, totals_of, value_or_note
from include.state.broker_address import bootstrap_servers
from include.state.desired_streams import desired_stream
from include.state.process_states import ProcessState


@dataclass(frozen=True)
class StreamHealth:
    """The current state of one stream; None marks an unknown value, `notes` give the reason.

    `requested_by` made the latest request to run or stop the stream (None: no request yet).
    `batch` is the last published one; `lag_records` the offsets in Kafka that are not published, `lag_seconds` the age
    of the oldest; `watermark` the event time up to which data counts as complete; `rejected_share` the share of the
    release's records that are in `rejected`, 0 to 1; `reason` explains the state. Of a derived dataset `batch` is its
    last run, `lag_seconds` for how long it has been behind, and `sources_behind` how many published batches of each
    source it has not used (None: it has used none yet, or another release); only sources with some.
    """

    dataset: str
    desired: bool
    requested_by: str | None
    state: ProcessState
    batch: int | None
    lag_records: int | None
    lag_seconds: float | None
    watermark: datetime | None
    rejected_share: float | None
    reason: str
    runner: ProcessState
    notes: tuple[str, ...] = ()
    sources_behind: Mapping[str, int | None] | None = None


def stream_health(settings: Settings, dataset: str) -> StreamHealth:
    """Return the health of a dataset's stream; repeated calls should use an observer. Raises DatasetUnknown."""
    return observer_of(settings, dataset).observe()


class HealthObserver(Protocol):
    """Observes one stream repeatedly."""

    def observe(self) -> StreamHealth:
        """Return the stream's current health."""


def observer_of(settings: Settings, dataset: str) -> HealthObserver:
    """Return the observer of a dataset's stream, derived or not. Raises DatasetUnknown."""
    if dataset not in (known := all_dataset_names(settings)):
        raise DatasetUnknown(dataset, known)
    return (
        DerivedObserver(settings, dataset) if dataset in derived_names(settings) else StreamObserver(settings, dataset)
    )


class DerivedObserver:
    """Observes the driver of a derived dataset, which has no topic and no watermark."""

    def __init__(self, settings: Settings, dataset: str) -> None:
        self.settings, self.dataset = settings, dataset

    def observe(self) -> StreamHealth:
        """Return the driver's current health."""
        settings, dataset, notes = self.settings, self.dataset, list[str]()
        desired = value_or_note(notes, lambda: desired_stream(settings, dataset))
        process = observe_stream(settings, dataset)
        progress = value_or_note(notes, lambda: derived_progress(settings, dataset, process))
        return StreamHealth(
            dataset=dataset,
            desired=desired is not None and desired.desired,
            requested_by=desired.by if desired else None,
            state=process.state,
            batch=progress.run if progress else None,
            lag_records=None,
            lag_seconds=progress.seconds if progress else None,
            watermark=None,
            rejected_share=None,
            reason=process.detail,
            runner=observe_runner(settings).state,
            notes=tuple(dict.fromkeys(notes)),
            sources_behind=progress.behind if progress else None,
        )


class StreamObserver:
    """Observes the stream of a topic repeatedly; each observation reads only the ledger's new runs."""

    def __init__(self, settings: Settings, dataset: str) -> None:
        self.settings, self.dataset = settings, dataset
        self._ledger = open_reader(settings)

    def observe(self) -> StreamHealth:
        """Return the stream's current health."""
        settings, dataset, notes = self.settings, self.dataset, list[str]()
        desired = value_or_note(notes, lambda: desired_stream(settings, dataset))
        totals = totals_of(value_or_note(notes, self._ledger.totals), dataset)
        bootstrap = value_or_note(notes, lambda: bootstrap_servers(settings))
        process = observe_stream(settings, dataset)
        progress = observe_dataset(settings, dataset, process, totals, bootstrap, notes, self._ledger)
        return StreamHealth(
            dataset=dataset,
            desired=desired is not None and desired.desired,
            requested_by=desired.by if desired else None,
            state=process.state,
            batch=progress.batches.published,
            lag_records=progress.lag.offsets,
            lag_seconds=progress.lag.seconds,
            watermark=progress.watermark.watermark if progress.watermark else None,
            rejected_share=rejected_share(progress.release, totals),
            reason=process.detail,
            runner=observe_runner(settings).state,
            notes=tuple(dict.fromkeys(notes)),
        )


def rejected_share(release: str | None, totals: DatasetTotals | None) -> float | None:
    """Return the share of a release's records that are in `rejected`, None before the first record."""
    found = totals.releases.get(release) if totals and release else None
    if found is None:
        return None
    rejected = found.rejected
    return rejected / (rejected + found.accepted) if rejected + found.accepted else None
