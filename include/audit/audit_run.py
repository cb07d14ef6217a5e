"""Audit the datasets of a state folder, each against its own publication. Streams may run meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from include.audit.audit_findings import Finding, FindingKind
from include.audit.balance import EVERYTHING, AuditInput, DatasetAudit, Progress, dataset_audit, unpublished_audit
from include.audit.derived_audit import derived_audit, derived_publications
from include.audit.kafka_records import AuditUnavailable, Topic
from include.audit.verified_history import AuditScope, audit_scope, full_scope, history_file
from include.declare.dataset import DatasetUnknown, ReleaseUnknown, dataset_names, declared_dataset, released_dataset
from include.declare.writer_schemas import known_schemas
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.kafka import BrokerUnreachable, TopicMissing
from include.ground.settings import Settings
from include.read.decision_log import decided_records
from include.read.publication import Publication, find_publication, stream_publications, tables_of
from include.read.published_tables import PinnedTables

TopicOpener = Callable[[str], Topic]
Scope = Callable[[Publication, PinnedTables, Topic], AuditScope]
Standing = Callable[[str, int], str]
DerivedRecomputation = Callable[[Settings, str, Progress], tuple[Mapping[str, Mapping[str, Any]], str]]
"""Recomputes the tables of a derived dataset: returns what `derived_audit` needs."""


def requested_audits(
    settings: Settings,
    requested: Sequence[str],
    open_topic: TopicOpener,
    recompute: DerivedRecomputation,
    progress: Progress = lambda _: None,
    *,
    full: bool = False,
    standing: Standing = lambda *_: "",
) -> list[DatasetAudit]:
    """Audit these datasets, or all that are declared or published; derived ones last, by `recompute`.

    Records that the last balanced audit verified are compared again only if `full`. `standing` says of a dataset, with
    the number of offsets that are not published, whether its stream stands still.

    Raises DatasetUnknown, and what `audit_dataset` and `recompute` raise.
    """
    derived = [name for name in derived_publications(settings) if name in requested or not requested]
    others = [audited_datasets(settings, name)[0] for name in requested if name not in derived]
    names = others if requested else audited_datasets(settings, None)

    def scope_of(name: str) -> Scope:
        return full_scope if full else partial(audit_scope, history_file(settings, name).read_if_valid())

    audits = [audit_dataset(settings, name, open_topic, progress, scope_of(name)) for name in names]
    audits += [derived_audit(settings, name, *recompute(settings, name, progress)) for name in derived]
    return [
        replace(each, standing=standing(each.dataset, sum(part.later for part in each.partitions))) for each in audits
    ]


def audited_datasets(settings: Settings, only: str | None) -> list[str]:
    """Return the datasets to audit, declared or published, or only `only`. Raises DatasetUnknown."""
    known = sorted({*dataset_names(settings), *stream_publications(settings)})
    if only is not None and only not in known:
        raise DatasetUnknown(only, known)
    return known if only is None else [only]


def audit_dataset(
    settings: Settings,
    name: str,
    open_topic: TopicOpener,
    progress: Progress = lambda _: None,
    scope: Scope = lambda *_: EVERYTHING,
) -> DatasetAudit:
    """Audit one dataset against its current publication; `scope` decides which records are compared.

    Raises AuditUnavailable when no broker answers. A damaged file, a missing topic or a missing snapshot of the
    release is a finding. A gold table whose declaration DuckDB cannot evaluate is listed in `unchecked`.
    """
    publication = find_publication(settings, name)
    if publication is None:
        return unpublished_audit(name, _topic_if_any(open_topic, declared_dataset(settings, name).pipeline.topic))
    try:
        dataset = released_dataset(settings, name, publication.release)
    except (ReleaseUnknown, DeclarationRefused) as error:
        why = Finding(FindingKind.missing, f"release.{name}", 0, f"{error.what}; the tables were not audited")
        return DatasetAudit(name, publication.release, publication.batch, (), findings=(why,))
    tables = PinnedTables(tables_of(settings, publication))
    decided = decided_records(settings, name).items()
    fixes = {position: record.payload for position, record in decided if record.payload is not None}
    topic = _topic_if_any(open_topic, dataset.pipeline.topic) or _missing_topic(dataset.pipeline.topic)
    progress(f"{name}: changes since the last audit")
    given = AuditInput(dataset, publication, tables, topic, fixes, known_schemas(settings, name))
    return dataset_audit(given, progress, scope(publication, tables, topic))


def _missing_topic(name: str) -> Topic:
    return Topic(name, "none: the topic does not exist", {}, {}, lambda *_: iter(()))


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
