"""Audit the datasets of a state folder, each against its own publication. Streams may run meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from include.audit.balance import COUNTS, EVERYTHING, DatasetAudit, Progress, dataset_audit, unpublished_audit
from include.audit.files import READ_ERRORS, FileCheck, file_check, unreadable_table
from include.audit.findings import Finding, FindingKind
from include.audit.gold import GoldCheck, UncheckedTable
from include.audit.kafka import AuditUnavailable, Topic
from include.audit.kafka_comparison import AuditInput
from include.audit.loaded_files import loaded_files
from include.audit.verified_history import AuditScope, audit_scope, full_scope, history_file
from include.declare.dataset import DatasetUnknown, ReleaseUnknown, dataset_names, declared_dataset, released_dataset
from include.declare.writer_schemas import known_schemas
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.kafka import BrokerUnreachable, TopicMissing
from include.ground.paths import audit_path
from include.ground.settings import Settings
from include.read.publication import Publication, find_publication, publications, stream_publications, tables_of
from include.read.published_tables import RECORD_LAYERS, PinnedTables
from include.read.rejected_records import decided_records
from include.state.json_file import JsonFile


def derived_audit(
    settings: Settings, name: str, recomputed: Mapping[str, Mapping[str, Any]], error: str
) -> DatasetAudit:
    """Return the audit of a published derived dataset.

    `recomputed` has by table rows, grains, rows missing and surplus, and a sample; `error` says why there is none.
    """
    publication = find_publication(settings, name)
    assert publication is not None
    files, findings = list[FileCheck](), list[Finding]()
    for table in tables_of(settings, publication).values():
        try:
            checked, wrong = file_check(table)
        except READ_ERRORS as damage:
            findings.append(unreadable_table(table, damage))
        else:
            files.append(checked)
            findings += wrong
    findings += [finding for table, found in recomputed.items() for finding in _differences(table, found)]
    sources = tuple(f"{table} batch {source.batch}" for table, source in publication.sources.items())
    return DatasetAudit(
        name,
        publication.release,
        publication.batch,
        (),
        tuple(GoldCheck(table, found["rows"], found["grains"]) for table, found in recomputed.items()),
        tuple(findings),
        tuple(UncheckedTable(table, "", f"not recomputed: {error}") for table in publication.tables if error),
        files=tuple(files),
        sources=sources,
    )


def _differences(table: str, found: Mapping[str, Any]) -> Iterator[Finding]:
    text = "differ from its query over its sources, for example the row of"
    for kind, key in ((FindingKind.missing, "missing"), (FindingKind.surplus, "surplus")):
        if found[key]:
            yield Finding(kind, table, found[key], f"rows {text} {found['sample']}")


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
    known = publications(settings).values()
    derived = [each.dataset for each in known if each.is_derived and (each.dataset in requested or not requested)]
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
    missing = Topic(dataset.pipeline.topic, "none: the topic does not exist", {}, {}, lambda *_: iter(()))
    topic = _topic_if_any(open_topic, dataset.pipeline.topic) or missing
    progress(f"{name}: changes since the last audit")
    files = loaded_files(settings, dataset.file_sets)
    publication, topic = files.published(publication), files.beside(topic)
    given = AuditInput(dataset, publication, tables, topic, fixes, known_schemas(settings, name), files=files)
    return dataset_audit(given, progress, scope(publication, tables, topic))


def _topic_if_any(open_topic: TopicOpener, name: str) -> Topic | None:
    try:
        return open_topic(name)
    except TopicMissing:
        return None
    except BrokerUnreachable as error:
        raise AuditUnavailable(error.what) from error


COUNTED_LAYERS = ("kafka", *RECORD_LAYERS)


@dataclass(frozen=True)
class AuditOutcome:
    """When a dataset was audited, and what was found. `first`: the first finding, or the first table not checked.

    `records` by layer, summed over partitions; `release` and `batch` are None without a publication.
    """

    dataset: str
    at: datetime
    release: str | None
    batch: int | None
    balanced: bool
    findings: int
    unchecked: int
    first: str
    deep: bool = False
    records: Mapping[str, int] = field(default_factory=dict)
    standing: str = ""
    """Why nothing more will be published, as of the audit."""


def outcome_file(settings: Settings, dataset: str) -> JsonFile[AuditOutcome]:
    """Return the file of a dataset's last outcome."""
    return JsonFile(audit_path(settings, dataset), AuditOutcome, durable=False)


def record_outcomes(settings: Settings, audits: Iterable[DatasetAudit], now: datetime) -> None:
    """Store the outcomes of these datasets and what was verified; a dataset without a publication has no outcome."""
    for audit in audits:
        if audit.batch is not None:
            # What was found is reported in any case, also on a full disk.
            with suppress(OSError):
                _record_verified(settings, audit, now)
            with suppress(OSError):
                outcome_file(settings, audit.dataset).write(_outcome_of(audit, now))


def _record_verified(settings: Settings, audit: DatasetAudit, now: datetime) -> None:
    reached, before = audit.scope.reached, audit.scope.verified
    if audit.balanced and reached is not None:
        # Another audit that ended meanwhile may have found an error in what this one assumed as verified.
        if before is None or history_file(settings, audit.dataset).read_if_valid() == before:
            records = {str(part.partition): {name: getattr(part, name) for name in COUNTS} for part in audit.partitions}
            verified = replace(reached, at=now.astimezone(UTC), records=records, lost=audit.lost)
            history_file(settings, audit.dataset).write(verified)
    elif audit.findings:
        history_file(settings, audit.dataset).remove()


def _outcome_of(audit: DatasetAudit, now: datetime) -> AuditOutcome:
    first = [finding.sentence() for finding in audit.findings]
    first += [f"{skipped.table}: not checked, {skipped.reason}" for skipped in audit.unchecked]
    return AuditOutcome(
        dataset=audit.dataset,
        at=now.astimezone(UTC),
        release=audit.release,
        batch=audit.batch,
        balanced=audit.balanced,
        findings=len(audit.findings),
        unchecked=len(audit.unchecked),
        first=first[0] if first else "",
        deep=audit.deep is not None,
        records=_total_records(audit),
        standing=audit.standing,
    )


def _total_records(audit: DatasetAudit) -> dict[str, int]:
    return {layer: sum(getattr(part, layer) for part in audit.partitions) for layer in COUNTED_LAYERS}


def counts(audit: DatasetAudit) -> dict[str, int]:
    """Return the records of each layer, summed over partitions; of a derived dataset the rows of each table."""
    return {check.table: check.rows for check in audit.gold} if audit.sources else _total_records(audit)


def last_outcome(settings: Settings, dataset: str) -> AuditOutcome | None:
    """Return the outcome of the last audit, None without a readable one."""
    return outcome_file(settings, dataset).read_if_valid()
