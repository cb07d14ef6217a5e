"""The audit of a state folder: every dataset, each by its own publication, while the streams may run on."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import polars as pl
import pyarrow as pa

from include.audit.balance import DatasetAudit, Progress, dataset_audit, unpublished_audit
from include.audit.kafka_records import AuditUnavailable, Topic
from include.catalog.dataset import DatasetUnknown, dataset_names, declared_dataset, released_dataset
from include.clients.kafka import BrokerUnreachable, TopicMissing
from include.errors import Terminal
from include.reading.amendments import amendments
from include.reading.publication import find_publication, publications, tables_of
from include.reading.published_tables import PinnedTables
from include.settings import Settings

TopicOpener = Callable[[str], Topic]


class TablesUnreadable(Terminal):
    """A file of a published table is gone or damaged; `reason` is the reader's message."""

    def __init__(self, dataset: str, reason: str) -> None:
        super().__init__(
            f"a published table of {dataset} cannot be read: {reason}; its balance was not judged",
            "restore the file from a backup, or build the release's tables again",
        )
        self.dataset = dataset
        self.reason = reason


def audited_datasets(settings: Settings, only: str | None) -> list[str]:
    """Return the datasets to audit, declared or published, or just `only`; DatasetUnknown lists them."""
    known = sorted({*dataset_names(settings), *publications(settings)})
    if only is not None and only not in known:
        raise DatasetUnknown(only, known)
    return known if only is None else [only]


def audit_dataset(
    settings: Settings, name: str, open_topic: TopicOpener, progress: Progress = lambda _: None
) -> DatasetAudit:
    """Judge one dataset by its publication as it is now.

    Raises NothingJudged when the broker is not there, TopicMissing when a published dataset's topic is gone,
    TablesUnreadable when a published file is damaged.
    """
    publication = find_publication(settings, name)
    if publication is None:
        return unpublished_audit(name, _topic_if_any(open_topic, declared_dataset(settings, name).pipeline.topic))
    dataset = released_dataset(settings, name, publication.release)
    reading = PinnedTables(tables_of(settings, publication))
    decided = amendments(settings, name).items()
    fixes = {place: amendment.payload for place, amendment in decided if amendment.payload is not None}
    try:
        topic = _topic(open_topic, dataset.pipeline.topic)
        return dataset_audit(dataset, publication, reading, topic, fixes, progress)
    except (duckdb.Error, pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
        raise TablesUnreadable(name, str(error)) from error


def _topic(open_topic: TopicOpener, name: str) -> Topic:
    try:
        return open_topic(name)
    except BrokerUnreachable as error:
        raise AuditUnavailable(error.what) from error


def _topic_if_any(open_topic: TopicOpener, name: str) -> Topic | None:
    try:
        return _topic(open_topic, name)
    except TopicMissing:
        return None
