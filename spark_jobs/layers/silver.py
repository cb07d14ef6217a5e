"""Silver and rejected: bronze batches validated, each identity once (docs/architecture.md §4, step 4).

Reads: the bronze files of batches [a, b], and silver's rows with the same identities.
Writes: `silver.<dataset>` and `rejected.<dataset>`, one commit each, idempotent by (app id, b).
Guarantee: every bronze row is in silver or in rejected, exactly once, or nothing is committed.
After a crash: the same [a, b] is validated again against silver as it was before a, with the same verdicts.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column
from pyspark.sql import functions as F

from include.declare.dataset import Dataset
from include.declare.event_times import IDLE, PROGRESS, ROWLESS, WatermarkProgress, read_progress, watermark_facts
from include.ground.delta_log import commits
from include.ground.record_coordinates import POSITION
from include.ground.sql_quoting import sql_literal
from include.read.plain_values import iso_time
from spark_jobs.contract.warning_counts import Counts
from spark_jobs.layers.bronze import awake_partitions, read_idle_set
from spark_jobs.layers.identities import PLACE_SQL, IdentifiedRows, rank_copies
from spark_jobs.layers.silver_tables import (
    ARRIVAL_MONTH_IN_SQL,
    FIRST_MONTH,
    LAST_MONTH,
    MONTH,
    Inheritance,
    RefineRun,
    SilverTables,
    first_unexpired_batch,
)
from spark_jobs.layers.transform_errors import failure_of
from spark_jobs.layers.validate_records import ValidatedFiles
from spark_jobs.layers.validated_run import NextRun, ValidatedRun, validate_run
from spark_jobs.tables.batches import batch_commit, commit_of, count_rows, metadata_of
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.duckdb_session import (
    DuckSession,
    parquet_files,
    session_for,
    write_folder,
)
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.identity_index import Words, are_in, packed_places, places_in
from spark_jobs.tables.partitioned_files import write_partitioned
from spark_jobs.tables.spark_files import batches_in_files, no_rows_of_file


def places_of(duck: DuckSession, view: str) -> Words:
    """Return the sorted places of a view's records."""
    found = duck.arrays(f"select {PLACE_SQL} from {view}")
    return np.sort(packed_places(found["_place_partition"], found["_place_offset"]))


def write_originals(silver: Table, accepted: Sequence[Path], duplicates: Words, folder: str) -> list[DataFile]:
    """Write the rows of files that are not at these sorted places into a folder of silver; return its files."""
    return write_partitioned(silver, _originals(accepted, silver.spec.schema.fieldNames(), duplicates), folder)


def originals_in_memory(accepted: Sequence[Path], names: Sequence[str], duplicates: Words) -> pa.Table:
    """Return these columns of the rows that are not at these sorted places, of one file or more.

    Of several queries, some may know that a column is never null: a column of the result may be.
    """
    chosen = list(dict.fromkeys([*names, *POSITION]))
    batches = [*_originals(accepted, chosen, duplicates), no_rows_of_file(accepted[0], chosen)]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="default").select(names)


def _originals(accepted: Sequence[Path], names: Sequence[str], duplicates: Words) -> Iterator[pa.RecordBatch]:
    for batch in batches_in_files(accepted, names):
        is_duplicate = are_in(places_in(batch, POSITION), duplicates)
        yield batch.filter(pa.array(~is_duplicate)) if is_duplicate.any() else batch


def rejected_rows_sql(dataset: Dataset) -> str:
    """Return SQL for the records that break the contract, and those whose identity an earlier record has."""
    identity = sql_literal(", ".join(dataset.pipeline.identity))
    reason = f"[{{'rule': 'duplicate', 'column': {identity}, 'detail': _winner}}]"
    invalid = _rows(dataset, "invalid", "invalid", "_reasons")
    return f"{invalid} union all {_rows(dataset, 'duplicates', 'duplicate', reason)}"


def _rows(dataset: Dataset, view: str, disposition: str, reasons: str) -> str:
    version, month = sql_literal(dataset.contract.version), ARRIVAL_MONTH_IN_SQL.format(time="_timestamp")
    return ROWS.format(view=view, disposition=disposition, reasons=reasons, version=version, month=month)


ROWS = """
select
    _topic, _partition, _offset, _batch_id,
    '{disposition}' as disposition,
    {reasons} as reasons,
    {version} as contract_version,
    _timestamp as first_seen,
    {month} as _month
from {view}
"""


COUNTED = ["disposition", "reasons"]


def rejected_counts(rows: Iterable[pa.Table]) -> tuple[dict[str, int], dict[str, int]]:
    """Return rejected rows by reason (each reason once a record) and by disposition; `rows` have COUNTED, or more."""
    reasons: Counter[str] = Counter()
    dispositions: Counter[str] = Counter()
    for each in rows:
        dispositions += _counted(each["disposition"])
        reasons += _counted_reasons(each["reasons"].combine_chunks())
    return dict(reasons), dict(dispositions)


def rejected_counts_of_files(table: Table, files: Sequence[DataFile]) -> tuple[dict[str, int], dict[str, int]]:
    """Return `rejected_counts` of files that were just written."""
    return rejected_counts(pq.ParquetFile(table.spec.path / file.path).read(columns=COUNTED) for file in files)


def _counted_reasons(reasons: Any) -> Counter[str]:
    rules = pc.struct_field(pc.list_flatten(reasons), "rule")
    pairs = pa.table({"record": pc.list_parent_indices(reasons), "rule": rules})
    return _counted(pairs.group_by(["record", "rule"]).aggregate([])["rule"])


def _counted(values: Any) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()})


@dataclass(frozen=True)
class ValidatedBatch:
    """Files of a run, written and not yet committed, and its counts."""

    silver: list[DataFile]
    rejected: list[DataFile]
    rows_in: int
    reasons: dict[str, int]
    dispositions: dict[str, int]
    warnings: Counts
    decided_until: int = 0
    """Length of the list of decisions (bytes) by which the records were validated."""
    schemas_until: int = 0
    """Length of the list of writers' schemas (bytes) by which they were read."""
    rows: pa.Table | None = None
    """The rows of silver with the inputs of gold's merges; None when they are not in memory."""

    @property
    def accepted(self) -> int:
        """Rows of silver."""
        return sum(file.rows for file in self.silver)


@dataclass(frozen=True)
class SilverOfRun:
    """A run's rows of silver: the committed `files`, and in memory what gold's merges get of them, if it is known."""

    files: Sequence[DataFile]
    rows: pa.Table | None = None

    def in_memory(self, writer: SilverTables, run: RefineRun) -> SilverOfRun:
        """Return the same with the `rows` of the run, computed from the files unless this process just wrote them.

        Without them when an expression fails on a row: Spark's merge then names the table.
        """
        if self.rows is not None:
            return self
        rows = writer.inputs.merge_rows(writer.silver.read_batches(writer.spark, self.files, *run.batches))
        folder = writer.staging / "inputs"
        if failure_of(lambda computed: write_folder(computed, folder), rows):
            return self
        tables = [pq.read_table(path, partitioning=None) for path in parquet_files(folder)]
        shutil.rmtree(folder, ignore_errors=True)
        return SilverOfRun(self.files, pa.concat_tables(tables) if tables else None)


def commit_silver(writer: SilverTables, run: RefineRun, following: NextRun | None = None) -> SilverOfRun:
    """Commit a run to silver, then to rejected; return silver's rows of the run as committed.

    `following` may have the run's records validated; once they are, it begins with the run after it.

    What is committed already is recognised and not written again: silver's commit then says by which decisions and
    schemas its records were validated, so that rejected is completed by the same.
    Raises RowsUnaccounted, OwnershipLost.
    """
    silver, rejected, rows = writer.app_id("silver"), writer.app_id("rejected"), None
    if writer.rejected.committed(rejected) < run.last:
        committed = _files_of_run(writer, run) if writer.silver.committed(silver) >= run.last else None
        batch = _validated_batch(writer, run, committed, following)
        rows = batch.rows
        if committed is None:
            writer.silver.commit(silver, run.last, _silver_metadata(writer, run, batch), batch.silver)
            pass_step(Step.SILVER_COMMITTED, run.last)
        writer.rejected.commit(rejected, run.last, _rejected_metadata(writer, run, batch), batch.rejected)
        pass_step(Step.REJECTED_COMMITTED, run.last)
    return SilverOfRun(_files_of_run(writer, run), rows)


def _files_of_run(writer: SilverTables, run: RefineRun) -> list[DataFile]:
    return writer.silver.batch_files(*run.batches)


def _validated_batch(
    writer: SilverTables, run: RefineRun, committed: Sequence[DataFile] | None, following: NextRun | None
) -> ValidatedBatch:
    """Write the run's files of both tables, but not silver's when they are `committed`; raises RowsUnaccounted."""
    inheritance = writer.inheritance
    if inheritance is not None and run.first < inheritance.until:
        batch = _inherited(writer, inheritance, run, committed)
    else:
        validated = _validated_run(writer, run, following, is_committed=committed is not None)
        if following is not None:
            following.start(run)
        batch = _written(writer, run, validated, committed)
    validate_balance(writer.silver.spec.name, run.batches, batch)
    pass_step(Step.SILVER_WRITTEN, run.last)
    return batch


def _validated_run(
    writer: SilverTables, run: RefineRun, following: NextRun | None, *, is_committed: bool
) -> ValidatedRun:
    """Return the run's records as Spark validates them, or has during the run before."""
    ahead = following.claim(run) if following is not None else None
    if ahead is not None and not is_committed:
        return ahead
    shutil.rmtree(writer.staging, ignore_errors=True)
    if not is_committed:
        return validate_run(writer, run.batches)
    facts = metadata_of(commit_of(writer.silver, writer.app_id("silver"), run.last))
    return validate_run(writer, run.batches, int(facts.get("decided_until", 0)), int(facts.get("schemas_until", 0)))


def _written(
    writer: SilverTables, run: RefineRun, validated: ValidatedRun, committed: Sequence[DataFile] | None
) -> ValidatedBatch:
    with session_for(validated.rows_in) as duck:
        view_run(duck, writer, validated.files, validated.rows, run.first)
        rank_copies(duck, writer.dataset, "candidates_sharing", "known")
        rejected_rows = duck.arrow(rejected_rows_sql(writer.dataset))
        duplicates = places_of(duck, "duplicates")
    rejected = write_partitioned(writer.rejected, rejected_rows.to_batches(), run.folder)
    reasons, dispositions = rejected_counts([rejected_rows])
    del rejected_rows
    accepted = validated.files.accepted
    silver = write_originals(writer.silver, accepted, duplicates, run.folder) if committed is None else list(committed)
    rows = _rows_for_merges(writer, validated.files, duplicates)
    writer.identities.note_written(silver, duplicates)
    validated.remove()
    until, schemas = validated.decided_until, validated.schemas_until
    warnings = validated.files.warnings
    return ValidatedBatch(silver, rejected, validated.rows_in, reasons, dispositions, warnings, until, schemas, rows)


def _rows_for_merges(writer: SilverTables, files: ValidatedFiles, duplicates: Words) -> pa.Table | None:
    """Return the rows for gold's merges: accepted records without duplicates; None when they were not computed."""
    if not files.has_inputs or not writer.inputs.names:
        return None
    return originals_in_memory(files.accepted, writer.inputs.names, duplicates)


def view_run(
    duck: DuckSession, writer: SilverTables, files: ValidatedFiles, rows: IdentifiedRows | None, first: int
) -> None:
    """Create views: `invalid` records of the run, `known` rows of silver before batch `first`.

    View `candidates_sharing`, if the accepted are given as `rows`: those that may share an identity with a known row
    or with each other.
    """
    duck.view_files("invalid", files.invalid, writer.validated_schema)
    writer.identities.view_candidates(duck, "candidates", files.accepted, rows)
    duck.view_query("known", f"select * from candidates where _batch_id < {first}")


def _inherited(
    writer: SilverTables,
    inheritance: Inheritance,
    run: RefineRun,
    committed: Sequence[DataFile] | None,
) -> ValidatedBatch:
    """Return the base release's rows of these batches, unchanged; new columns are null."""
    batches, folder = run.batches, run.folder
    if run.last >= inheritance.until:
        why = f"batches before {inheritance.until} are inherited, later ones validated: a run cannot do both"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)
    arrival = F.greatest(F.least(F.date_format("first_seen", "yyyy-MM"), F.lit(LAST_MONTH)), F.lit(FIRST_MONTH))
    rejected = _inherited_rows(writer, inheritance.rejected, writer.rejected, arrival, batches, folder)
    month = F.date_format(writer.dataset.pipeline.event_time, "yyyy-MM")
    if committed is None:
        silver = _inherited_rows(writer, inheritance.silver, writer.silver, month, batches, folder)
    else:
        silver = list(committed)
    rows_in = count_rows(writer.bronze, *batches)
    if run.first < first_unexpired_batch(writer, "bronze"):
        # Bronze has no rows any more of batches that have expired.
        rows_in = sum(file.rows for file in [*silver, *rejected])
    return ValidatedBatch(silver, rejected, rows_in, *rejected_counts_of_files(writer.rejected, rejected), warnings={})


def _inherited_rows(
    writer: SilverTables, source: Table, target: Table, month: Column, batches: tuple[int, int], folder: str
) -> list[DataFile]:
    files = source.batch_files(*batches)
    if not files:
        return []
    rows, known = source.read_batches(writer.spark, files, *batches), source.spec.schema.fieldNames()
    columns = [
        F.col(field.name) if field.name in known else F.lit(None).try_cast(field.dataType).alias(field.name)
        for field in target.spec.data_schema.fields
    ]
    return target.write(rows.select(*columns, month.alias(MONTH)), folder)


def validate_balance(name: str, batches: tuple[int, int], validated: ValidatedBatch) -> None:
    """Raise RowsUnaccounted unless rows in = silver + rejected."""
    rejected = sum(file.rows for file in validated.rejected)
    if validated.rows_in != validated.accepted + rejected:
        why = f"{validated.rows_in} records came in, {validated.accepted} are accepted and {rejected} rejected"
        raise RowsUnaccounted(name, batches, why)


def _silver_metadata(writer: SilverTables, run: RefineRun, batch: ValidatedBatch) -> dict[str, Any]:
    times = _latest_events(writer.silver, batch.silver, writer.dataset.pipeline.event_time)
    progress, in_bronze = stored_progress(writer), metadata_of(batch_commit(writer.bronze, run.last))
    rowless = progress.without_rows(map(str, awake_partitions(in_bronze))) - times.keys()
    reached = {
        "event_time_max": {p: iso_time(t) for p, t in times.items()},
        IDLE: sorted(read_idle_set(in_bronze).partitions),
        ROWLESS: sorted(rowless),
    }
    progress.advance(run.last, json.dumps(watermark_facts(reached)))
    return {
        **run.facts(writer.dataset),
        "table": writer.silver.spec.name,
        "app_id": writer.app_id("silver"),
        "rows": batch.accepted,
        "rows_in": batch.rows_in,
        "decided_until": batch.decided_until,
        "schemas_until": batch.schemas_until,
        **reached,
        PROGRESS: progress.as_json(),
    }


def stored_progress(writer: SilverTables) -> WatermarkProgress:
    """Return the progress of the watermark after the last commit to silver; after an upgrade, from all commits."""
    silver, app_id, lateness = writer.silver, writer.app_id("silver"), writer.dataset.pipeline.lateness
    last = silver.committed(app_id)
    if last < 0:
        return WatermarkProgress(lateness)
    known = read_progress(lateness, metadata_of(commit_of(silver, app_id, last)))
    if known is not None:
        return known
    progress = WatermarkProgress(lateness)
    for commit in commits(silver.spec.path):
        if commit.app_id == app_id:
            progress.advance(commit.app_version or 0, json.dumps(watermark_facts(metadata_of(commit))))
    return progress


def _latest_events(silver: Table, files: Sequence[DataFile], column: str) -> dict[str, datetime]:
    """Return the greatest event time of each partition; a file may hold rows of several, so bounds do not tell."""
    latest: dict[str, datetime] = {}
    for file in files:
        rows = pq.ParquetFile(silver.spec.path / file.path).read(columns=["_partition", column])
        for found in rows.group_by("_partition").aggregate([(column, "max")]).to_pylist():
            partition, high = str(found["_partition"]), found[f"{column}_max"]
            latest[partition] = max(latest.get(partition, high), high)
    return latest


def _rejected_metadata(writer: SilverTables, run: RefineRun, batch: ValidatedBatch) -> dict[str, Any]:
    return {
        **run.facts(writer.dataset),
        "table": writer.rejected.spec.name,
        "app_id": writer.app_id("rejected"),
        "rows": sum(file.rows for file in batch.rejected),
        "reasons": batch.reasons,
        "dispositions": batch.dispositions,
        "warnings": batch.warnings,
    }
