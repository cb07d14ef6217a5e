"""The options with which Spark reads a topic: every committed record, with its headers, or an error."""

from __future__ import annotations

from collections.abc import Mapping

from include.ground.kafka_address import source_options
from include.ground.settings import Settings, reject_unsafe

COMPLETE = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
FETCHED = 1 << 20, 8 << 20
"""Least and most bytes, as compressed as they were sent, that the consumer of a partition fetches at once."""
FETCHED_BY_ALL = 128 << 20
POLLED = 500, 10_000
"""Bounds of `max.poll.records`. At Kafka's default, 500, returning records costs as much as fetching them."""
POLLED_BY_ALL = 100_000


def complete_source_options(
    settings: Settings, bootstrap: str, chosen: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str]:
    """Return the options `chosen`; declared ones (HEADRACE_KAFKA_OPTIONS) replace `defaults` only.

    Raises InvalidSetting for an option with which records could be lost or misread.
    """
    options = {**defaults, **settings.kafka_options, **source_options(bootstrap), **chosen, **COMPLETE}
    for key, value in options.items():
        reject_unsafe(key, value)
    return options


def fetch_options(partitions: int) -> dict[str, str]:
    """Return the options by which a topic with so many partitions is fetched, where none are declared.

    The consumers hold what they have fetched in the heap, so those of many partitions fetch less each.
    """
    return {
        "kafka.max.partition.fetch.bytes": str(_share(FETCHED_BY_ALL, partitions, *FETCHED)),
        "kafka.fetch.max.bytes": "67108864",
        "kafka.max.poll.records": str(_share(POLLED_BY_ALL, partitions, *POLLED)),
        "kafka.request.timeout.ms": "20000",
        "kafka.default.api.timeout.ms": "30000",
    }


def _share(whole: int, parts: int, least: int, most: int) -> int:
    return max(least, min(most, whole // max(parts, 1)))
