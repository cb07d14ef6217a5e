"""The outcome of the last audit of each dataset, kept for who looks later: the console, metrics.

Reads / Writes: `audits/<dataset>.json` in the state folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from include.audit.balance import DatasetAudit
from include.paths import audit_path
from include.settings import Settings
from include.state.json_file import JsonFile

LAYERS = ("kafka", "bronze", "silver", "rejected")


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


def outcome_file(settings: Settings, dataset: str) -> JsonFile[AuditOutcome]:
    """Return the file of a dataset's last outcome."""
    return JsonFile(audit_path(settings, dataset), AuditOutcome, durable=False)


def record_outcomes(settings: Settings, audits: Iterable[DatasetAudit], now: datetime) -> None:
    """Replace the outcomes of these datasets; one without a publication has none."""
    for audit in audits:
        if audit.batch is not None:
            # What was found is reported in any case, also on a full disk.
            with suppress(OSError):
                outcome_file(settings, audit.dataset).write(outcome_of(audit, now))


def outcome_of(audit: DatasetAudit, now: datetime) -> AuditOutcome:
    """Return the outcome of an audit that ended `now`."""
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
        records={layer: sum(getattr(part, layer) for part in audit.partitions) for layer in LAYERS},
    )


def last_outcome(settings: Settings, dataset: str) -> AuditOutcome | None:
    """Return the outcome of the last audit, None without a readable one."""
    return outcome_file(settings, dataset).read_if_valid()
