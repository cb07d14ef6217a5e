"""Deliveries of real events with injected faults, in order or shuffled, split into bronze batches."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from zlib import crc32

import numpy as np
import polars as pl
from small_release import Record

from include.producers.command import find_feed
from include.producers.faults import Shares, inject_faults

Batch = list[Record]
Verdict = tuple[bytes | None, str]
"""A payload, and `accepted`, `duplicate`, or the reason why it is invalid."""


@dataclass(frozen=True)
class Delivery:
    """One delivery: its record, its event id (None if corrupt), and its expected verdict."""

    record: Record
    event_id: str | None
    verdict: str


def parity_seed() -> int:
    """Return the seed of this run: PARITY_SEED, a number or `random`; printed, so that a failure can be repeated."""
    value = os.environ.get("PARITY_SEED", "2013")
    seed = int.from_bytes(os.urandom(4), "big") if value == "random" else int(value)
    print(f"parity: PARITY_SEED={seed}")
    return seed


def deliveries(feed_name: str, days: Sequence[date], shares: Shares, seed: int) -> list[Delivery]:
    """Return the deliveries of a faulty producer for flights scheduled (observations made) on these UTC days."""
    feed = find_feed(feed_name)
    selected = [day.isoformat() for day in days]
    starts = pl.col("event_id").str.extract(r"(\d{4}-\d\d-\d\d)T")
    events = feed.frame(timedelta(0)).filter(starts.is_in(selected))
    rows = inject_faults(events, feed, shares, seed).iter_rows(named=True)
    return [_sent(row, place) for place, row in enumerate(rows)]


def _sent(row: dict[str, str | bytes | None], place: int) -> Delivery:
    key, value, event_id = row["key"], row["value"], row["event_id"]
    assert isinstance(key, bytes)
    assert isinstance(value, bytes | None)
    headers = [("trace", b"\x00\xff%d" % place), ("trace", None)] if place % 3 == 0 else None
    record = Record(value, key, crc32(key) % 2, headers)
    corrupt = row["fault"] == "corrupt"
    return Delivery(record, None if corrupt else str(event_id), str(row["reason"] or "accepted"))


def verdicts(sent: Sequence[Delivery]) -> Counter[Verdict]:
    """Count the expected verdicts of these payloads."""
    return Counter((item.record.value, item.verdict) for item in sent)


def split_in_order(sent: Sequence[Delivery], batches: int, rng: np.random.Generator) -> list[Batch]:
    """Split the deliveries at random positions into `batches` batches, in order; some may be empty."""
    ends = [*sorted(rng.integers(0, len(sent) + 1, size=batches - 1)), len(sent)]
    starts = [0, *ends[:-1]]
    return [[item.record for item in sent[a:b]] for a, b in zip(starts, ends, strict=True)]


def deal_out_of_order(sent: Sequence[Delivery], batches: int, rng: np.random.Generator) -> list[Batch]:
    """Assign the deliveries to random batches and partitions; the copies of one event keep their order.

    The first copy in the total order (batch, partition, offset) wins: another order would change silver.
    """
    order = rng.permutation(len(sent))
    where = sorted(zip(rng.integers(0, batches, len(sent)), rng.integers(0, 2, len(sent)), strict=True))
    slots: dict[str | None, list[int]] = defaultdict(list)
    for slot, item in enumerate(order):
        slots[sent[item].event_id].append(slot)
    filled = dict(zip(range(len(sent)), (sent[item] for item in order), strict=True))
    for event_id, places in slots.items():
        if event_id is not None and len(places) > 1:
            copies = [sent[item] for item in sorted(int(order[place]) for place in places)]
            filled |= dict(zip(places, copies, strict=True))
    dealt: list[Batch] = [[] for _ in range(batches)]
    for slot, (batch, partition) in enumerate(where):
        dealt[batch].append(replace(filled[slot].record, partition=int(partition)))
    return dealt


def days_of(*texts: str) -> list[date]:
    """Return UTC days from ISO texts."""
    return [datetime.fromisoformat(text).replace(tzinfo=UTC).date() for text in texts]
