"""Upkeep of a derived dataset's tables between two runs: small files, files that no version needs, ended plans.

Reads / Writes: the tables of the published release; what `include/observe/ended_plans.py` says.
Guarantee: the rows stay the same; the published version and those replaced within the retention stay readable.
After a crash: the next check does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from include.ground.paths import reading_lock_path, warehouse
from include.read.publication import find_publication
from spark_jobs.stream.automatic_compaction import AutomaticCompaction
from spark_jobs.stream.automatic_removal import AutomaticRemoval
from spark_jobs.stream.compact_tables import compact_and_delete, compacted_gold
from spark_jobs.stream.compaction_groups import ON_REQUEST, CompactionPolicy
from spark_jobs.stream.derived_run import DerivedRelease
from spark_jobs.stream.obsolete_files import AutomaticDeletion, RetainedTables


@dataclass
class DerivedUpkeep:
    """Upkeep in steps of about a second."""

    compaction: AutomaticCompaction
    deletion: AutomaticDeletion = field(default_factory=AutomaticDeletion)
    removal: AutomaticRemoval = field(default_factory=AutomaticRemoval)

    def step(self, release: DerivedRelease, batch: int) -> bool:
        """Compact a group of files, delete obsolete ones, or data of ended plans; return whether there is more.

        Raises OwnershipLost.
        """
        return (
            self.compaction.step(compacted_gold(table.target, table.grain, batch) for table in release.tables)
            or self.deletion.step(lambda: _retained(release))
            or self.removal.step(release.settings, release.derived.name)
        )


def compact_derived(
    release: DerivedRelease, batch: int, seconds: float, policy: CompactionPolicy = ON_REQUEST
) -> dict[str, dict[str, int]]:
    """Compact small files and remove obsolete ones; return what `compact_tables` does."""
    tables = [compacted_gold(table.target, table.grain, batch) for table in release.open_tables()]
    return compact_and_delete(warehouse(release.settings), tables, _retained(release), seconds, policy)


def _retained(release: DerivedRelease) -> RetainedTables:
    settings, name = release.settings, release.derived.name
    tables, retention = [each.target.table for each in release.tables], release.derived.pipeline.retention.versions
    return RetainedTables(tables, retention, partial(_published, release), reading_lock_path(settings, name), settings)


def _published(release: DerivedRelease) -> Mapping[Path, set[int]] | None:
    """Return by table the version that is published; None without a publication, which may have been lost."""
    published, root = find_publication(release.settings, release.derived.name), warehouse(release.settings)
    return {root / each.path: {each.version} for each in published.tables.values()} if published else None
