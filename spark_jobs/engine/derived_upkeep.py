"""Upkeep of a derived dataset's tables between two runs: small files, files that no version needs, ended plans.

Reads / Writes: the tables of the published release; what `include/plans/ended_plans.py` says.
Guarantee: the rows stay the same; the published version and those replaced within the retention stay readable.
After a crash: the next check does the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from include.clients.table_files import obsolete_files
from include.paths import reading_lock_path, warehouse
from include.reading.publication import find_publication
from include.state.file_locks import is_free
from spark_jobs.engine.automatic_compaction import AutomaticCompaction
from spark_jobs.engine.automatic_removal import AutomaticRemoval
from spark_jobs.engine.automatic_step import PAUSE_AFTER_FAILURE, SECONDS_AT_ONCE, AutomaticStep
from spark_jobs.engine.compact_tables import CompactedTable, compact_until, compaction_facts
from spark_jobs.engine.compaction_groups import ON_REQUEST, CompactionPolicy
from spark_jobs.engine.derived_run import DerivedRelease
from spark_jobs.engine.obsolete_files import LOOKS_PER_RETENTION, delete_obsolete_files
from spark_jobs.layers.derived_gold import DerivedTable
from spark_jobs.layers.gold_files import old_neighbours


@dataclass
class DerivedUpkeep(AutomaticStep):
    """Upkeep in steps of about a second; `next_look` is that for obsolete files."""

    compaction: AutomaticCompaction
    removal: AutomaticRemoval = field(default_factory=AutomaticRemoval)

    def step(self, release: DerivedRelease, batch: int) -> None:
        """Compact one group of files, look for obsolete ones, and for ended plans. Raises OwnershipLost."""
        self.compaction.step(_compacted(table, batch) for table in release.tables)
        failure = f"obsolete files were not deleted, next try in {PAUSE_AFTER_FAILURE:.0f} s"
        self.guarded(lambda: self._clean(release), failure)
        self.removal.step(release.settings, release.derived.name)

    def _clean(self, release: DerivedRelease) -> bool:
        """Delete obsolete files for a second by table, if it is time; return False: no more before the next look."""
        if self.is_pausing() or find_publication(release.settings, release.derived.name) is None:
            return False
        retention = release.derived.pipeline.retention.versions
        self.pause(retention.total_seconds() / LOOKS_PER_RETENTION)
        for table in release.tables:
            files = _obsolete(release, table)
            delete_obsolete_files(table.target.table, files, time.monotonic() + SECONDS_AT_ONCE)
        return False


def compact_derived(
    release: DerivedRelease, batch: int, seconds: float, policy: CompactionPolicy = ON_REQUEST
) -> dict[str, dict[str, int]]:
    """Compact small files and remove obsolete ones; return by table `files` before, `now`, `removed` and `left`.

    `left`: groups that were not compacted within `seconds`.
    """
    end, root = time.monotonic() + seconds, warehouse(release.settings)
    done: dict[str, dict[str, int]] = {}
    for table in release.tables or release.open_tables():
        stored = table.target.table
        before, left = len(stored.files()), compact_until(end, _compacted(table, batch), policy)
        obsolete = _obsolete(release, table, sweep=True)
        done[str(stored.spec.path.relative_to(root))] = compaction_facts(stored, before, left, obsolete, end)
    return done


def _compacted(table: DerivedTable, batch: int) -> CompactedTable:
    return CompactedTable(table.target.table, order=table.grain, places=partial(old_neighbours, table.target, batch))


def _obsolete(release: DerivedRelease, table: DerivedTable, *, sweep: bool = False) -> list[Path]:
    """Return the files of a table to delete; none while a job reads tables."""
    settings, name, path = release.settings, release.derived.name, table.target.table.spec.path
    published = find_publication(settings, name)
    if published is None or not is_free(reading_lock_path(settings, name)):
        return []
    named = published.tables.get(table.target.table.spec.name)
    kept = [named.version] if named and warehouse(settings) / named.path == path else []
    retention = release.derived.pipeline.retention.versions
    return [path / each for each in obsolete_files(path, kept, retention, sweep=sweep)]
