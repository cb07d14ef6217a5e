"""A patch: the rows in which a slice differs, replaced by the tables' owner (docs/architecture.md §6).

Reads: the plan's folder (rebuild_slice.py), the release's tables at their head.
Writes: silver, rejected, each gold table that is concerned: one commit each, idempotent by the plan's app id.
Guarantee: either every row to replace still equals the compared row, or nothing is changed; gold follows from silver.
After a crash: a call with the same arguments commits what is missing.
Does not: publish, or remove anything from bronze: what bronze lacked is filled in first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from include.declare.gold import EVERY_RUN
from include.ground.app_ids import plan_app_id
from include.ground.delta_log import commits
from include.ground.errors import Terminal
from include.read.rejected_records import Position
from include.state.release_files import PatchDirection
from spark_jobs.backends.backend import Backend, Sql, Transaction, ValidatedFiles
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.backends.local.identities import identity_columns
from spark_jobs.backends.release import Release
from spark_jobs.history.rebuild_gold import refuse_expired_grains, replaced_grains
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.bronze import fill_gaps
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import GOLD_AT_A_TIME, GoldUpdate, refresh_state
from spark_jobs.layers.run_inputs import ReferenceVersions
from spark_jobs.layers.silver_tables import POSITIONS, Month, SilverTables, files_at, first_unexpired_batch
from spark_jobs.tables.data_files import parquet_files, read_folder
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.failpoints import Step, pass_step


@dataclass(frozen=True)
class PatchedReference:
    """Of a plan: versions of the reference tables, by Kafka partition the bounds [first, last] of the records."""

    plan: str
    versions: Mapping[str, int]
    offsets: Mapping[int, Sequence[int]]

    def has(self, position: Position) -> bool:
        first, last = self.offsets.get(position[0], (0, -1))
        return first <= position[1] <= last


def reference_facts(sql: Sql, versions: Mapping[str, int] | None, added: Iterable[Path]) -> dict[str, Any]:
    """Return what the commit of a patch says of its `versions`; `added`: files of the rows that it adds."""
    files = list(added)
    if versions is None or not files:
        return {}
    sql.view_files("joined", files, POSITIONS)
    bounds = sql.rows("select _partition, min(_offset), max(_offset) from joined group by all")
    return {"reference": dict(versions), "joined": {str(partition): offsets for partition, *offsets in bounds}}


def patched_references(silver: Table) -> list[PatchedReference]:
    """Return those of all patches that are not reverted, the newest first."""
    found: dict[str, PatchedReference] = {}
    for commit in commits(silver.spec.path):
        facts = commit.metadata or {}
        if commit.version > silver.version:
            break
        if "plan" in facts:
            found.pop(facts["plan"], None)
        if "joined" in facts and facts["direction"] == PatchDirection.APPLY:
            offsets = {int(partition): bounds for partition, bounds in facts["joined"].items()}
            found[facts["plan"]] = PatchedReference(facts["plan"], facts["reference"], offsets)
    return list(found.values())[::-1]


def validate_joined(
    backend: Backend,
    writer: SilverTables,
    records: Sequence[Path],
    batches: tuple[int, int],
    until: int,
    joined: Mapping[Position, PatchedReference],
) -> ValidatedFiles:
    """Validate records; those in `joined` are joined with the reference tables that a plan had."""
    if not joined:
        return backend.validate(writer, records, batches, writer.staging, until)

    def validated(patched: PatchedReference | None) -> ValidatedFiles:
        folder, own = writer.staging / (patched.plan if patched is not None else "others"), writer
        with backend.sql() as sql:
            sql.view_files("records", records, writer.bronze.spec.data_schema)
            sql.view_places("positions", [position for position, each in joined.items() if patched in (None, each)])
            join = f'{"anti" if patched is None else "semi"} join positions using ("partition", "offset")'
            sql.save_records(f"select * from records {join}", folder / "records")
        if patched is not None:
            versions = ReferenceVersions(writer.spark, writer.decisions.settings, writer.dataset, patched.versions)
            own = replace(writer, reference=versions, staging=folder / "_staging")
        part = [path for path in parquet_files(folder / "records") if pq.read_metadata(path).num_rows]
        return backend.validate(own, part, batches, folder / "validated", until)

    found = [validated(patched) for patched in (None, *{each.plan: each for each in joined.values()}.values())]
    return ValidatedFiles(
        tuple(path for part in found for path in part.accepted), tuple(path for part in found for path in part.invalid)
    )


class PatchOutdated(Terminal):
    """The table no longer holds the rows that were compared."""

    def __init__(self, table: str, plan: str, why: str) -> None:
        super().__init__(
            f"{table}: {why} since plan {plan} was compared; nothing was changed", f"headrace plan compare {plan}"
        )
        self.table, self.plan = table, plan


@dataclass(frozen=True)
class Patch:
    """A plan's folder, compared at batch `built`. Reverting puts back the rows that applying removed.

    `reference`: versions of the reference tables that its rows were joined with, None for those of each batch.
    """

    plan: str
    folder: PlanFolder
    built: int
    direction: PatchDirection
    reference: Mapping[str, int] | None = None

    def removed(self, table: Table) -> Path:
        return self.folder.rows("removed" if self.direction is PatchDirection.APPLY else "added", table.spec.name)

    def added(self, table: Table) -> Path:
        return self.folder.rows("added" if self.direction is PatchDirection.APPLY else "removed", table.spec.name)

    def files(self, table: Table) -> list[Path]:
        return [p for state in ("removed", "added") for p in parquet_files(self.folder.rows(state, table.spec.name))]

    def app_id(self, release: Release) -> str:
        return plan_app_id(release.dataset.name, release.dataset.release, self.plan)


def apply_patch(release: Release, patch: Patch, batch: int, epoch: int) -> None:
    """Patch tables, all at `batch`. Raises PatchOutdated, Terminal (`grains-expired`); then nothing is changed."""
    writer, app_id = release.writer, patch.app_id(release)
    if not is_started(release, patch.plan, patch.direction):
        refuse_outdated(release, patch, batch)
    facts = {"dataset": release.dataset.name, "release": release.dataset.release, "epoch": epoch, "batch": batch}
    facts |= {"plan": patch.plan, "direction": patch.direction, "app_id": app_id}
    if patch.direction is PatchDirection.APPLY:
        _fill_bronze(release, patch, facts)
    pass_step(Step.PATCH_STARTED, batch)
    month = Month(release.dataset.pipeline.event_time)
    _replace(release.backend, writer.silver, patch, month, facts | _reference_facts(release, patch))
    pass_step(Step.PATCH_SILVER_COMMITTED, batch)
    _replace(release.backend, writer.rejected, patch, Month("first_seen", is_arrival=True), facts)
    pass_step(Step.PATCH_REJECTED_COMMITTED, batch)

    def patch_gold(target: GoldTable) -> None:
        _patch_gold(release.backend, target, writer.silver, patch, facts)
        pass_step(Step.PATCH_GOLD_COMMITTED, batch)

    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        for _ in pool.map(patch_gold, release.gold):
            pass


def _reference_facts(release: Release, patch: Patch) -> dict[str, Any]:
    if patch.direction is PatchDirection.REVERT:
        return {}
    tables = (release.writer.silver, release.writer.rejected)
    added = [path for table in tables for path in parquet_files(patch.added(table))]
    with release.backend.sql() as sql:
        return reference_facts(sql, patch.reference, added)


def is_started(release: Release, plan: str, direction: PatchDirection) -> bool:
    """Whether a commit of a plan's patch was made, so that it must be finished."""
    app_id = plan_app_id(release.dataset.name, release.dataset.release, plan)
    filled = direction is PatchDirection.APPLY and release.writer.bronze.committed(app_id) >= PatchDirection.APPLY
    return filled or release.writer.silver.committed(app_id) >= direction


def _fill_bronze(release: Release, patch: Patch, facts: dict[str, Any]) -> None:
    """Add to bronze the records that it lacks; one file holds records of one batch and one partition."""
    bronze, spark = release.writer.bronze, release.writer.spark
    folder = patch.folder.rows("added", bronze.spec.name)
    if not rows_in_folder(folder):
        return
    with release.backend.sql() as sql:
        sql.view_folder("missing", folder, bronze.spec.data_schema)
        places = sql.rows("select distinct _batch_id, partition from missing order by all")
    missing = read_folder(spark, folder, bronze.spec.data_schema)
    fill_gaps(bronze, missing, [(batch, part) for batch, part in places], facts["app_id"], facts)


def refuse_outdated(release: Release, patch: Patch, batch: int) -> None:
    """Raise PatchOutdated unless the rows to remove exist and no later batch depends on them.

    Raises Terminal when records of its grains have expired since it was built.
    """
    writer, plan = release.writer, patch.plan
    for table in (writer.silver, writer.rejected):
        with release.backend.sql() as sql:
            _view_patch_rows(sql, table, patch)
            sql.view_table("current", table, files_at(table, patch.files(table)))
            if sql.count("select * from removed except all select * from current"):
                raise PatchOutdated(table.spec.name, plan, "rows have changed")
            if sql.count(NEW_RECORDS):
                raise PatchOutdated(table.spec.name, plan, "records have arrived")
    _refuse_second_winner(release, patch)
    if batch > patch.built:
        _refuse_later_records(release, patch)
    for target in release.gold:
        complete = first_unexpired_batch(writer, "silver")
        refuse_expired_grains(release.backend, target, writer.silver, patch.folder, batch, complete)


def _refuse_second_winner(release: Release, patch: Patch) -> None:
    """Another plan may have put a row of the same identity into silver."""
    writer = release.writer
    with release.backend.sql() as sql:
        _view_patch_rows(sql, writer.silver, patch)
        sql.view_candidates("candidates", writer, parquet_files(patch.added(writer.silver)))
        if sql.count(SECOND_WINNERS.format(identity=identity_columns(release.dataset))):
            raise PatchOutdated(writer.silver.spec.name, patch.plan, "another record of the same identity has arrived")


def _view_patch_rows(sql: Sql, table: Table, patch: Patch) -> None:
    sql.view_folder("removed", patch.removed(table), table.spec.data_schema)
    sql.view_folder("added", patch.added(table), table.spec.data_schema)


def _refuse_later_records(release: Release, patch: Patch) -> None:
    """A later record with an identity of the patch may win or lose by it."""
    writer, first = release.writer, patch.built + 1
    with release.backend.sql() as sql:
        _view_patch_rows(sql, writer.silver, patch)
        for name, table in (("silver", writer.silver), ("rejected", writer.rejected)):
            sql.view_table(f"{name}_files", table, table.batch_files(first, sys.maxsize))
            sql.view_query(f"later_{name}", f"select * from {name}_files where _batch_id >= {first}")
        if sql.count(LATER_RECORDS.format(identity=identity_columns(release.dataset))):
            raise PatchOutdated(writer.silver.spec.name, patch.plan, "a later record has the same identity")
        if sql.count(LATER_LOSERS.format(winner=f"{sql.first_reason}.detail")):
            raise PatchOutdated(writer.rejected.spec.name, patch.plan, "a later duplicate has lost to a record of it")


def _replace(backend: Backend, table: Table, patch: Patch, month: Month, facts: dict[str, Any]) -> None:
    if table.committed(facts["app_id"]) >= patch.direction:
        return
    removed, added = patch.removed(table), patch.added(table)
    counts = {"rows_removed": rows_in_folder(removed), "rows_added": rows_in_folder(added)}
    total = table.rows - counts["rows_removed"] + counts["rows_added"]
    metadata = facts | {"table": table.spec.name, "total": total} | counts
    if table.spec.name.startswith("rejected."):
        metadata |= _changed_counts(backend, table, patch)
    try:
        backend.replace(table, month, removed, added, Transaction(facts["app_id"], patch.direction), metadata)
    except RowsUnaccounted as error:
        raise PatchOutdated(table.spec.name, patch.plan, "rows have changed") from error


def _changed_counts(backend: Backend, table: Table, patch: Patch) -> dict[str, Any]:
    with backend.sql() as sql:
        _view_patch_rows(sql, table, patch)
        counted = {"dispositions": "disposition", "reasons": sql.rules}
        return {kind: dict(sql.rows(CHANGED.format(name=name))) for kind, name in counted.items()}


def _patch_gold(backend: Backend, target: GoldTable, silver: Table, patch: Patch, facts: dict[str, Any]) -> None:
    table, folder = target.table, patch.folder.rows("grains", target.table.spec.name)
    if table.committed(facts["app_id"]) >= patch.direction or not rows_in_folder(folder):
        return
    metadata = facts | {"table": table.spec.name, "grains": rows_in_folder(folder)}
    if target.gold.refresh != EVERY_RUN:
        # A row of the patch may have changed where an open session begins.
        metadata |= GoldUpdate(refreshed=replace(refresh_state(target), since=None)).metadata
    replaced = replaced_grains(target, silver, patch.folder, facts["batch"])
    backend.replace_grains(target, replaced, Transaction(facts["app_id"], patch.direction), metadata)


NEW_RECORDS = """
select * from current
semi join (select * from added anti join removed using (_partition, _offset)) using (_partition, _offset)
"""
SECOND_WINNERS = """
select _offset from candidates
anti join removed using (_partition, _offset)
semi join added using ({identity})
"""
LATER_RECORDS = """
select _offset from later_silver
semi join (select {identity} from removed union all select {identity} from added) as patched using ({identity})
"""
LATER_LOSERS = """
select _offset from later_rejected
where disposition = 'duplicate'
and {winner} in (select concat_ws('/', _batch_id, _partition, _offset) from removed)
"""
CHANGED = """
select name, cast(sum(sign) as bigint) as change from (
    select {name} as name, -1 as sign from removed union all select {name} as name, 1 as sign from added
) as changed
group by name having sum(sign) <> 0 order by name
"""
