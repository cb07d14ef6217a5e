"""What the tables must hold for the records that were sent, from the records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

import numpy as np
import polars as pl

from include.bench.event_supply import BLOCK_SPAN, ad_block
from include.workloads.ad_events_oracle import expected_ad_tables

Views = Counter[tuple[str, datetime]]
WRAP = 1 << 64


@dataclass
class SentRecords:
    """Records that were sent, those of them that silver must hold, and an order-independent hash of their identities.

    `views`: of ad events what `gold.campaign_views` must hold, by the oracle of the workload.
    """

    dataset: str
    records: int = 0
    accepted: int = 0
    hash: int = 0
    views: Views = field(default_factory=Counter)

    def add(self, frame: pl.DataFrame) -> None:
        """Count deliveries; those with a `reason` must be rejected."""
        good = frame.filter(pl.col("reason").is_null())
        self.records += frame.height
        self.accepted += good.height
        self.hash = (self.hash + identity_hash(good["event_id"])) % WRAP
        if self.dataset == "ad_events":
            self.views.update(block_views(frame) or expected_views(good["value"]))

    def since(self, before: SentRecords) -> SentRecords:
        """Return what was sent after an earlier state of this."""
        return SentRecords(
            self.dataset,
            self.records - before.records,
            self.accepted - before.accepted,
            (self.hash - before.hash) % WRAP,
            self.views - before.views,
        )


def identity_hash(identities: pl.Series) -> int:
    """Return a hash of a set of identities that does not depend on their order."""
    return int(identities.cast(pl.String).hash().to_numpy().sum(dtype=np.uint64))


def expected_views(records: Iterable[bytes]) -> Views:
    """Return the views of each campaign and 10 seconds by the workload's oracle."""
    rows = expected_ad_tables(records)["campaign_views"]
    return Counter({(row["campaign_id"], row["since"]): row["views"] for row in rows})


def block_views(frame: pl.DataFrame) -> Views:
    """Return the views of a whole block; empty for another frame.

    Blocks differ in their times only, so the oracle's rows of the first are moved by whole windows.
    """
    first = ad_block(0)
    if frame.height != first.height or frame["event_id"][0] is None:
        return Counter()
    span = int(frame["event_id"][0]) - int(first["event_id"][0])
    if span % (BLOCK_SPAN // timedelta(milliseconds=1)):
        return Counter()
    shift = timedelta(milliseconds=span)
    return Counter({(campaign, since + shift): views for (campaign, since), views in _first_views().items()})


@cache
def _first_views() -> Views:
    return expected_views(ad_block(0).filter(pl.col("reason").is_null())["value"])
