"""Latency at a steady rate: each record from its Kafka timestamp to the publication that holds it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from include.bench.bench_events import EventSupply
from include.bench.bench_follower import Ends, ObservedPublication, PublicationFollower
from include.bench.bench_state import DATASET, LogLine
from include.clients.readable_offsets import readable_end_offsets
from include.producers.flight_events import FLIGHTS
from include.producers.kafka_producer import Produced, produce
from include.reading import pinned
from include.settings import Settings

QUANTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


@dataclass(frozen=True)
class Latency:
    """Seconds from log append to publication over `records`; `publications` meanwhile; `behind`: the producer's
    worst delay against its schedule, seconds."""

    rate: float
    seconds: float
    records: int
    publications: int
    quantiles: dict[str, float]
    behind: float


class _Sender(threading.Thread):
    """Sends at a steady rate in a background thread."""

    def __init__(self, bootstrap: str, deliveries: pl.DataFrame, rate: float) -> None:
        super().__init__(name="sender", daemon=True)
        self._arguments = (bootstrap, FLIGHTS.topic, deliveries)
        self._rate = rate
        self._stop_event = threading.Event()
        self.done: Produced | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.done = produce(*self._arguments, rate=self._rate, stop=self._stop_event.is_set)
        except Exception as error:  # noqa: BLE001  (raised by measure_latency)
            self.error = error

    def stop(self) -> None:
        """Stop early and wait for the thread."""
        self._stop_event.set()
        self.join()


def measure_latency(
    settings: Settings, bootstrap: str, supply: EventSupply, rate: float, seconds: float, log: LogLine
) -> Latency:
    """Send `rate` events/s for `seconds` in an open loop and poll until the last one is published."""
    log(f"latency: {rate:,.0f} events/s for {seconds:.0f} s, open loop …")
    deliveries = pl.concat(list(supply.frames(round(rate * seconds))))
    before, follower = readable_end_offsets(bootstrap, DATASET), PublicationFollower(settings)
    sender = _Sender(bootstrap, deliveries, rate)
    sender.start()
    try:
        follower.follow(lambda: not sender.is_alive())
    finally:
        sender.stop()
    if sender.error is not None:
        raise sender.error
    assert sender.done is not None
    after = readable_end_offsets(bootstrap, DATASET)
    follower.follow(lambda: follower.reached(after))
    waited = waiting_seconds(appended(settings, before, after), follower.publications)
    moved = sum(sum(each.ends.values()) > sum(before.values()) for each in follower.publications)
    return Latency(rate, seconds, len(waited), moved, quantiles(waited), sender.done.behind)


def appended(settings: Settings, before: Ends, after: Ends) -> pl.DataFrame:
    """Return partition, offset and timestamp (epoch seconds, of the log append) of the records in between."""
    bronze = pinned(settings).read(f"bronze.{DATASET}", columns=["partition", "offset", "timestamp"])
    inside = [
        (pl.col("partition") == part) & (pl.col("offset") >= before[part]) & (pl.col("offset") < end)
        for part, end in after.items()
    ]
    found = bronze.filter(pl.any_horizontal(inside)).collect()
    return found.with_columns(timestamp=pl.col("timestamp").dt.epoch("us") / 1e6)


def waiting_seconds(records: pl.DataFrame, publications: Sequence[ObservedPublication]) -> NDArray[np.float64]:
    """Return for each record the seconds from its timestamp to the first publication that holds it.

    Every record must be in one of the publications.
    """
    at = np.array([publication.at for publication in publications])
    parts = []
    for (partition,), rows in records.group_by("partition"):
        ends = np.array([publication.ends.get(int(str(partition)), 0) for publication in publications])
        first = np.searchsorted(ends, rows["offset"].to_numpy(), side="right")
        parts.append(at[first] - rows["timestamp"].to_numpy())
    return np.concatenate(parts) if parts else np.array([])


def quantiles(waited: NDArray[np.float64]) -> dict[str, float]:
    """Return p50, p95, p99 and max: each is the latency of one record, without interpolation."""
    return {name: float(np.percentile(waited, share, method="inverted_cdf")) for name, share in QUANTILES.items()}
