"""Records that a plan joined with reference tables of its own (`--reference today`), and not with their batch's.

Reads: the commits of silver: a patch's commit names the versions, and the bounds of the records that it added.
Writes: staging files, when such records are validated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include.ground.delta_log import commits
from include.read.rejected_records import Position
from include.state.release_files import PatchDirection
from spark_jobs.layers.run_inputs import ReferenceVersions
from spark_jobs.layers.silver_tables import SilverTables
from spark_jobs.layers.validate_records import KAFKA_POSITION, RECORD, ValidatedFiles, validate_files
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import DuckSession, duckdb_session, parquet_files


@dataclass(frozen=True)
class PatchedReference:
    """Of a plan: versions of the reference tables, by Kafka partition the bounds [first, last] of the records."""

    plan: str
    versions: Mapping[str, int]
    offsets: Mapping[int, Sequence[int]]

    def has(self, position: Position) -> bool:
        """Whether a record lies within the bounds."""
        first, last = self.offsets.get(position[0], (0, -1))
        return first <= position[1] <= last


def reference_facts(duck: DuckSession, versions: Mapping[str, int] | None, added: Iterable[Path]) -> dict[str, Any]:
    """Return what the commit of a patch says of its `versions`; `added`: files of the rows that it adds."""
    files = list(added)
    if versions is None or not files:
        return {}
    duck.view_columns("joined", files, ("_partition", "_offset"))
    bounds = duck.rows("select _partition, min(_offset), max(_offset) from joined group by all")
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
    writer: SilverTables,
    records: Sequence[Path],
    batches: tuple[int, int],
    until: int,
    joined: Mapping[Position, PatchedReference],
) -> ValidatedFiles:
    """Do what `validate_files` does; records in `joined` are joined with the reference tables that a plan had."""
    if not joined:
        return validate_files(writer, records, batches, writer.staging, until)
    parts = [_validated(writer, records, batches, until, joined, None)]
    for patched in {each.plan: each for each in joined.values()}.values():
        parts.append(_validated(writer, records, batches, until, joined, patched))
    return ValidatedFiles(
        tuple(path for part in parts for path in part.accepted), tuple(path for part in parts for path in part.invalid)
    )


def _validated(
    writer: SilverTables,
    records: Sequence[Path],
    batches: tuple[int, int],
    until: int,
    joined: Mapping[Position, PatchedReference],
    patched: PatchedReference | None,
) -> ValidatedFiles:
    """Validate the records that one plan joined; None: those that no plan did."""
    folder = writer.staging / (patched.plan if patched is not None else "others")
    positions = [position for position, each in joined.items() if patched in (None, each)]
    partitions, offsets = zip(*positions, strict=True)
    with duckdb_session() as duck:
        duck.view_files("records", records, RECORD)
        duck.view_arrow("positions", pa.table({"partition": pa.array(partitions, pa.int32()), "offset": offsets}))
        join = "anti" if patched is None else "semi"
        duck.save_records(f"from records {join} join positions using ({KAFKA_POSITION})", folder / "records")
    if patched is not None:
        versions = ReferenceVersions(writer.spark, writer.decisions.settings, writer.dataset, patched.versions)
        writer = replace(writer, reference=versions, staging=folder / "_staging")
    part = [path for path in parquet_files(folder / "records") if pq.read_metadata(path).num_rows]
    return validate_files(writer, part, batches, folder / "validated", until)
