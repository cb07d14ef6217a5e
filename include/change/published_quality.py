"""Validates the published tables of a dataset against the table rules of the published release's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.change.contract_checks import RESULTS
from include.change.gx_checkpoint import validate_tables
from include.change.quality_pages import checks_page
from include.declare.contract import Contract
from include.declare.contract_rules import Rule, RuleResult
from include.declare.derived_dataset import released_contract
from include.ground.durable_files import write_atomically
from include.ground.paths import docs_page
from include.ground.settings import Settings
from include.observe.validation_history import StoredValidation, store_validation
from include.read.publication import read_publication, tables_of
from include.read.published_tables import open_dataset


@dataclass(frozen=True)
class PublishedChecks:
    """Results of the table rules on one publication; `site`: the folder of its page."""

    dataset: str
    release: str
    batch: int
    checked_at: datetime
    checks: Sequence[RuleResult]
    site: Path

    @property
    def blocks(self) -> bool:
        """Whether a rule that blocks publications failed."""
        return any(check.blocks for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the results as JSON values; `checked_at` in ISO 8601."""
        return {
            "dataset": self.dataset,
            "release": self.release,
            "batch": self.batch,
            "checked_at": self.checked_at.isoformat(),
            "checks": RESULTS.dump_python(list(self.checks), mode="json"),
            "blocks": self.blocks,
            "site": str(self.site),
        }


def validate_published(settings: Settings, dataset: str, now: datetime) -> PublishedChecks:
    """Evaluate the table rules of every published table, replace the dataset's page, and keep the results.

    Raises NothingPublished, and QualityNotInstalled.
    """
    publication = read_publication(settings, dataset)
    contract = released_contract(settings, dataset, publication.release)
    rows = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
    checks, page = validate_tables(tables_with_rules(contract, rows)), docs_page(settings, dataset)
    found = PublishedChecks(dataset, publication.release, publication.batch, now.astimezone(UTC), checks, page.parent)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, _overview(found))
    stored = StoredValidation(publication.release, publication.batch, found.checked_at, checks)
    store_validation(settings, dataset, stored)
    return found


def _overview(found: PublishedChecks) -> str:
    title = f"{found.dataset}, release {found.release}, batch {found.batch}, {found.checked_at:%Y-%m-%d %H:%M:%S} UTC"
    return checks_page(title, found.checks)


def tables_with_rules(contract: Contract, rows: Mapping[str, Any]) -> dict[str, tuple[Any, Sequence[Rule]]]:
    """Return the tables that the contract has table rules for, with these rules."""
    return {name: (table, rules) for name, table in rows.items() if (rules := contract.checks(name))}
