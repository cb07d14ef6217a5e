"""The published tables of a dataset, asked their rules: what stands in the contract of the release that readers see."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.catalog.contract import Contract
from include.catalog.contract_rules import Rule
from include.catalog.dataset import released_dataset
from include.paths import docs_page, docs_path
from include.quality.gx_checkpoint import SOURCE, Check, validate_tables
from include.quality.quality_pages import checks_page
from include.reading.publication import read_publication, tables_of
from include.reading.published_tables import open_dataset
from include.settings import Settings


@dataclass(frozen=True)
class PublishedChecks:
    """What the tables of one publication answered, and where Data Docs of it are."""

    dataset: str
    release: str
    batch: int
    checked_at: datetime
    checks: Sequence[Check]
    site: Path

    @property
    def blocks(self) -> bool:
        """Whether a rule that holds publications back is broken."""
        return any(check.blocks for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "dataset": self.dataset,
            "release": self.release,
            "batch": self.batch,
            "checked_at": self.checked_at.isoformat(),
            "checks": [check.as_json() for check in self.checks],
            "blocks": self.blocks,
            "site": str(self.site),
        }


def validate_published(settings: Settings, dataset: str, now: datetime) -> PublishedChecks:
    """Ask every table that readers see now, and keep Data Docs of the answer in the state folder.

    NothingPublished; QualityNotInstalled.
    """
    seen, site = read_publication(settings, dataset), docs_path(settings, dataset)
    contract = released_dataset(settings, dataset, seen.release).contract
    rows = {name: open_dataset(table) for name, table in tables_of(settings, seen).items()}
    fresh = site.with_name(f".docs.{os.getpid()}")
    try:
        checks = validate_tables(tables_with_rules(contract, rows), fresh)
        found = PublishedChecks(dataset, seen.release, seen.batch, now.astimezone(UTC), checks, site)
        (fresh / docs_page(settings, dataset).name).write_text(_overview(found, fresh), "utf-8")
        _take_the_place_of(site, fresh)
    finally:
        # Nothing is there but what a failure left half made.
        shutil.rmtree(fresh, ignore_errors=True)
    return found


def _overview(found: PublishedChecks, site: Path) -> str:
    """The page to begin with, linked to what Great Expectations says of each table."""
    pages = {path.stem: path.relative_to(site).as_posix() for path in sorted(site.glob("validations/**/*.html"))}
    title = f"{found.dataset}, release {found.release}, batch {found.batch}, {found.checked_at:%Y-%m-%d %H:%M:%S} UTC"
    links = {check.table: pages.get(f"{SOURCE}-{check.table}", "") for check in found.checks}
    return checks_page(title, [check.as_json() for check in found.checks], links)


def _take_the_place_of(site: Path, fresh: Path) -> None:
    """Swap in the new site, so that whoever reads meanwhile finds one that is whole."""
    old = site.with_name(f".old.{os.getpid()}")
    if site.exists():
        site.rename(old)
    fresh.rename(site)
    shutil.rmtree(old, ignore_errors=True)


def tables_with_rules(contract: Contract, rows: Mapping[str, Any]) -> dict[str, tuple[Any, Sequence[Rule]]]:
    """Return the tables that a contract has rules for, with these rules."""
    return {name: (table, rules) for name, table in rows.items() if (rules := contract.checks(name))}
