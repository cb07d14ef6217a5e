"""The options with which Spark reads a topic: every committed record, with its headers, or an error."""

from __future__ import annotations

from collections.abc import Mapping

from include.kafka_address import source_options
from include.settings import Settings, reject_unsafe

COMPLETE = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
LEAST_FETCHED, MOST_FETCHED = 1 << 20, 8 << 20
"""Bytes that the consumer of a partition fetches at once."""
FETCHED_BY_ALL = 128 << 20
"""Bytes of the heap for what all consumers have fetched, unless each fetches the least."""


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


def fetching(partitions: int) -> dict[str, str]:
    """Return the options by which a topic with so many partitions is fetched, where none are declared."""
    fetched = max(LEAST_FETCHED, min(MOST_FETCHED, FETCHED_BY_ALL // max(partitions, 1)))
    return {
        "kafka.max.partition.fetch.bytes": str(fetched),
        "kafka.fetch.max.bytes": "67108864",
        # A poll of the default, 500 records, costs as much as fetching them. What a poll returns is fetched already.
        "kafka.max.poll.records": "10000",
        "kafka.request.timeout.ms": "20000",
        "kafka.default.api.timeout.ms": "30000",
    }
