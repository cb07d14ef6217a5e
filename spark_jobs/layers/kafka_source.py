"""The options with which Spark reads a topic: every committed record, with its headers, or an error."""

from __future__ import annotations

from collections.abc import Mapping

from include.kafka_address import source_options
from include.settings import Settings, reject_unsafe

COMPLETE = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed", "includeHeaders": "true"}


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
