"""A patch of a derived dataset: the grains in which a plan found other rows, replaced by the owner between two runs.

Reads: the plan's folder (rebuild_derived.py), the sources of the published run. Writes: each gold table, one commit
each, idempotent by the plan's app id; the publication.
Guarantee: only rows that are still as they were compared are replaced, and only by rows that a run would compute now,
else nothing is; readers see all tables before the patch or after it.
After a crash: the next owner finishes the patch before any run; without a commit it is dropped if it cannot be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from include.ground.app_ids import plan_app_id
from include.ground.paths import patch_path
from include.ground.sql_quoting import same_sql
from include.state.json_file import JsonFile
from include.state.owner_requests import OwnerRequest, pending_request
from include.state.release_files import PatchDirection, PatchInProgress, patch_in_progress_file
from spark_jobs.history.apply_patch import PatchOutdated
from spark_jobs.history.differing_rows import find_differing_rows
from spark_jobs.history.rebuild_gold import visible
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.derived import DerivedTable, rows_of_grains
from spark_jobs.layers.gold_files import grains_in, touched_files
from spark_jobs.layers.gold_layer import failure_named, gold_metadata, write_gold
from spark_jobs.layers.row_provenance import rows_in_grains, with_grains_replaced
from spark_jobs.stream.active_releases import RequestWithdrawn
from spark_jobs.stream.derived_run import DerivedRelease
from spark_jobs.stream.execute_request import patch_direction, refuse_other_build
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.duckdb_session import (
    DuckSession,
    duckdb_session,
    parquet_files,
    read_folder,
    rows_in_folder,
    write_folder,
)
from spark_jobs.tables.failpoints import Step, pass_step


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
