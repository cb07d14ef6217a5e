"""The events of the benchmarks: endless, in order, with faults; the same in each run.

Of `flights` the demo's year, again and again with newly drawn faults. Of `ad_events` the producer's 50,000 events with
duplicates, late and reordered ones, again and again: an event each 10 ms, as in the catch-up mode of Yahoo's benchmark.
Of `checkouts` a day with the same faults, day after day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache

import polars as pl
from workloads.ad_events import AD_EVENTS, BETWEEN, EVENTS
from workloads.outcome import FAULTS

from benchmarks.checkout_events import CHECKOUTS, START, on_day
from include.producers.faults import DEFAULT_SEED, DEFAULT_SHARES, inject_faults
from include.producers.feed import REPETITION, Feed
from include.producers.flights import FLIGHTS

FEEDS: dict[str, Feed] = {"flights": FLIGHTS, "ad_events": AD_EVENTS, "checkouts": CHECKOUTS}
BLOCK_SPAN = EVENTS * BETWEEN
"""Event time from one block of ad events to the next; whole windows of 10 seconds."""
AD_TIME = r'^(.*"event_time": ")(\d{13})(".*)$'
MOST_PREPARED = 8_000_000
"""Events that are made before they are needed; about 3 GB."""
Block = Callable[[int], pl.DataFrame]


class EventSupply:
    """An endless sequence of deliveries in order, by whole blocks: each follows the one before, with its own ids."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self._block: Block = {"flights": flight_year, "ad_events": ad_block, "checkouts": checkout_day}[dataset]
        self._next = 0
        self._rest: list[pl.DataFrame] = []

    def frames(self, count: int) -> Iterator[pl.DataFrame]:
        """Yield the next `count` deliveries as frames of at most a block (columns as `inject_faults`)."""
        while count > 0:
            whole = self._rest.pop(0) if self._rest else self._made()
            taken = whole.head(count)
            if taken.height < whole.height:
                self._rest.insert(0, whole.slice(taken.height))
            count -= taken.height
            yield taken

    def block_rows(self) -> int:
        """Return the number of deliveries left in the current block, or in the next one."""
        if not self._rest:
            self._rest.append(self._made())
        return self._rest[0].height

    def whole_blocks(self, at_least: int) -> int:
        """Return the smallest number of deliveries from here on that ends a block; ad events only have equal blocks."""
        first, block = self.block_rows(), self._block(0).height
        return first + block * max(0, -(-(at_least - first) // block))

    def prepare(self, count: int) -> None:
        """Generate the next `count` deliveries now, so that generating them does not disturb a measurement."""
        while sum(frame.height for frame in self._rest) < min(count, MOST_PREPARED):
            self._rest.append(self._made())

    def _made(self) -> pl.DataFrame:
        self._next += 1
        return self._block(self._next - 1)


def flight_year(number: int) -> pl.DataFrame:
    """Return the deliveries of the year 2013 moved by `number` repetitions, with newly drawn faults."""
    return inject_faults(FLIGHTS.frame(REPETITION * number), FLIGHTS, DEFAULT_SHARES, DEFAULT_SEED + number)


def ad_block(number: int) -> pl.DataFrame:
    """Return the deliveries of the block of ad events that is moved by `number` times its span of event time."""
    shift = number * (BLOCK_SPAN // timedelta(milliseconds=1))
    moved = pl.col("at") + shift
    value = pl.when(pl.col("at").is_null()).then("text").otherwise(pl.concat_str("head", moved.cast(pl.String), "tail"))
    event_id = (pl.col("id") + shift).cast(pl.String)
    return _first_ad_block().select(
        "key", value.cast(pl.Binary).alias("value"), event_id.alias("event_id"), "fault", "kind", "reason"
    )


@cache
def _first_ad_block() -> pl.DataFrame:
    """Return the first block with each record cut around its time; `at` is null where a fault made the time wrong."""
    made = inject_faults(AD_EVENTS.frame(timedelta(0)), AD_EVENTS, FAULTS, DEFAULT_SEED)
    text = pl.col("value").cast(pl.String)
    return made.with_columns(
        text=text,
        head=text.str.extract(AD_TIME, 1),
        at=text.str.extract(AD_TIME, 2).cast(pl.Int64),
        tail=text.str.extract(AD_TIME, 3),
        id=pl.col("event_id").cast(pl.Int64),
    )


def checkout_day(number: int) -> pl.DataFrame:
    """Return the deliveries of the day that is `number` days after the first."""
    return on_day(_first_checkouts(), START + number * timedelta(days=1))


@cache
def _first_checkouts() -> pl.DataFrame:
    return inject_faults(CHECKOUTS.frame(timedelta(0)), CHECKOUTS, FAULTS, DEFAULT_SEED)
