"""Progress in a driver's status: batches, rates, offsets, lag."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from include.ground.errors import HeadraceError
from include.ground.kafka import log_end_offsets
from include.ground.kafka_times import arrivals, is_arrival
from include.ground.readable_offsets import readable_end_offsets
from include.state.broker_address import bootstrap_servers
from include.state.driver_status import DriverStatus, LastRun
from spark_jobs.layers.release import refined_batch
from spark_jobs.stream.active_releases import ActiveReleases
from spark_jobs.stream.ingest import Ingest
from spark_jobs.stream.refine import RunReport
from spark_jobs.stream.status_reporter import StatusReporter
from spark_jobs.tables.batches import batch_commit
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import BATCH, Table

READABLE_AFTER = 30.0
"""Seconds without a batch after which the driver checks whether an open transaction holds the records back."""


def refresh_progress(reporter: StatusReporter, ingest: Ingest, active: ActiveReleases) -> None:
    """Update the status from tables and Kafka; a broker that does not answer leaves the lag unknown (None)."""
    status, refined = reporter.status, refined_batch(active.published.release)
    status.ingested_batch = ingest.last_batch
    status.refined_batch = max(status.refined_batch, refined)
    status.ingested = dict(ingest.ingested)
    status.rates["ingest"] = round(ingest.rows / ingest.seconds, 1) if ingest.seconds else 0.0
    try:
        topic = ingest.dataset.pipeline.topic
        ends = log_end_offsets(bootstrap_servers(ingest.settings), topic, timeout=2.0)
    except HeadraceError as error:
        reporter.waiting_for, status.lag_seconds = error.what, None
        ingest.progress = time.monotonic()
        ingest.quiet.forget()
        return
    reporter.waiting_for = None
    status.log_end = dict(ends)
    ingest.quiet.look(ingest.ingested, ends)
    status.lag_seconds = lag_seconds(ingest, refined, ends, time.time())
    if not has_records(ingest, ends):
        ingest.progress = time.monotonic()


def has_records(ingest: Ingest, log_end: Mapping[int, int]) -> bool:
    """Whether Kafka has records for ingest; behind an open transaction it has none."""
    behind = any(ingest.ingested.get(p, ingest.generation.start.get(p, 0)) < end for p, end in log_end.items())
    if not behind or time.monotonic() - ingest.progress < READABLE_AFTER:
        return behind
    ends = readable_end_offsets(bootstrap_servers(ingest.settings), ingest.generation.topic, timeout=2.0)
    return any(ingest.ingested.get(p, ingest.generation.start.get(p, 0)) < end for p, end in ends.items())


def lag_seconds(ingest: Ingest, refined: int, log_end: Mapping[int, int], now: float) -> float | None:
    """Return the age in seconds of the oldest bronze record after batch `refined`.

    0 when all of Kafka is published, None while only records wait that bronze lacks.
    """
    waiting = ingest.bronze.batch_files(refined + 1, sys.maxsize)
    if waiting:
        return round(max(0.0, now - _oldest_arrival_ms(ingest.bronze, waiting, refined + 1, now * 1000) / 1000), 3)
    return 0.0 if all(ingest.ingested.get(p, 0) >= end for p, end in log_end.items()) else None


def _oldest_arrival_ms(bronze: Table, files: Sequence[DataFile], first: int, now_ms: float) -> int:
    """Return when the first record of batches from `first` on arrived, by the bounds of their files."""
    times = [(file, _times_ms(file)) for file in files]
    # Commits ascend, so that of the first batch with a time that is no arrival counts for all of these.
    unknown = [file for file, found in times if not all(is_arrival(time, now_ms) for time in found)]
    batches = [max(first, int(str(file.low.get(BATCH, first)))) for file in unknown]
    committed_ms = batch_commit(bronze, min(batches)).timestamp_ms if batches else 0
    return arrivals([time for _, found in times for time in found], committed_ms, now_ms)[0]


def _times_ms(file: DataFile) -> list[int]:
    """Return the least and the greatest Kafka time in a file, 0 when they are not known."""
    found: list[Any] = [each["timestamp"] for each in (file.low, file.high) if "timestamp" in each]
    return [int(time.timestamp() * 1000) for time in found] or [0]


def record_run(status: DriverStatus, run: RunReport) -> None:
    """Put a finished run into the status."""
    seconds = sum(run.steps.values())
    status.refined_batch = run.batches[1]
    status.last_batch = LastRun(run.rows, round(seconds, 3), dict(run.steps))
    status.rates["refine"] = round(run.rows / seconds, 1) if seconds else 0.0
