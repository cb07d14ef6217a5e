"""A derived dataset's runs: from the published versions of its sources to its own publication (layers/adr-0010).

Each table gets run n once; readers see n when all tables have it, over one version of each source.
After a crash: `run.json` of the release names the versions; the same run is repeated with them. When files of those
versions are gone, everything is recomputed from the current ones, by a run of its own.
After a failure: if no table is ahead of the publication, the run is forgotten, since its sources may be the reason; the
next one is over the current versions. Else it is repeated once, then replaced as if its versions were gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from include.declare.derived_dataset import DerivedDataset, released_derived, snapshot_derived
from include.ground.app_ids import plan_app_id, release_app_id
from include.ground.delta_log import LOG, FileChanges, transaction_version
from include.ground.paths import derived_run_path, gold_path, reading_lock_path, release_path, warehouse
from include.ground.settings import Settings
from include.plans.dependants import Versions, awaited_moves, can_come, readable_versions, refuse_lacking
from include.read.publication import (
    Publication,
    PublishedTable,
    SourceVersion,
    TableVersion,
    find_publication,
    find_shadow_publication,
    publish,
    published_tables,
    read_publication,
    save_shadow_publication,
)
from include.read.published_tables import PublishedVersionGone
from include.state.json_file import JsonFile
from include.state.lease import Lease
from include.state.owner_requests import pending_request
from include.state.release_files import PatchInProgress, PlanBuild
from spark_jobs.backends.backend import Backend
from spark_jobs.backends.release import chosen_backend, claim_tables
from spark_jobs.history.rebuild_derived import DerivedPatch, commit_run
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.derived import (
    DerivedInput,
    DerivedTable,
    Sources,
    SourcesGone,
    changes_since,
    open_derived_table,
    open_sources,
    source_version,
)
from spark_jobs.stream.back_off import NOT_RETRIED
from spark_jobs.stream.compaction import (
    COMPACTION_SECONDS,
    ON_REQUEST,
    CompactedTable,
    CompactionPolicy,
    compact_and_delete,
    compacted_gold,
)
from spark_jobs.stream.driver_loop import Source
from spark_jobs.stream.expiry import RetainedTables
from spark_jobs.stream.progress import StatusReporter
from spark_jobs.stream.refine import RunReport
from spark_jobs.stream.requests import Owned, withdrawn
from spark_jobs.tables.commit_log import take_over_tables
from spark_jobs.tables.failpoints import Step, pass_step


@dataclass(frozen=True)
class DerivedRun:
    """A run that was begun: its number, the versions of its sources by table, and whether everything is computed.

    `failures`: how often it failed while a table was ahead of the publication.
    """

    number: int
    sources: Mapping[str, SourceVersion]
    whole: bool = False
    failures: int = 0


@dataclass(frozen=True)
class RunNumbers:
    """The last run that was published, the greatest that a table has, and the one that was begun; -1: none."""

    published: int
    committed: int
    begun: int = -1

    @property
    def is_ahead(self) -> bool:
        """Whether a table has rows of a run that was not published, which another run must replace."""
        return self.committed > self.published

    @property
    def is_begun(self) -> bool:
        """Whether tables may differ from what was published."""
        return max(self.committed, self.begun) > self.published

    @property
    def next(self) -> int:
        """A number that no table skips: each run of this number is new to all of them."""
        return max(self.published, self.committed, self.begun) + 1


@dataclass
class DerivedRelease(Owned):
    """A release of a derived dataset with its open tables.

    `is_published`: its runs move the publication; runs of a shadow release store theirs in a separate file. `followed`:
    the published sources without rows for another run.
    """

    settings: Settings
    derived: DerivedDataset
    spark: SparkSession
    lease: Lease
    is_published: bool = True
    tables: tuple[DerivedTable, ...] = ()
    followed: Mapping[str, PublishedTable] = field(default_factory=dict)
    awaited: str = ""
    """The moves of its sources that it waits for, in words."""

    def missing_sources(self) -> list[str]:
        """Return the sources that nothing has published yet."""
        published = published_tables(self.settings)
        return [table for table in self._sources if table not in published]

    def build(self, versions: Mapping[str, SourceVersion]) -> Publication:
        """Compute everything over these versions, by full name, once; return its publication. Raises SourcesGone."""
        current = {table: versions.get(table) or self.current_sources()[table] for table in self._sources}
        last = self._last_publication()
        if last is not None and last.sources == current:
            return last
        run = DerivedRun(self._numbers().next, current, whole=True)
        if not self._is_readable(run):
            raise SourcesGone(self.derived.name)
        self.execute(run)
        built = self._last_publication()
        assert built is not None
        return built

    def next_run(self) -> DerivedRun | None:
        """Return the run to execute now: the unfinished one, or one over sources that have changed; None: none.

        Sources with new versions of the same rows are entered into the publication, without a run.
        """
        self.awaited, unfinished, published = "", self._unfinished(), published_tables(self.settings)
        # It is replaced if it failed again while a table was ahead, and its sources have other versions now.
        is_current = unfinished and (unfinished.failures <= 1 or unfinished.sources == self.current_sources())
        if unfinished is not None and is_current and self._is_readable(unfinished):
            return unfinished
        sources = {table: published[table] for table in self._sources}
        if unfinished is None and sources == self.followed:
            return None
        last, now = self._last_publication(), self.current_sources()
        if self.is_published and last is not None and self._is_moving(last, sources):
            return None
        if last is not None:
            # A source may have been replaced by a release without columns that the queries read.
            refuse_lacking(self.settings, self.derived, last.sources, now)
        numbers = self._numbers()
        if not numbers.is_begun and last is not None and not self._has_changed(last, now):
            if now != last.sources:
                self._publish(replace(last, sources=now))
            self.followed = sources
            return None
        return DerivedRun(numbers.next, now, whole=last is None or numbers.is_begun)

    def _is_moving(self, last: Publication, sources: Mapping[str, PublishedTable]) -> bool:
        """Return whether a plan has moved a source and has another release follow it, by a request that is pending."""
        used = {table: last.sources[table].release for table in sources if table in last.sources}
        moved = any(sources[table].release != release for table, release in used.items())
        request = pending_request(self.settings, self.derived.name) if moved else None
        if request is None or not request.after or not can_come(self.settings, request):
            return False
        self.awaited = awaited_moves(self.settings, request)
        return True

    def readable_versions(self, used: Mapping[str, SourceVersion], new: Mapping[str, SourceVersion]) -> Versions:
        """Return the versions to compute over: `new`, else used or published ones. Raises SourcesLackColumns."""
        current = self.current_sources() | dict(new)
        own = {table: used.get(table) or current[table] for table in self._sources} | dict(new)
        own, current = ({table: each[table] for table in self._sources} for each in (own, current))
        return readable_versions(self.settings, self.derived, own, current)

    def execute(self, run: DerivedRun) -> None:
        """Commit a run to all tables and publish it. Raises OwnershipLost, GoldFailed, DeclarationRefused."""
        self._file.write(run)
        try:
            self._commit(run)
        except NOT_RETRIED:
            # The file belongs to the other owner.
            raise
        except Exception:
            # Forget the run if the next one can have its number.
            if self._numbers().is_ahead:
                self._file.write(replace(run, failures=run.failures + 1))
            else:
                self._file.remove()
            raise
        self._file.remove()

    def _commit(self, run: DerivedRun) -> None:
        sources = self._opened(run.sources)
        if not self.tables:
            self.tables = self._open_tables(sources)
        changes = None if run.whole else self._changes(run)
        given = DerivedInput(run.number, sources, changes)
        staging = release_path(self.settings, *self._named) / "staging"
        for table in self.tables:
            commit_run(table, given, self.backend, self._facts(run), staging / table.declared.name)
        pass_step(Step.ALL_GOLD_COMMITTED, run.number)
        self._publish(self._publication(run))
        pass_step(Step.PUBLISHED, run.number)

    def _numbers(self) -> RunNumbers:
        unfinished = self._unfinished()
        return RunNumbers(self.batch, self._committed(), unfinished.number if unfinished else -1)

    def _committed(self, app_id: str | None = None) -> int:
        """Return the greatest run that a table has, or version of another app id; -1: none.

        The logs say it: tables cannot be opened over sources that do not fit.
        """
        greatest = -1
        for gold in self.derived.pipeline.gold:
            path = gold_path(self.settings, *self._named, gold.name)
            wanted = app_id or release_app_id(*self._named, f"gold/{gold.name}")
            found = transaction_version(path, wanted) if (path / LOG).is_dir() else None
            greatest = max(greatest, -1 if found is None else found)
        return greatest

    @property
    def batch(self) -> int:
        """The number of the last run that this release has published, or would publish; -1 before the first."""
        last = self._last_publication()
        return last.batch if last else -1

    def published_input(self) -> DerivedInput:
        """Return the published run and its sources, to compute grains of it again. Raises SourcesGone."""
        run = self._published_run()
        if not self._is_readable(run):
            raise SourcesGone(self.derived.name)
        return DerivedInput(run.number, self._opened(run.sources), {})

    @property
    def dataset(self) -> str:
        return self.derived.name

    @property
    def release_name(self) -> str:
        return self.derived.release

    def compactable(self) -> Iterator[CompactedTable]:
        yield from (compacted_gold(each.target, each.grain, self.batch, self.backend) for each in self.tables)

    def retained(self) -> RetainedTables:
        """Return the tables that are open, so that deletion opens none."""
        settings, lock = self.settings, reading_lock_path(self.settings, self.dataset)
        tables, retention = [each.target.table for each in self.tables], self.derived.pipeline.retention.versions
        return RetainedTables(tables, retention, self._published_versions, lock, settings)

    def _published_versions(self) -> Mapping[Path, set[int]] | None:
        """Return by table the version that is published; None without a publication, which may have been lost."""
        published, root = find_publication(self.settings, self.dataset), warehouse(self.settings)
        return {root / each.path: {each.version} for each in published.tables.values()} if published else None

    def compact(self, policy: CompactionPolicy = ON_REQUEST) -> Mapping[str, Any]:
        self.open_tables()
        root = warehouse(self.settings)
        return compact_and_delete(root, self.compactable(), self.retained(), COMPACTION_SECONDS, policy)

    def refuse_decided(self, plan: str, built: PlanBuild) -> None:
        """Do nothing: it has no records."""

    def retire(self, name: str) -> None:
        """Do nothing: no release but the published one is advanced."""

    def promote(self, name: str, is_pending: Callable[[], bool] = lambda: True) -> None:
        """Advance another release to the current sources and publish it in place of this one, kept for a rollback."""
        if name == self.release_name:
            return
        declared = released_derived(self.settings, self.dataset, name)
        other = DerivedRelease(self.settings, declared, self.spark, self.lease, is_published=False)
        other.finish_runs()
        # One run: the sources may move faster than runs end, and what comes meanwhile is for the loop.
        if (run := other.next_run()) is not None:
            other.execute(run)
        if not is_pending():
            raise withdrawn(f"release {name}")
        old = find_publication(self.settings, self.dataset)
        new = find_shadow_publication(self.settings, self.dataset, name)
        assert new is not None
        if old is not None:
            save_shadow_publication(self.settings, old)
        publish(self.settings, new)
        self.derived, self.tables, self.followed, self.lease = other.derived, other.tables, other.followed, other.lease

    def apply_patch(self, recorded: PatchInProgress, folder: PlanFolder) -> None:
        """Commit a patch. Raises PatchOutdated, SourcesGone, GoldFailed."""
        tables = self.open_tables()
        facts = {"dataset": self.dataset, "release": self.release_name, "epoch": self.lease.epoch}
        patch = DerivedPatch(self.backend, recorded, folder, tables, self.batch, facts)
        if not self.has_commit_of(recorded):
            patch.refuse_outdated(self.published_input)
        pass_step(Step.PATCH_STARTED, self.batch)
        patch.commit()

    def has_commit_of(self, recorded: PatchInProgress) -> bool:
        app_id = plan_app_id(self.dataset, self.release_name, recorded.plan)
        return self._committed(app_id) >= recorded.direction

    def finish_runs(self) -> None:
        """Execute the run that was begun and not published, if there is one."""
        if self._numbers().is_begun and (run := self.next_run()) is not None:
            self.execute(run)

    def republish(self) -> None:
        """Publish the tables as they are now, over the sources of the published run."""
        self._publish(self._publication(self._published_run()))

    def _published_run(self) -> DerivedRun:
        last = read_publication(self.settings, self.derived.name)
        return DerivedRun(last.batch, last.sources)

    def open_tables(self) -> tuple[DerivedTable, ...]:
        """Open the tables over the sources that are published now, once, and return them."""
        self.tables = self.tables or self._open_tables(self._opened(self.current_sources()))
        return self.tables

    @property
    def _named(self) -> tuple[str, str]:
        return self.derived.name, self.derived.release

    @property
    def _file(self) -> JsonFile[DerivedRun]:
        path = derived_run_path(self.settings, *self._named)
        return JsonFile(path, DerivedRun, remedy=f'rm "{path}"   (everything is recomputed)')

    def _last_publication(self) -> Publication | None:
        """Return the publication of this release, or its shadow publication; None before its first run."""
        found = find_publication(self.settings, self.derived.name)
        if found is not None and found.release == self.derived.release:
            return found
        return find_shadow_publication(self.settings, *self._named)

    def _publish(self, publication: Publication) -> None:
        if self.is_published:
            publish(self.settings, publication)
        else:
            save_shadow_publication(self.settings, publication)

    def _unfinished(self) -> DerivedRun | None:
        run, last, names = self._file.read(), self._last_publication(), self.derived.pipeline.sources
        if run is None or (last is not None and last.batch >= run.number):
            return None
        # Earlier versions wrote the names in queries.
        return replace(run, sources={names.get(name, name): each for name, each in run.sources.items()})

    @property
    def _sources(self) -> list[str]:
        return list(self.derived.pipeline.sources.values())

    def current_sources(self) -> dict[str, SourceVersion]:
        tables, root = published_tables(self.settings), warehouse(self.settings)
        return {table: source_version(tables[table], root) for table in self._sources}

    def _is_readable(self, run: DerivedRun) -> bool:
        """Return whether all files of the sources' versions are still there."""
        try:
            sources = self._opened(run.sources)
        except PublishedVersionGone:
            return False
        return all(each.is_whole for each in sources.values())

    def _has_changed(self, last: Publication, now: Mapping[str, SourceVersion]) -> bool:
        """Return whether rows of the sources differ from those that the publication was computed from."""
        root = warehouse(self.settings)
        found = [changes_since(root, last.sources.get(table), version) for table, version in now.items()]
        return any(files is None or files.added or files.removed for files in found)

    def _changes(self, run: DerivedRun) -> dict[str, FileChanges] | None:
        """Return what changed in each source since the last run; None when that of one is not known."""
        root, last = warehouse(self.settings), self._last_publication()
        known = dict[str, FileChanges]()
        for name, table in self.derived.pipeline.sources.items():
            files = changes_since(root, last.sources.get(table) if last else None, run.sources[table])
            if files is None:
                return None
            known[name] = files
        return known

    def _opened(self, versions: Mapping[str, SourceVersion]) -> Sources:
        return open_sources(self.settings, self.derived.pipeline.sources, versions)

    @cached_property
    def backend(self) -> Backend:
        return chosen_backend(self.spark, self.settings)

    def _open_tables(self, sources: Sources) -> tuple[DerivedTable, ...]:
        settings, declared = self.settings, self.derived.pipeline.gold
        paths = (gold_path(settings, *self._named, gold.name) for gold in declared)
        take_over_tables(paths, self.lease.epoch, leases_expire=bool(settings.lease_url))
        opened = (self.spark, settings, self.derived, sources, self.backend.open_table)
        tables = tuple(open_derived_table(*opened, gold) for gold in declared)
        self.lease = claim_tables([each.target.table for each in tables], self.lease)
        return tables

    def _facts(self, run: DerivedRun) -> dict[str, Any]:
        release = self.derived.release
        used = {table: [each.release, each.batch, each.version] for table, each in run.sources.items()}
        facts = {"dataset": self.derived.name, "release": release, "code": release, "epoch": self.lease.epoch}
        return {**facts, "batches": [run.number, run.number], "sources": used}

    def _publication(self, run: DerivedRun) -> Publication:
        root = warehouse(self.settings)
        tables = [each.target.table for each in self.tables]
        return Publication(
            dataset=self.derived.name,
            release=self.derived.release,
            batch=run.number,
            published_at=datetime.now(UTC),
            offsets={},
            tables={t.spec.name: TableVersion(str(t.spec.path.relative_to(root)), t.version) for t in tables},
            sources=dict(run.sources),
        )


@dataclass
class DerivedSource(Source):
    """The published versions of other datasets: a run is over those that have changed."""

    release: DerivedRelease
    reporter: StatusReporter
    clock: Callable[[], float] = time.monotonic
    poll_seconds: ClassVar[float] = 0.1
    _behind_since: float | None = None

    def __post_init__(self) -> None:
        self.reporter.refresh = self._refresh

    def run_next(self) -> RunReport | None:
        """Execute the unfinished run, or one over sources that have changed; None: none."""
        release, reporter = self.release, self.reporter
        if missing := release.missing_sources():
            reporter.waiting_for = f"nothing has published {', '.join(missing)} yet"
            return None
        reporter.waiting_for = release.awaited or None
        run = release.next_run()
        if run is None:
            self._behind_since = None
            return None
        self._behind_since, report = self._behind_since or self.clock(), RunReport((run.number, run.number), 0)
        with report.step("gold"):
            release.execute(run)
        report.rows = sum(table.target.table.rows for table in release.tables)
        return report

    def _refresh(self) -> None:
        since = self._behind_since
        self.reporter.status.lag_seconds = 0.0 if since is None else round(self.clock() - since, 3)


def open_derived(settings: Settings, name: str, spark: SparkSession, lease: Lease) -> DerivedRelease:
    """Return the published release, or the one of the folder before the first publication."""
    publication = find_publication(settings, name)
    derived = released_derived(settings, name, publication.release) if publication else snapshot_derived(settings, name)
    return DerivedRelease(settings, derived, spark, lease)
