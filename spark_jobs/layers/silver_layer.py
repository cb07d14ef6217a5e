"""Silver and rejected: bronze batches judged, each identity once (DESIGN §4, step 4).

Reads: the bronze files of batches [a, b], and what silver already has of the same identities.
Writes: `silver.<dataset>` and `rejected.<dataset>`, one commit each, idempotent by (app id, b).
Guarantee: every bronze row is in silver or in rejected, exactly once, or nothing is committed.
After a crash: the same [a, b] is judged again against silver as it was before a, with the same verdicts.
Does not: drop a record, whatever its time.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import functions as F

from spark_jobs.contract.warning_counts import Counts
from spark_jobs.layers.bronze_layer import batch_files
from spark_jobs.layers.find_duplicates import ORIGINALS, candidate_files, find_duplicates
from spark_jobs.layers.rejected_counts import rejected_counts
from spark_jobs.layers.rejected_rows import rejected_rows_sql
from spark_jobs.layers.silver_writer import MONTH, Inheritance, SilverWriter
from spark_jobs.layers.validate_records import ValidatedFiles, validate_files
from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import RowsUnaccounted, Table
from spark_jobs.storage.duckdb_session import DuckSession, duckdb_session
from spark_jobs.storage.failpoints import Step, pass_step


@dataclass(frozen=True)
class ValidatedBatch:
    """A run's files, written and not yet committed, and its counts."""

    silver: list[DataFile]
    rejected: list[DataFile]
    rows_in: int
    reasons: dict[str, int]
    dispositions: dict[str, int]
    warnings: Counts
    decided_until: int = 0
    """How far the list of decisions reached that the records were judged by."""

    @property
    def accepted(self) -> int:
        """Rows for silver."""
        return sum(file.rows for file in self.silver)


def validate_batches(
    writer: SilverWriter,
    first: int,
    last: int,
    epoch: int,
    committed: Sequence[DataFile] | None = None,
    decided_until: int | None = None,
) -> ValidatedBatch:
    """Judge bronze batches [first, last] and write the files of both tables; RowsUnaccounted when rows are missing.

    `committed` are silver's files of this run when silver has them already: they are never written again, and
    `decided_until` says by which decisions they were judged, so that rejected is judged by the same.
    """
    until = writer.decisions.until() if decided_until is None else decided_until
    folder, inheritance = f"b{last:08d}-{epoch}", writer.inheritance
    if inheritance is not None and first < inheritance.until:
        result = _inherited(writer, inheritance, (first, last), folder, committed)
    else:
        result = _validated(writer, (first, last), folder, committed, until)
    validate_balance(writer.silver.spec.name, (first, last), result)
    pass_step(Step.SILVER_WRITTEN, last)
    return result


def _validated(
    writer: SilverWriter, batches: tuple[int, int], folder: str, committed: Sequence[DataFile] | None, until: int
) -> ValidatedBatch:
    sources = batch_files(writer.bronze, *batches)
    records = [writer.bronze.spec.path / file.path for file in sources]
    files = validate_files(writer, records, batches, writer.staging, until)
    with duckdb_session() as duck:
        _view(duck, writer, files, batches[0])
        find_duplicates(duck, writer.dataset, "accepted", "known")
        rejected = duck.write(rejected_rows_sql(writer.dataset), writer.rejected, folder)
        silver = duck.write(ORIGINALS, writer.silver, folder) if committed is None else list(committed)
    reasons, dispositions = rejected_counts(writer.rejected, rejected)
    shutil.rmtree(writer.staging, ignore_errors=True)
    return ValidatedBatch(silver, rejected, sum(f.rows for f in sources), reasons, dispositions, files.warnings, until)


def _view(duck: DuckSession, writer: SilverWriter, files: ValidatedFiles, first: int) -> None:
    """Make views `accepted` and `invalid` of what was judged, and `known` of what silver had before batch `first`."""
    duck.view_files("accepted", files.accepted, writer.silver.spec.schema)
    duck.view_files("invalid", files.invalid, writer.validated_schema)
    earlier = [f for f in candidate_files(writer, files.accepted) if f.overlaps("_batch_id", 0, first - 1)]
    duck.view_table("near", writer.silver, earlier)
    duck.view_query("known", f"select * from near where _batch_id < {first}")


def _inherited(
    writer: SilverWriter,
    inheritance: Inheritance,
    batches: tuple[int, int],
    folder: str,
    committed: Sequence[DataFile] | None,
) -> ValidatedBatch:
    """The rows that the release before had of these batches, as they are; new columns are null."""
    if batches[1] >= inheritance.until:
        why = f"batches before {inheritance.until} are taken over, later ones judged: a run cannot do both"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)
    rejected = _inherited_rows(writer, inheritance.rejected, writer.rejected, "first_seen", batches, folder)
    time = writer.dataset.pipeline.event_time
    if committed is None:
        silver = _inherited_rows(writer, inheritance.silver, writer.silver, time, batches, folder)
    else:
        silver = list(committed)
    rows_in = sum(file.rows for file in batch_files(writer.bronze, *batches))
    return ValidatedBatch(silver, rejected, rows_in, *rejected_counts(writer.rejected, rejected), warnings={})


def _inherited_rows(
    writer: SilverWriter, source: Table, target: Table, time: str, batches: tuple[int, int], folder: str
) -> list[DataFile]:
    files = [file for file in source.files() if file.overlaps("_batch_id", *batches)]
    if not files:
        return []
    rows, known = source.read_batches(writer.spark, files, *batches), source.spec.schema.fieldNames()
    columns = [
        F.col(field.name) if field.name in known else F.lit(None).try_cast(field.dataType).alias(field.name)
        for field in target.spec.data_schema.fields
    ]
    return target.write(rows.select(*columns, F.date_format(time, "yyyy-MM").alias(MONTH)), folder)


def validate_balance(name: str, batches: tuple[int, int], validated: ValidatedBatch) -> None:
    """Rows in = silver + rejected."""
    rejected = sum(file.rows for file in validated.rejected)
    if validated.rows_in != validated.accepted + rejected:
        why = f"{validated.rows_in} records came in, {validated.accepted} are accepted and {rejected} rejected"
        raise RowsUnaccounted(name, batches, why)
