"""The workloads: each a dataset of `include/workloads/datasets`, its feed, and its oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from include.producers.event_feed import Feed
from include.producers.feed_registry import WORKLOADS as FEEDS
from include.workloads.ad_events_oracle import expected_ad_tables
from include.workloads.auction_oracle import expected_auction_tables
from include.workloads.oracle_rows import Expected
from include.workloads.posts_oracle import expected_post_tables
from include.workloads.searches_oracle import expected_search_tables

DATASETS = Path(__file__).parent / "datasets"
"""The folder for HEADRACE_DATASETS."""
ORACLES: dict[str, Callable[[Iterable[bytes]], Expected]] = {
    "ad_events": expected_ad_tables,
    "searches": expected_search_tables,
    "posts": expected_post_tables,
    "auction": expected_auction_tables,
}


@dataclass(frozen=True)
class Workload:
    """A feed, and what its gold tables must hold for some of its records."""

    feed: Feed
    expected: Callable[[Iterable[bytes]], Expected]

    @property
    def declared_lines(self) -> int:
        """The lines of pipeline, SQL and silver code: what a user writes, comments and the contract apart."""
        files = [f for f in (DATASETS / self.feed.name).rglob("*") if f.suffix in (".yaml", ".sql", ".py")]
        texts = [f.read_text("utf-8") for f in files if f.name != "contract.yaml"]
        return sum(bool(line.strip()) and not line.lstrip().startswith("#") for t in texts for line in t.splitlines())


WORKLOADS = {name: Workload(FEEDS[name], expected) for name, expected in ORACLES.items()}
