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
from spark_jobs.layers.find_duplicates import FIRST_ONES, files_sharing, find_copies
from spark_jobs.layers.rejected_counts import rejected_counts
from spark_jobs.layers.rejected_rows import all_rejected
from spark_jobs.layers.silver_tables import MONTH, Inheritance, Refinery
from spark_jobs.layers.validated_records import JudgedFiles, judged_files
from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import RowsUnaccounted, Table
from spark_jobs.storage.duckdb_session import Lookup, looking_up
from spark_jobs.storage.failpoints import Step, pass_step


@dataclass(frozen=True)
class Judged:
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


def judge_batches(
    refinery: Refinery,
    first: int,
    last: int,
    epoch: int,
    committed: Sequence[DataFile] | None = None,
    decided_until: int | None = None,
) -> Judged:
    """Judge bronze batches [first, last] and write the files of both tables; RowsUnaccounted when rows are missing.

    `committed` are silver's files of this run when silver has them already: they are never written again, and
    `decided_until` says by which decisions they were judged, so that rejected is judged by the same.
    """
    until = refinery.decided.until() if decided_until is None else decided_until
    folder, inheritance = f"b{last:08d}-{epoch}", refinery.inheritance
    if inheritance is not None and first < inheritance.until:
        result = _inherited(refinery, inheritance, (first, last), folder, committed)
    else:
        result = _judged(refinery, (first, last), folder, committed, until)
    validate_balance(refinery.silver.spec.name, (first, last), result)
    pass_step(Step.SILVER_WRITTEN, last)
    return result


def _judged(
    refinery: Refinery, batches: tuple[int, int], folder: str, committed: Sequence[DataFile] | None, until: int
) -> Judged:
    sources = batch_files(refinery.bronze, *batches)
    records = [refinery.bronze.spec.path / file.path for file in sources]
    files = judged_files(refinery, records, batches, refinery.bench, until)
    with looking_up() as lookup:
        _view(lookup, refinery, files, batches[0])
        find_copies(lookup, refinery.dataset, "accepted", "known")
        rejected = lookup.write(all_rejected(refinery.dataset), refinery.rejected, folder)
        silver = lookup.write(FIRST_ONES, refinery.silver, folder) if committed is None else list(committed)
    reasons, dispositions = rejected_counts(refinery.rejected, rejected)
    shutil.rmtree(refinery.bench, ignore_errors=True)
    return Judged(silver, rejected, sum(f.rows for f in sources), reasons, dispositions, files.warnings, until)


def _view(lookup: Lookup, refinery: Refinery, files: JudgedFiles, first: int) -> None:
    """Make views `accepted` and `invalid` of what was judged, and `known` of what silver had before batch `first`."""
    lookup.view("accepted", files.accepted, refinery.silver.spec.schema)
    lookup.view("invalid", files.invalid, refinery.judged_schema)
    earlier = [f for f in files_sharing(refinery, files.accepted) if f.overlaps("_batch_id", 0, first - 1)]
    lookup.table("near", refinery.silver, earlier)
    lookup.view_of("known", f"select * from near where _batch_id < {first}")


def _inherited(
    refinery: Refinery,
    inheritance: Inheritance,
    batches: tuple[int, int],
    folder: str,
    committed: Sequence[DataFile] | None,
) -> Judged:
    """The rows that the release before had of these batches, as they are; new columns are null."""
    if batches[1] >= inheritance.until:
        why = f"batches before {inheritance.until} are taken over, later ones judged: a run cannot do both"
        raise RowsUnaccounted(refinery.silver.spec.name, batches, why)
    rejected = _taken_over(refinery, inheritance.rejected, refinery.rejected, "first_seen", batches, folder)
    time = refinery.dataset.pipeline.event_time
    if committed is None:
        silver = _taken_over(refinery, inheritance.silver, refinery.silver, time, batches, folder)
    else:
        silver = list(committed)
    rows_in = sum(file.rows for file in batch_files(refinery.bronze, *batches))
    return Judged(silver, rejected, rows_in, *rejected_counts(refinery.rejected, rejected), warnings={})


def _taken_over(
    refinery: Refinery, source: Table, target: Table, time: str, batches: tuple[int, int], folder: str
) -> list[DataFile]:
    files = [file for file in source.files() if file.overlaps("_batch_id", *batches)]
    if not files:
        return []
    rows, known = source.read_batches(refinery.spark, files, *batches), source.spec.schema.fieldNames()
    columns = [
        F.col(field.name) if field.name in known else F.lit(None).try_cast(field.dataType).alias(field.name)
        for field in target.spec.data_schema.fields
    ]
    return target.write(rows.select(*columns, F.date_format(time, "yyyy-MM").alias(MONTH)), folder)


def validate_balance(name: str, batches: tuple[int, int], judged: Judged) -> None:
    """Rows in = silver + rejected."""
    rejected = sum(file.rows for file in judged.rejected)
    if judged.rows_in != judged.accepted + rejected:
        why = f"{judged.rows_in} records came in, {judged.accepted} are accepted and {rejected} rejected"
        raise RowsUnaccounted(name, batches, why)
