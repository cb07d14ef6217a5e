"""The result of a deep audit: what its job reports (`spark_jobs/jobs/audit_job.py`) as findings of the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.audit.audit_findings import Finding, FindingKind
from include.audit.gold_findings import UncheckedTable


@dataclass(frozen=True)
class DeepAudit:
    """The tables recomputed from bronze: the `records` used, the `rows` compared by table.

    `repair` is the command that recomputes the batches with findings; empty without findings.
    """

    release: str
    batch: int
    records: int
    rows: Mapping[str, int]
    findings: Sequence[Finding]
    unchecked: Sequence[UncheckedTable]
    repair: str


def deep_audit(dataset: str, found: Mapping[str, Any]) -> DeepAudit:
    """Return the result of a job as it reported it."""
    tables = found["differences"]
    batches = [table["batches"] for table in tables if table["batches"]]
    repair = ""
    if batches:
        span = f"{min(first for first, _ in batches)}..{max(last for _, last in batches)}"
        repair = f"headrace replay run --dataset {dataset} --batches {span} --source bronze"
    is_inherited = found["first"] > found.get("expired", 0)
    inherited = f"batches before {found['first']} were inherited from another release" if is_inherited else ""
    return DeepAudit(
        release=found["release"],
        batch=found["batch"],
        records=found["records"],
        rows={table["table"]: table["rows"] for table in tables},
        findings=[finding for table in tables for finding in _findings(table)],
        unchecked=[UncheckedTable(f"silver.{dataset}", "", inherited)] if inherited else [],
        repair=repair,
    )


def _findings(table: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each sample, and one for all other rows of its kind."""
    name, named = table["table"], dict.fromkeys(table["counts"], 0)
    for row in table["samples"]:
        kind, offset = FindingKind(row["kind"]), row["offset"]
        named[kind.value] += 1
        detail = f"{row['label']}: {_what(kind, row['values'])}" if row["label"] else _what(kind, row["values"])
        yield Finding(kind, name, 1, detail, row["partition"], offset, None if offset is None else offset + 1)
    for kind, count in table["counts"].items():
        if count > named[kind]:
            yield Finding(FindingKind(kind), name, count - named[kind], f"{count - named[kind]:,} more rows")


def _what(kind: FindingKind, values: Mapping[str, Sequence[str | None]]) -> str:
    if kind is FindingKind.missing:
        return "bronze gives this row, it is not published"
    if kind is FindingKind.surplus:
        return "bronze does not give this row"
    return ", ".join(f"{column} is {_shown(old)}, bronze gives {_shown(new)}" for column, (old, new) in values.items())


def _shown(value: str | None) -> str:
    return "null" if value is None else repr(value)
