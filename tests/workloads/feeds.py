"""The generated feeds by name."""

from __future__ import annotations

from include.producers.feed import Feed
from workloads.ad_events import AD_EVENTS
from workloads.auction_events import AUCTION_EVENTS
from workloads.bank_events import BANK_ACCOUNTS, BANK_HISTORY, BANK_TELLERS
from workloads.device_events import DEVICE_REPORTS
from workloads.order_events import LINE_EVENTS, ORDER_EVENTS
from workloads.post_events import POSTS
from workloads.search_events import SEARCHES
from workloads.shop_events import SHOP_ORDERS

BANK = (BANK_ACCOUNTS, BANK_TELLERS, BANK_HISTORY)
FEEDS = (AD_EVENTS, SEARCHES, POSTS, AUCTION_EVENTS, ORDER_EVENTS, LINE_EVENTS, SHOP_ORDERS, *BANK, DEVICE_REPORTS)
GENERATED: dict[str, Feed] = {feed.name: feed for feed in FEEDS}
