"""The outcome of the last audit of each dataset, stored for the console and the metrics.

Reads / Writes: `audits/<dataset>.json` in the state folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from include.audit.balance import COUNTS, DatasetAudit
from include.audit.verified_history import history_file
from include.ground.paths import audit_path
from include.ground.settings import Settings
from include.read.published_tables import RECORD_LAYERS
from include.state.json_file import JsonFile

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
                outcome_file(settings, audit.dataset).write(outcome_of(audit, now))


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
        records=total_records(audit),
        standing=audit.standing,
    )


def total_records(audit: DatasetAudit) -> dict[str, int]:
    """Return the records of each layer, summed over partitions."""
    return {layer: sum(getattr(part, layer) for part in audit.partitions) for layer in COUNTED_LAYERS}


def counts(audit: DatasetAudit) -> dict[str, int]:
    """Return the records of each layer, summed over partitions; of a derived dataset the rows of each table."""
    return {check.table: check.rows for check in audit.gold} if audit.sources else total_records(audit)


def last_outcome(settings: Settings, dataset: str) -> AuditOutcome | None:
    """Return the outcome of the last audit, None without a readable one."""
    return outcome_file(settings, dataset).read_if_valid()
