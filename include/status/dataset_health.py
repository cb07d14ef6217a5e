"""How one stream is: what Airflow shows of it and judges it by. One look at each source; reads, never acts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from include.catalog.dataset import DatasetUnknown, dataset_names, released_dataset
from include.ledger.ledger_reader import ReleaseTotals, open_reader
from include.ledger.watermark import WatermarkProgress
from include.settings import Settings
from include.state.broker_address import bootstrap_servers
from include.state.desired_streams import desired_stream
from include.state.process_states import ProcessState
from include.status.process_status import observe_runner, observe_stream
from include.status.stream_progress import DatasetProgress, observe_dataset, totals_of, value_or_note


@dataclass(frozen=True)
class StreamHealth:
    """The current state of one stream; None marks an unknown value, `notes` give the reason.

    `requested_by` made the latest request to run or stop the stream (None: no request yet).
    `batch` is the last one that readers see; `lag_records` offsets in Kafka that are not published, `lag_seconds` the
    age of the oldest; `boundary` the event time up to which data is taken as complete; `rejected_share` the part of
    all records of the release that are in `rejected`, 0 to 1; `reason` what the state is about.
    """

    dataset: str
    desired: bool
    requested_by: str | None
    state: ProcessState
    batch: int | None
    lag_records: int | None
    lag_seconds: float | None
    boundary: datetime | None
    rejected_share: float | None
    reason: str
    runner: ProcessState
    notes: tuple[str, ...] = ()


def stream_health(settings: Settings, dataset: str) -> StreamHealth:
    """Return how the dataset's stream is; who looks again and again takes a Watch. DatasetUnknown."""
    return StreamObserver(settings, dataset).observe()


class StreamObserver:
    """Looks at one stream again and again, and reads of the ledger only what is new since the last look."""

    def __init__(self, settings: Settings, dataset: str) -> None:
        if dataset not in (known := dataset_names(settings)):
            raise DatasetUnknown(dataset, known)
        self.settings, self.dataset = settings, dataset
        self._ledger = open_reader(settings)
        self._release = ""
        self._reached = WatermarkProgress(timedelta())

    def observe(self) -> StreamHealth:
        """Return how the stream is now."""
        settings, dataset, notes = self.settings, self.dataset, list[str]()
        desired = value_or_note(notes, lambda: desired_stream(settings, dataset))
        totals = totals_of(value_or_note(notes, self._ledger.totals), dataset)
        bootstrap = value_or_note(notes, lambda: bootstrap_servers(settings))
        process = observe_stream(settings, dataset)
        seen = observe_dataset(settings, dataset, process, totals, bootstrap, notes)
        return StreamHealth(
            dataset=dataset,
            desired=desired is not None and desired.desired,
            requested_by=desired.by if desired else None,
            state=process.state,
            batch=seen.batches.published,
            lag_records=seen.lag.offsets,
            lag_seconds=seen.lag.seconds,
            boundary=value_or_note(notes, lambda: self._boundary(seen)),
            rejected_share=rejected_share(totals.releases.get(seen.release) if totals and seen.release else None),
            reason=process.detail,
            runner=observe_runner(settings).state,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _boundary(self, seen: DatasetProgress) -> datetime | None:
        """The boundary of the release that runs; errors of ledger and catalog."""
        if seen.release is None or seen.batches.published is None:
            return None
        if seen.release != self._release:
            declared = released_dataset(self.settings, self.dataset, seen.release)
            self._release, self._reached = seen.release, WatermarkProgress(declared.pipeline.lateness)
        runs, _ = self._ledger.event_times(self.dataset, seen.release, after=self._reached.batch)
        for batch, text in runs:
            self._reached.advance(batch, text)
        return self._reached.watermark


def rejected_share(totals: ReleaseTotals | None) -> float | None:
    """Return the part of a release's records that are in `rejected`, None before the first record."""
    if totals is None:
        return None
    rejected = totals.invalid + totals.duplicate
    return rejected / (rejected + totals.accepted) if rejected + totals.accepted else None
