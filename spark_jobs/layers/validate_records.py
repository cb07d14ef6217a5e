"""Validation of bronze records: valid ones become rows of silver, the others rows of rejected.

Reads: files with the columns of bronze. Writes: files in a staging folder.
Guarantee: a record is among the accepted or among the invalid, or RowsUnaccounted is raised.
After a crash: the folder is replaced.
Does not: compare identities (find_duplicates.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.reading.decision_log import Coordinates, DecidedRecord
from spark_jobs.contract.warning_counts import Counts, summed_counts
from spark_jobs.layers.bronze_layer import SCHEMA as BRONZE
from spark_jobs.layers.record_decisions import validate_with_decisions, without_decisions
from spark_jobs.layers.reference_versions import VersionRange
from spark_jobs.layers.silver_tables import PLACES, SilverTables, dated
from spark_jobs.layers.transform_errors import failure_of, write_isolated
from spark_jobs.storage.delta_table import RowsUnaccounted, read_files, validate_types
from spark_jobs.storage.duckdb_session import (
    duckdb_session,
    parquet_files,
    read_folder,
    rows_in_files,
    rows_in_folder,
)

ACCEPTED, INVALID, OTHERS = "accepted", "invalid", "others"
PLACED = '"partition", "offset"'
RECORD = StructType([field for field in BRONZE.fields if field.name != "_date"])


@dataclass(frozen=True)
class ValidatedFiles:
    """Valid records as rows of silver, month included; the others with their reasons.

    The accepted may still contain duplicates. `warnings`: counted among the accepted.
    """

    accepted: tuple[Path, ...]
    invalid: tuple[Path, ...]
    warnings: Counts = field(default_factory=dict)


def validate_files(
    writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
) -> ValidatedFiles:
    """Validate the records in these files, of `batches`; replace the content of `folder` by the result.

    `until`: length of the list of decisions to apply. Valid records in plain form are recognised by one expression;
    only the others are parsed in full. A valid record on which silver.py fails is invalid by `transform_error`; raises
    TransformationBroken when a bronze batch has too many of them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not records:
        return ValidatedFiles((), ())
    decisions, rows = writer.decisions.for_batches(batches, until), read_files(writer.spark, RECORD, records)
    came, ranges = rows_in_files(records), _version_ranges(writer, records, batches)
    counts: list[Counts] = []
    for versions in ranges:
        plain = writer.validator.accepted_plain(without_decisions(_within(rows, versions, ranges), decisions))
        # If it fails on a record, all of the range are validated in full below, and the failing ones isolated.
        failure_of(partial(_write_accepted, writer, versions, folder, counts), plain)
    left = _write_others(records, folder)
    _refuse_unaccounted(writer, batches, came, rows_in_folder(folder / ACCEPTED) + left)
    if left:
        _validate_others(writer, decisions, folder)
    good, rejected = (folder / "validated" / f"_verdict={verdict}" for verdict in (ACCEPTED, INVALID))
    for versions in ranges if good.is_dir() else ():
        accepted = _within(read_folder(writer.spark, good, writer.validated_schema), versions, ranges)
        write = partial(_write_accepted, writer, versions, folder, counts)
        if failure_of(write, accepted):
            write_isolated(writer, good, versions, rejected, write)
    invalid = parquet_files(rejected)
    _refuse_unaccounted(writer, batches, came, rows_in_folder(folder / ACCEPTED) + rows_in_files(invalid))
    return ValidatedFiles(tuple(parquet_files(folder / ACCEPTED)), tuple(invalid), summed_counts(counts))


def _version_ranges(writer: SilverTables, records: Sequence[Path], batches: tuple[int, int]) -> list[VersionRange]:
    """Return the version ranges that have records; each needs its own Spark job."""
    ranges = writer.reference.version_ranges(*batches)
    if len(ranges) == 1:
        return ranges
    with duckdb_session() as duck:
        duck.view_files("records", records, RECORD)
        there = [batch for (batch,) in duck.rows("select distinct _batch_id from records")]
    return [versions for versions in ranges if any(versions.first <= batch <= versions.last for batch in there)]


def _within(rows: DataFrame, versions: VersionRange, ranges: Sequence[VersionRange]) -> DataFrame:
    if len(ranges) == 1:
        return rows
    return rows.where(F.col("_batch_id").between(versions.first, versions.last))


def _write_accepted(
    writer: SilverTables, versions: VersionRange, folder: Path, counts: list[Counts], accepted: DataFrame
) -> None:
    """Transform valid records into rows of silver and write them; append the warnings' counts to `counts`."""
    observed, count = writer.counting.observed(accepted.drop("_reasons"))
    rows = dated(writer.transform(observed, **versions.frames), writer.dataset)
    chosen = rows.select(*writer.silver.spec.schema.fieldNames())
    validate_types(writer.silver.spec, chosen.schema)
    # Read once and rewritten: a dictionary would cost more than it saves. With version 2 a job that fails would leave
    # the files of its complete tasks, whose records are written again.
    options = {"parquet.enable.dictionary": "false", "mapreduce.fileoutputcommitter.algorithm.version": "1"}
    chosen.write.options(**options).mode("append").parquet(str(folder / ACCEPTED))
    counts.append(count())


def _write_others(records: Sequence[Path], folder: Path) -> int:
    """Write the records that were not accepted, if there are any; return how many."""
    with duckdb_session() as duck:
        duck.view_files("records", records, RECORD)
        duck.view_folder("accepted", folder / ACCEPTED, PLACES)
        # Places first: in a healthy run no payload is read a second time.
        there = 'select _partition as "partition", _offset as "offset" from accepted'
        duck.create_table(
            "left_over", f'select "partition", "offset" from records anti join ({there}) using ({PLACED})'
        )
        left = duck.count("select * from left_over")
        if left:
            duck.save_records(f"select * from records semi join left_over using ({PLACED})", folder / OTHERS)
    return left


def _validate_others(writer: SilverTables, decisions: Mapping[Coordinates, DecidedRecord], folder: Path) -> None:
    """Validate in full the records that the plain form did not accept; write them by verdict."""
    rows = read_files(writer.spark, RECORD, parquet_files(folder / OTHERS))
    validated = validate_with_decisions(writer.validator, rows, decisions)
    verdict = F.when(F.size("_reasons") == 0, ACCEPTED).otherwise(INVALID).alias("_verdict")
    validated.select("*", verdict).write.partitionBy("_verdict").parquet(str(folder / "validated"))


def _refuse_unaccounted(writer: SilverTables, batches: tuple[int, int], came: int, classified: int) -> None:
    """The dataset's code makes one row of each accepted record, or nothing is written: RowsUnaccounted."""
    if came != classified:
        why = f"{came} records, {classified} rows: silver.py must return exactly one row per record"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)
