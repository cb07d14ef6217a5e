"""The main loop of a derived dataset's driver: follow the publications of its sources, compact, clean up, drain.

Reads: publications and tables of the sources. Writes: the dataset's gold, its publication, the status.
Guarantee: one run at a time; a run that fails is repeated, and readers keep the last publication.
After a crash: a patch that was begun is finished, then `DerivedRelease.next_run` returns the unfinished run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from include.declare.derived_dataset import released_derived, snapshot_derived
from include.ground.app_ids import plan_app_id
from include.ground.errors import Terminal
from include.ground.paths import patch_path, reading_lock_path, warehouse
from include.ground.settings import Settings
from include.ground.sql_quoting import same_sql
from include.read.publication import find_publication, find_shadow_publication, publish, save_shadow_publication
from include.state.json_file import JsonFile
from include.state.lease import Lease, LeaseLost
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind, pending_request
from include.state.release_files import PatchDirection, PatchInProgress, patch_in_progress_file
from include.state.streams import LastRun
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.backends.local.duckdb_session import DuckSession, duckdb_session
from spark_jobs.backends.session_start import Opened
from spark_jobs.history.apply_patch import PatchOutdated
from spark_jobs.history.rebuild_gold import visible
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.history.row_differences import find_differing_rows
from spark_jobs.layers.derived import DerivedTable, rows_of_grains
from spark_jobs.layers.gold_files import grains_in, touched_files
from spark_jobs.layers.gold_layer import failure_named, gold_metadata, write_gold
from spark_jobs.layers.row_provenance import rows_in_grains, with_grains_replaced
from spark_jobs.stream.active_releases import RequestWithdrawn
from spark_jobs.stream.back_off import BackOff, attempt
from spark_jobs.stream.compaction import ON_REQUEST, CompactionPolicy, compact_and_delete, compacted_gold
from spark_jobs.stream.derived_run import DerivedRelease
from spark_jobs.stream.expiry import AutomaticDeletion, RetainedTables
from spark_jobs.stream.progress import StatusReporter
from spark_jobs.stream.requests import (
    COMPACTION_SECONDS,
    attempted,
    patch_direction,
    receive_request,
    refuse_other_build,
    send_response,
)
from spark_jobs.stream.upkeep import AutomaticCompaction, AutomaticRemoval, declared_compaction
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.log_lines import error_reason, log_line
from spark_jobs.tables.spark_files import parquet_files, read_folder, write_folder


@dataclass(frozen=True)
class DerivedPatch:
    """A plan's patch of a release, applied or reverted."""

    release: DerivedRelease
    recorded: PatchInProgress
    folder: PlanFolder

    @property
    def app_id(self) -> str:
        """The app id of its commits."""
        return plan_app_id(self.release.derived.name, self.release.derived.release, self.recorded.plan)

    @property
    def is_started(self) -> bool:
        """Whether a commit of it was made, so that it must be finished."""
        return self.release.has_commit(self.recorded.direction, self.app_id)

    def is_committed(self, table: DerivedTable) -> bool:
        """Whether a table has its commit."""
        return table.target.table.committed(self.app_id) >= self.recorded.direction

    def rows(self, table: DerivedTable, state: str) -> Path:
        """Return the folder of a table's rows in a state, or of its grains to correct."""
        return self.folder.rows(state, table.target.table.spec.name)

    @property
    def states(self) -> tuple[str, str]:
        """The state that it takes away, and the one that it puts in place."""
        is_applied = self.recorded.direction is PatchDirection.APPLY
        return ("before", "after") if is_applied else ("after", "before")


def patch_derived(release: DerivedRelease, request: OwnerRequest) -> None:
    """Apply or revert the patch of a plan. Raises PatchNotCurrent, PatchOutdated, RequestWithdrawn, SourcesGone."""
    settings, name = release.settings, release.derived.name
    refuse_other_build(settings, name, release.derived.release, request)
    # A patch is applied between two runs: finish the one that was begun.
    release.finish_run()
    if pending_request(settings, name) != request:
        raise RequestWithdrawn(f"plan {request.plan}")
    _file(release).write(PatchInProgress(request.plan, patch_direction(request)))
    finish_derived_patch(release)


def finish_derived_patch(release: DerivedRelease) -> None:
    """Commit the recorded patch, if there is one, and publish. Without any commit of it, a failure removes the record.

    Raises PatchOutdated, SourcesGone, GoldFailed.
    """
    file = _file(release)
    recorded = file.read()
    if recorded is None:
        return
    path = patch_path(release.settings, release.derived.name, release.derived.release, recorded.plan)
    patch = DerivedPatch(release, recorded, PlanFolder(path))
    if not patch.is_started:
        try:
            for table in release.open_tables():
                _refuse_outdated(patch, table)
        except Exception:
            file.remove()
            raise
    pass_step(Step.PATCH_STARTED, release.published_run)
    for table in release.open_tables():
        _commit(patch, table)
        pass_step(Step.PATCH_GOLD_COMMITTED, release.published_run)
    release.republish()
    pass_step(Step.PATCH_PUBLISHED)
    file.remove()


def _file(release: DerivedRelease) -> JsonFile[PatchInProgress]:
    return patch_in_progress_file(release.settings, release.derived.name, release.derived.release)


def _refuse_outdated(patch: DerivedPatch, table: DerivedTable) -> None:
    """Raise PatchOutdated unless the table has the rows to take away, and a run would compute those to be applied."""
    place, name = patch.rows(table, "grains"), table.target.table.spec.name
    if not rows_in_folder(place):
        return
    old = touched_files(table.target, grains_in(table.target.gold, parquet_files(place)))
    taken, put = patch.states
    if _differ(patch, table, taken, lambda duck: duck.view_table("found", table.target.table, old)):
        raise PatchOutdated(name, patch.recorded.plan, "rows have changed")
    if patch.recorded.direction is PatchDirection.REVERT:
        return
    schema, again = visible(table.target.table.spec.data_schema), patch.folder.staging(name)
    with failure_named(patch.release.derived.name, table.target.table):
        rows = rows_of_grains(table, patch.release.published_input(), parquet_files(place))
        write_folder(rows.select(*schema.fieldNames()), again)
    if _differ(patch, table, put, lambda duck: duck.view_folder("found", again, schema)):
        raise PatchOutdated(name, patch.recorded.plan, "rows of its sources have changed")


def _differ(patch: DerivedPatch, table: DerivedTable, state: str, view: Callable[[DuckSession], None]) -> bool:
    """Return whether the patch's grains have other rows in a state than in the view `found`, which `view` creates."""
    schema, grain = visible(table.target.table.spec.data_schema), table.grain
    names = ", ".join(f'"{name}"' for name in schema.fieldNames())
    with duckdb_session() as duck:
        duck.view_folder("patched", patch.rows(table, "grains"), table.grains_schema)
        duck.view_folder("stored", patch.rows(table, state), schema)
        view(duck)
        for one in ("found", "stored"):
            rows = f"{one} semi join patched on {same_sql(grain, one, 'patched')}"
            duck.view_query(f"{one}_rows", f"select {names} from {rows}")
        find_differing_rows(duck, "found_rows", "stored_rows", grain)
        return bool(duck.count("select 1 from differing"))


def _commit(patch: DerivedPatch, table: DerivedTable) -> None:
    """Put the patch's rows in place, once; a table without any gets a commit too, so that all tables confirm it."""
    if patch.is_committed(table):
        return
    target, number, recorded = table.target, patch.release.published_run, patch.recorded
    place = patch.rows(table, "grains")
    grains, old, added = rows_in_folder(place), list[DataFile](), list[DataFile]()
    if grains:
        old = touched_files(target, grains_in(target.gold, parquet_files(place)))
        added, _ = write_gold(target, _patched(patch, table, old), f"{recorded.plan}-{recorded.direction}", old, number)
    metadata = gold_metadata(target, added, old, grains, _facts(patch, number)) | {"app_id": patch.app_id}
    target.table.commit(patch.app_id, recorded.direction, metadata, added, old)


def _patched(patch: DerivedPatch, table: DerivedTable, old: list[DataFile]) -> DataFrame:
    """Return the rows of the files `old` with the patch's grains replaced."""
    spark, number = table.target.spark, patch.release.published_run
    schema = visible(table.target.table.spec.data_schema)
    grains = read_folder(spark, patch.rows(table, "grains"), table.grains_schema)
    put = read_folder(spark, patch.rows(table, patch.states[1]), schema)
    fresh = rows_in_grains(put, grains, table.grain)
    return with_grains_replaced(table.grain, table.target.table.read(spark, old), fresh, grains, number)


def _facts(patch: DerivedPatch, number: int) -> dict[str, Any]:
    release, recorded = patch.release, patch.recorded
    facts = {"dataset": release.derived.name, "release": release.derived.release, "epoch": release.epoch}
    return {**facts, "batch": number, "plan": recorded.plan, "direction": recorded.direction}


class RequestNotKnown(Terminal):
    """A derived dataset has no identities, so it cannot execute such a request."""

    def __init__(self, dataset: str, kind: str) -> None:
        super().__init__(f"{dataset} is derived: it executes no {kind} request; nothing was done", "headrace status")
        self.dataset, self.kind = dataset, kind


def execute_derived(release: DerivedRelease, request: OwnerRequest) -> tuple[DerivedRelease, OwnerResponse]:
    """Execute a request; return the release that is published then, and the response."""
    executed, refusal = attempted(request, lambda: _execute(release, request))
    after, done = executed or (release, {})
    published = find_publication(release.settings, release.derived.name)
    batch = published.batch if published else -1
    return after, OwnerResponse(request.plan, request.kind, request.release, refusal.why, batch, refusal.remedy, done)


def _execute(release: DerivedRelease, request: OwnerRequest) -> tuple[DerivedRelease, Mapping[str, Any]]:
    finish_derived_patch(release)
    if request.kind in (RequestKind.APPLY_PATCH, RequestKind.REVERT_PATCH):
        patch_derived(release, request)
        return release, {}
    if request.kind is RequestKind.PROMOTE:
        return promoted(release, request.release), {}
    if request.kind is RequestKind.COMPACT:
        return release, {**compact_derived(release, release.published_run, COMPACTION_SECONDS)}
    if request.kind is not RequestKind.RETIRE:
        raise RequestNotKnown(release.derived.name, request.kind)
    return release, {}


def promoted(release: DerivedRelease, name: str) -> DerivedRelease:
    """Advance another release to the current sources and publish it; return it. The old one is kept for a rollback."""
    if release.derived.release == name:
        return release
    settings, dataset = release.settings, release.derived.name
    derived = released_derived(settings, dataset, name)
    other = DerivedRelease(settings, derived, release.spark, release.epoch, is_published=False)
    _catch_up(other)
    old, new = find_publication(settings, dataset), find_shadow_publication(settings, dataset, name)
    assert new is not None
    if old is not None:
        save_shadow_publication(settings, old)
    publish(settings, new)
    return replace(other, is_published=True)


def _catch_up(release: DerivedRelease) -> None:
    """Advance a release to the sources as they are now.

    While records arrive, these are replaced in less time than a run takes: what comes meanwhile is for the loop.
    """
    release.finish_run()
    if (run := release.next_run()) is not None:
        release.execute(run)


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


POLL_SECONDS = 0.1
"""Between two reads of the sources' publications."""


@dataclass
class DerivedLoop:
    """The running driver of a derived dataset; `back_off` is that of a failed run."""

    release: DerivedRelease
    lease: Lease
    reporter: StatusReporter
    stop: threading.Event
    clock: Callable[[], float] = time.monotonic
    behind_since: float | None = None
    back_off: BackOff = field(init=False)
    upkeep: DerivedUpkeep = field(init=False)

    def __post_init__(self) -> None:
        self.back_off = BackOff(self.clock)
        self.upkeep = DerivedUpkeep(declared_compaction(self.release.settings))

    def run(self) -> None:
        """Run until `stop` is set. Raises LeaseLost and what NOT_RETRIED names."""
        self.reporter.refresh = self._refresh
        while not self.stop.is_set():
            self.reporter.note_progress()
            if not self.lease.is_held():
                raise LeaseLost(self.release.derived.name, self.lease.location)
            self._execute_request()
            worked = self._advance()
            if not self.upkeep.step(self.release, self.reporter.status.refined_batch) and not worked:
                self.stop.wait(POLL_SECONDS)

    def _execute_request(self) -> None:
        settings, name = self.release.settings, self.release.derived.name
        request = receive_request(settings, name, lambda: self.reporter.status.refined_batch)
        if request is None:
            return
        before = self.release.derived.release
        self.release, response = execute_derived(self.release, request)
        after = self.reporter.status.release = self.release.derived.release
        if after != before:
            log_line(f"plan {request.plan}: release {after} is published, {before} before")
        send_response(settings, name, request, response)

    def _advance(self) -> bool:
        """Execute the next run, if there is one; return whether there was."""
        if self.back_off.is_pausing:
            return False
        if missing := self.release.missing_sources():
            self.reporter.waiting_for = f"nothing has published {', '.join(missing)} yet"
            self._report_running()
            return False
        self.reporter.waiting_for = self.release.awaited or None
        worked = attempt(self._execute_next, self._halt)
        if worked is None:
            return False
        self.back_off.end()
        self._report_running()
        return worked

    def _execute_next(self) -> bool:
        finish_derived_patch(self.release)
        run = self.release.next_run()
        if run is None:
            self.behind_since = None
            return False
        self.behind_since, started = self.behind_since or self.clock(), self.clock()
        self.release.execute(run)
        seconds, status = self.clock() - started, self.reporter.status
        rows = sum(table.target.table.rows for table in self.release.tables)
        status.refined_batch = run.number
        status.last_batch = LastRun(rows, round(seconds, 3), {"gold": round(seconds, 3)})
        self.upkeep.compaction.note_run()
        return True

    def _report_running(self) -> None:
        if self.reporter.status.state != "running":
            self.reporter.report("running")

    def _refresh(self) -> None:
        since = self.behind_since
        self.reporter.status.lag_seconds = 0.0 if since is None else round(self.clock() - since, 3)

    def _halt(self, error: Exception) -> None:
        pause = self.back_off.lengthen()
        log_line(
            f"the run failed: {error_reason(error)}; retry in {pause:.0f} s, readers keep the last publication."
            " Next: headrace status",
            error,
        )
        self.reporter.report("halted", error_reason(error))


def open_derived_loop(
    settings: Settings, name: str, lease: Lease, reporter: StatusReporter, stop: threading.Event, opened: Opened
) -> DerivedLoop:
    """Return the loop of the published release, or of the folder's before the first publication."""
    publication = find_publication(settings, name)
    derived = released_derived(settings, name, publication.release) if publication else snapshot_derived(settings, name)
    reporter.status.release = derived.release
    return DerivedLoop(DerivedRelease(settings, derived, opened(), lease.epoch), lease, reporter, stop)
