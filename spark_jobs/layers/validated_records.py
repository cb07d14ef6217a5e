"""Bronze records judged: those that keep the contract as rows of silver, the others as rows of rejected.

Reads: files with the columns of bronze. Writes: files in a folder for unfinished work.
Guarantee: a record is among the accepted or among the invalid, or RowsUnaccounted is raised.
After a crash: the folder is written anew.
Does not: know whether another record has the same identity (identity.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.reading.amendments import Amendment, Coordinates
from spark_jobs.contract.warning_counts import Counts, summed_counts
from spark_jobs.layers.amended_records import judged_as_amended, without
from spark_jobs.layers.bronze_layer import SCHEMA as BRONZE
from spark_jobs.layers.reference_versions import Stretch
from spark_jobs.layers.silver_tables import PLACES, Refinery, dated
from spark_jobs.storage.delta_table import RowsUnaccounted, read_files, validate_types
from spark_jobs.storage.duckdb_session import files_in, looking_up, rows_in, rows_of

ACCEPTED, INVALID, OTHERS = "accepted", "invalid", "others"
PLACED = '"partition", "offset"'
RECORD = StructType([field for field in BRONZE.fields if field.name != "_date"])


@dataclass(frozen=True)
class JudgedFiles:
    """Records that keep the contract as rows of silver, month included; the others with their reasons, as judged.

    Of the accepted, records of one identity still stand beside each other. `warnings`: counted among them.
    """

    accepted: tuple[Path, ...]
    invalid: tuple[Path, ...]
    warnings: Counts = field(default_factory=dict)


def judged_files(
    refinery: Refinery, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
) -> JudgedFiles:
    """Judge the records in these files, of `batches`; write the verdicts into `folder`, in the place of what is there.

    `until`: how far the list of decisions reaches that they are judged by. Those in plain form that keep the contract
    are told apart in one go; what is left is written down, and judged in full.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not records:
        return JudgedFiles((), ())
    decided, rows = refinery.decided.about(batches, until), read_files(refinery.spark, RECORD, records)
    came, stretches = rows_of(records), _stretches(refinery, records, batches)
    counts = []
    for stretch in stretches:
        plain = refinery.judge.accepted_plain(without(_within(rows, stretch, stretches), decided))
        counts.append(_write_accepted(refinery, plain, stretch, folder))
    left = _write_others(records, folder)
    _refuse_unaccounted(refinery, batches, came, rows_in(folder / ACCEPTED) + left)
    if left:
        _judge_others(refinery, decided, folder)
    good = files_in(folder / "judged" / f"_verdict={ACCEPTED}")
    for stretch in stretches if good else ():
        accepted = read_files(refinery.spark, refinery.judged_schema, good).drop("_reasons")
        counts.append(_write_accepted(refinery, _within(accepted, stretch, stretches), stretch, folder))
    invalid = files_in(folder / "judged" / f"_verdict={INVALID}")
    _refuse_unaccounted(refinery, batches, came, rows_in(folder / ACCEPTED) + rows_of(invalid))
    return JudgedFiles(tuple(files_in(folder / ACCEPTED)), tuple(invalid), summed_counts(counts))


def _stretches(refinery: Refinery, records: Sequence[Path], batches: tuple[int, int]) -> list[Stretch]:
    """Return the stretches in which records lie; each is a job of its own."""
    stretches = refinery.reference.stretches(*batches)
    if len(stretches) == 1:
        return stretches
    with looking_up() as lookup:
        lookup.view("records", records, RECORD)
        there = [batch for (batch,) in lookup.rows("select distinct _batch_id from records")]
    return [stretch for stretch in stretches if any(stretch.first <= batch <= stretch.last for batch in there)]


def _within(rows: DataFrame, stretch: Stretch, stretches: Sequence[Stretch]) -> DataFrame:
    if len(stretches) == 1:
        return rows
    return rows.where(F.col("_batch_id").between(stretch.first, stretch.last))


def _write_accepted(refinery: Refinery, accepted: DataFrame, stretch: Stretch, folder: Path) -> Counts:
    """Let the dataset make rows of silver of the records that keep the contract; return what the warnings counted."""
    seen, counts = refinery.counting.observed(accepted)
    rows = dated(refinery.transform(seen, **stretch.frames), refinery.dataset)
    chosen = rows.select(*refinery.silver.spec.schema.fieldNames())
    validate_types(refinery.silver.spec, chosen.schema)
    # Read once and written anew: looking for equal values would cost more than it saves.
    chosen.write.option("parquet.enable.dictionary", "false").mode("append").parquet(str(folder / ACCEPTED))
    return counts()


def _write_others(records: Sequence[Path], folder: Path) -> int:
    """Write down the records that are not among the accepted, if there are any; return how many."""
    with looking_up() as lookup:
        lookup.view("records", records, RECORD)
        lookup.folder("accepted", folder / ACCEPTED, PLACES)
        # Places first: in a healthy run no payload is read a second time.
        there = 'select _partition as "partition", _offset as "offset" from accepted'
        lookup.make("left_over", f'select "partition", "offset" from records anti join ({there}) using ({PLACED})')
        left = lookup.count("select * from left_over")
        if left:
            lookup.keep(f"select * from records semi join left_over using ({PLACED})", folder / OTHERS)
    return left


def _judge_others(refinery: Refinery, decided: Mapping[Coordinates, Amendment], folder: Path) -> None:
    """Judge in full what is no plain record that keeps the contract; write it by verdict."""
    rows = read_files(refinery.spark, RECORD, files_in(folder / OTHERS))
    judged = judged_as_amended(refinery.judge, rows, decided)
    verdict = F.when(F.size("_reasons") == 0, ACCEPTED).otherwise(INVALID).alias("_verdict")
    judged.select("*", verdict).write.partitionBy("_verdict").parquet(str(folder / "judged"))


def _refuse_unaccounted(refinery: Refinery, batches: tuple[int, int], came: int, told_apart: int) -> None:
    """The dataset's code makes one row of each accepted record, or nothing is written: RowsUnaccounted."""
    if came != told_apart:
        why = f"{came} records came in, {told_apart} were told apart: silver.py must make one row of each"
        raise RowsUnaccounted(refinery.silver.spec.name, batches, why)
