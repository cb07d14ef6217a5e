"""Audit of a derived dataset: the files of its tables, and each table against its query over its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from include.audit.audit_findings import Finding, FindingKind
from include.audit.balance import DatasetAudit
from include.audit.file_findings import READ_ERRORS, FileCheck, file_check, unreadable_table
from include.audit.gold_findings import GoldCheck, UncheckedTable
from include.ground.settings import Settings
from include.read.publication import find_publication, publications, tables_of


def derived_publications(settings: Settings) -> list[str]:
    """Return the derived datasets that are published."""
    return [name for name, publication in publications(settings).items() if publication.is_derived]


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
