"""Health of one stream, for Airflow: what breaches its service level, and what ends a watch at once. Never acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from include.declare.dataset import DatasetUnknown
from include.declare.derived_dataset import all_dataset_names, derived_names
from include.declare.event_times import utc_text
from include.ground.settings import Settings
from include.observe.ledger_reader import DatasetTotals, LedgerReader, open_reader
from include.observe.processes import observe_process, observe_stream
from include.observe.progress import derived_progress, observe_dataset, totals_of, value_or_note
from include.state.process_states import RUNNER, ProcessState, ProcessStatus
from include.state.run_files import bootstrap_servers
from include.state.streams import desired_stream


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


FIGURES = ("batch", "lag_records", "lag_seconds", "watermark", "rejected_share", "sources_behind")


def stream_health(settings: Settings, dataset: str, ledger: LedgerReader | None = None) -> StreamHealth:
    """Return the health of a dataset's stream. Repeated calls with one `ledger` read its new runs alone.

    Raises DatasetUnknown.
    """
    if dataset not in (known := all_dataset_names(settings)):
        raise DatasetUnknown(dataset, known)
    notes, process = list[str](), observe_stream(settings, dataset)
    desired = value_or_note(notes, lambda: desired_stream(settings, dataset))
    if dataset in derived_names(settings):
        figures = _derived_figures(settings, dataset, process, notes)
    else:
        figures = _topic_figures(settings, dataset, process, notes, ledger or open_reader(settings))
    return StreamHealth(
        dataset=dataset,
        desired=desired is not None and desired.desired,
        requested_by=desired.by if desired else None,
        state=process.state,
        reason=process.detail,
        runner=observe_process(settings, RUNNER).state,
        **(dict.fromkeys(FIGURES) | figures),
        notes=tuple(dict.fromkeys(notes)),
    )


def _derived_figures(settings: Settings, dataset: str, process: ProcessStatus, notes: list[str]) -> dict[str, Any]:
    found = value_or_note(notes, lambda: derived_progress(settings, dataset, process))
    return {"batch": found.run, "lag_seconds": found.seconds, "sources_behind": found.behind} if found else {}


def _topic_figures(
    settings: Settings, dataset: str, process: ProcessStatus, notes: list[str], ledger: LedgerReader
) -> dict[str, Any]:
    totals = totals_of(value_or_note(notes, ledger.totals), dataset)
    bootstrap = value_or_note(notes, lambda: bootstrap_servers(settings))
    found = observe_dataset(settings, dataset, process, totals, bootstrap, notes, ledger)
    return {
        "batch": found.batches.published,
        "lag_records": found.lag.offsets,
        "lag_seconds": found.lag.seconds,
        "watermark": found.watermark.watermark if found.watermark else None,
        "rejected_share": rejected_share(found.release, totals),
    }


def rejected_share(release: str | None, totals: DatasetTotals | None) -> float | None:
    """Return the share of a release's records that are in `rejected`, None before the first record."""
    found = totals.releases.get(release) if totals and release else None
    if found is None:
        return None
    rejected = found.rejected
    return rejected / (rejected + found.accepted) if rejected + found.accepted else None


FAILED, RELEASED = "failed", "released"
# States in which nothing is refined or the state is unknown; each may be brief.
IDLE = {
    *(ProcessState.HALTED, ProcessState.UNKNOWN, ProcessState.CRASHED, ProcessState.LOST),
    *(ProcessState.PENDING, ProcessState.STARTING),
}


@dataclass(frozen=True)
class WatchResult:
    """Why a watch ends at once: FAILED or RELEASED, with a reason."""

    outcome: str
    why: str


def end_of_watch(health: StreamHealth) -> WatchResult | None:
    """Return the result that ends a watch at once: the stream was released, or gave up."""
    if not health.desired:
        return WatchResult(RELEASED, f"{health.dataset} is no longer requested: {health.requested_by} withdrew it")
    if health.state is ProcessState.FAILED:
        return WatchResult(FAILED, f"the stream of {health.dataset} gave up: {health.reason}")
    return None


def current_breaches(health: StreamHealth, lag_seconds: float) -> dict[str, str]:
    """Return what breaches the level now, by its kind; each may be brief."""
    found = {}
    if health.state in IDLE or health.state.terminal:
        found["state"] = f"the stream of {health.dataset} is {health.state.label}: {health.reason or 'no reason given'}"
    if health.lag_seconds is not None and health.lag_seconds > lag_seconds:
        found["lag"] = f"{health.dataset} is {health.lag_seconds:.0f} s behind, {lag_seconds:g} are allowed"
    if health.runner.terminal or health.runner is ProcessState.LOST:
        found["runner"] = f"the runner, which keeps {health.dataset} running, is {health.runner.label}"
    return found


def health_line(health: StreamHealth) -> str:
    """Return a stream's health as one line."""
    seconds = "" if health.lag_seconds is None else f" / {health.lag_seconds:.1f} s"
    watermark = "" if health.watermark is None else f", complete up to {utc_text(health.watermark, 'minutes')} UTC"
    rejected = "" if health.rejected_share is None else f", {health.rejected_share:.2%} rejected"
    reason = f" ({health.reason})" if health.reason else ""
    state = f"{health.dataset}: {health.state.label}{reason}, batch {health.batch}"
    return f"{state}, {_behind(health)}{seconds} behind{watermark}{rejected}"


def _behind(health: StreamHealth) -> str:
    """Return the backlog: records in Kafka, or published batches of the sources."""
    if health.sources_behind is None:
        return "lag unknown" if health.lag_records is None else f"{health.lag_records:,} records"
    counts = [("all" if count is None else f"{count:,}", table) for table, count in health.sources_behind.items()]
    return ", ".join(f"{count} batches of {table}" for count, table in counts) or "0 batches"
