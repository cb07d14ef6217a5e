"""What the tables must hold for the records that were sent, from the records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from workloads.ad_events_oracle import expected_ad_tables

from benchmarks.event_supply import BLOCK_SPAN, ad_block
from include.declare.event_times import FIRST, LAST

Views = Counter[tuple[str, datetime]]
WRAP = 1 << 64
MILLISECOND = timedelta(milliseconds=1)
VIEW_SPAN = timedelta(days=1)
"""Of event time: 8.6 million ad events, 900,000 windows."""
VIEW_ROWS: dict[str, Any] = {"campaign_id": pl.String, "since": pl.Datetime("us", "UTC"), "views": pl.Int64}


@dataclass
class SentRecords:
    """Records that were sent, those of them that silver must hold, and an order-independent hash of their identities.

    Of ad events also what `gold.campaign_views` must hold, by the oracle of the workload: `blocks` are whole blocks,
    by the milliseconds that each is moved, `views` those of all other frames.
    """

    dataset: str
    records: int = 0
    accepted: int = 0
    hash: int = 0
    blocks: list[int] = field(default_factory=list)
    views: Views = field(default_factory=Counter)

    def add(self, frame: pl.DataFrame) -> None:
        """Count deliveries; those with a `reason` must be rejected."""
        good = frame.filter(pl.col("reason").is_null())
        self.records += frame.height
        self.accepted += good.height
        self.hash = (self.hash + identity_hash(good["event_id"])) % WRAP
        if self.dataset == "ad_events":
            self._add_views(frame, good)

    def _add_views(self, frame: pl.DataFrame, good: pl.DataFrame) -> None:
        if (shift := block_shift(frame)) is None:
            self.views.update(expected_views(good["value"]))
        else:
            self.blocks.append(shift)

    def since(self, before: SentRecords) -> SentRecords:
        """Return the records sent since an earlier snapshot."""
        return SentRecords(
            self.dataset,
            self.records - before.records,
            self.accepted - before.accepted,
            (self.hash - before.hash) % WRAP,
            self.blocks[len(before.blocks) :],
            self.views - before.views,
        )

    def view_rows(self, first: datetime = FIRST, until: datetime = LAST) -> pl.DataFrame:
        """Return the rows that `gold.campaign_views` must hold of windows that begin in [first, until):
        `campaign_id`, `since`, `views`.
        """
        low, high = _first_span()
        near = [by for by in self.blocks if low + by * MILLISECOND < until and high + by * MILLISECOND >= first]
        moved = pl.Series("moved", near, pl.Int64).to_frame().select(by=pl.duration(milliseconds="moved"))
        blocks = _first_views().join(moved, how="cross").with_columns(pl.col("since") + pl.col("by"))
        both = pl.concat([blocks.select(*VIEW_ROWS), _rows(self.views)])
        inside = both.filter(pl.col("since").is_between(first, until, closed="left"))
        return inside.group_by("campaign_id", "since").agg(pl.col("views").sum())

    def view_spans(self) -> list[tuple[datetime, datetime]]:
        """Return half-open spans that together are all of time; the windows of each fit into memory."""
        low, high = _first_span()
        moved = [by * MILLISECOND for by in (min(self.blocks), max(self.blocks))] if self.blocks else []
        times = [*(edge + by for by in moved for edge in (low, high)), *(since for _, since in self.views)]
        days = (max(times) - min(times)) // VIEW_SPAN if times else 0
        cuts = [min(times) + VIEW_SPAN * number for number in range(1, days + 1)]
        return list(pairwise([FIRST, *cuts, LAST]))


def identity_hash(identities: pl.Series) -> int:
    """Return a hash of a set of identities that does not depend on their order."""
    return int(identities.cast(pl.String).hash().to_numpy().sum(dtype=np.uint64))


def expected_views(records: Iterable[bytes]) -> Views:
    """Return the views of each campaign and 10 seconds by the workload's oracle."""
    rows = expected_ad_tables(records)["campaign_views"]
    return Counter({(row["campaign_id"], row["since"]): row["views"] for row in rows})


def block_shift(frame: pl.DataFrame) -> int | None:
    """Return by how many milliseconds a whole block is moved; None for another frame.

    Blocks differ in their times only, so the oracle's rows of the first are those of each, moved by whole windows.
    """
    height, first = _first_block()
    if frame.height != height:
        return None
    moved = int(frame["event_id"][0]) - first
    return None if moved % (BLOCK_SPAN // timedelta(milliseconds=1)) else moved


@cache
def _first_block() -> tuple[int, int]:
    block = ad_block(0)
    return block.height, int(block["event_id"][0])


@cache
def _first_views() -> pl.DataFrame:
    return _rows(expected_views(ad_block(0).filter(pl.col("reason").is_null())["value"]))


@cache
def _first_span() -> tuple[datetime, datetime]:
    """Return when the first and the last window of the first block begin."""
    starts = _first_views()["since"].to_list()
    return min(starts), max(starts)


def _rows(views: Views) -> pl.DataFrame:
    rows = [(campaign, since, count) for (campaign, since), count in views.items()]
    return pl.DataFrame(rows, schema=VIEW_ROWS, orient="row")
