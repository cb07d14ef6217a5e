"""Latency at a steady rate: each record from its Kafka timestamp to the publication that holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks.cpu_usage import per_million, stream_cpu, used_between
from benchmarks.follower import Ends, ObservedPublication
from benchmarks.result import Figures
from benchmarks.sending import OpenLoop
from benchmarks.session import BenchSession
from include.ground.settings import Settings
from include.read.published_tables import pinned

MOST_RECORDS = 20_000_000
"""Records of which the latency is computed; of more, one in so many of each partition stands for its neighbours."""
QUANTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


@dataclass
class SteadyPhase:
    """A phase of sending at a steady rate; `figures` are set at its end."""

    sender: OpenLoop
    figures: Figures = field(default_factory=dict)


def measure_latency(session: BenchSession, rate: float, seconds: float) -> Figures:
    """Send `rate` events/s for `seconds` in an open loop; return quantiles over all of them, and the CPU they took."""
    session.log(f"latency: {rate:,.0f} events/s for {seconds:.0f} s, open loop …")
    events = round(rate * seconds)
    session.supply.prepare(events)
    before = stream_cpu(session.settings, session.dataset)
    with sending(session, session.supply.frames(events), rate) as phase:
        phase.sender.finish()
    used = used_between(before, stream_cpu(session.settings, session.dataset))
    return phase.figures | per_million(used, events)


@contextmanager
def sending(session: BenchSession, frames: Iterable[pl.DataFrame], rate: float) -> Iterator[SteadyPhase]:
    """Send in an open loop during the block, then wait until all is published; sets the figures of the phase."""
    before, follower = session.readable_ends(), session.follower()
    phase = SteadyPhase(OpenLoop(session.target, frames, rate))
    with follower.following():
        phase.sender.start()
        try:
            yield phase
        finally:
            phase.sender.stop()
        phase.sender.finish()
    after = session.readable_ends()
    follower.follow(lambda: follower.reached(after))
    waited = waiting_seconds(appended(session.settings, session.dataset, before, after), follower.publications)
    phase.figures |= {f"{name}, s": at for name, at in quantiles(waited["waited"].to_numpy()).items()}
    phase.figures |= {
        "records": float(total(before, after)),
        "producer behind, s": phase.sender.behind,
        "lag trend, records/s": latency_trend(waited) * rate,
    }


def total(before: Ends, after: Ends) -> int:
    """Return the number of offsets between two sets of ends."""
    return sum(end - before[part] for part, end in after.items())


def appended(settings: Settings, dataset: str, before: Ends, after: Ends) -> pl.DataFrame:
    """Return partition, offset and timestamp (epoch seconds, of the log append) of records in between."""
    bronze = pinned(settings).arrow(f"bronze.{dataset}")
    inside = [
        (pl.col("partition") == part) & (pl.col("offset") >= before[part]) & (pl.col("offset") < end)
        for part, end in after.items()
    ]
    one_in = -(-total(before, after) // MOST_RECORDS)
    chosen = pl.any_horizontal(inside) & (pl.col("offset") % max(one_in, 1) == 0)
    columns = ["partition", "offset", "timestamp"]
    # Batch by batch: a filter that Arrow does not have would be applied to all records in memory.
    batches = bronze.to_batches(columns=columns, filter=pc.field("offset") >= min(before.values()))
    parts = [pl.DataFrame(batch).filter(chosen) for batch in batches]
    found = pl.concat([pl.DataFrame(bronze.schema.empty_table().select(columns)), *parts])
    return found.with_columns(timestamp=pl.col("timestamp").dt.epoch("us") / 1e6)


def waiting_seconds(records: pl.DataFrame, publications: Sequence[ObservedPublication]) -> pl.DataFrame:
    """Return `timestamp` of each record and `waited`, the seconds from then to the first publication that holds it.

    Every record must be in one of the publications.
    """
    at = np.array([publication.at for publication in publications])
    parts = [pl.DataFrame(schema={"timestamp": pl.Float64, "waited": pl.Float64})]
    for (partition,), rows in records.group_by("partition"):
        ends = np.array([publication.ends.get(int(str(partition)), 0) for publication in publications])
        published = pl.Series("published", at[np.searchsorted(ends, rows["offset"].to_numpy(), side="right")])
        parts.append(rows.select("timestamp", waited=published - pl.col("timestamp")))
    return pl.concat(parts)


def latency_trend(waited: pl.DataFrame) -> float:
    """Return by how many seconds the latency grows per second, by least squares over all records."""
    return float(np.polyfit(waited["timestamp"] - waited["timestamp"].min(), waited["waited"], 1)[0])


def quantiles(waited: NDArray[np.float64]) -> dict[str, float]:
    """Return p50, p95, p99 and max: each is the latency of one record, without interpolation."""
    return {name: float(np.percentile(waited, share, method="inverted_cdf")) for name, share in QUANTILES.items()}
