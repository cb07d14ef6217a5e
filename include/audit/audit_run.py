"""Audit the datasets of a state folder, each against its own publication. Streams may run meanwhile."""

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
    """A file of a published table is missing or damaged; `reason` is the reader's message."""

    def __init__(self, dataset: str, reason: str) -> None:
        super().__init__(
            f"a published table of {dataset} cannot be read: {reason}; the dataset was not audited",
            f"restore the file from a backup, or rebuild the tables: headrace release run --dataset {dataset}",
        )
        self.dataset = dataset
        self.reason = reason


def audited_datasets(settings: Settings, only: str | None) -> list[str]:
    """Return the datasets to audit, declared or published, or only `only`. Raises DatasetUnknown."""
    known = sorted({*dataset_names(settings), *publications(settings)})
    if only is not None and only not in known:
        raise DatasetUnknown(only, known)
    return known if only is None else [only]


def audit_dataset(
    settings: Settings, name: str, open_topic: TopicOpener, progress: Progress = lambda _: None
) -> DatasetAudit:
    """Audit one dataset against its current publication.

    Raises AuditUnavailable when no broker answers, TopicMissing when the topic of a published dataset is missing,
    TablesUnreadable when a published file is missing or damaged. A gold table whose declaration DuckDB cannot evaluate
    is listed in `unchecked`.
    """
    publication = find_publication(settings, name)
    if publication is None:
        return unpublished_audit(name, _topic_if_any(open_topic, declared_dataset(settings, name).pipeline.topic))
    dataset = released_dataset(settings, name, publication.release)
    tables = PinnedTables(tables_of(settings, publication))
    amended = amendments(settings, name).items()
    fixes = {record: amendment.payload for record, amendment in amended if amendment.payload is not None}
    try:
        topic = _topic(open_topic, dataset.pipeline.topic)
        return dataset_audit(dataset, publication, tables, topic, fixes, progress)
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
