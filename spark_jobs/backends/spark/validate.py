"""Records of files validated by executors: a slice of history that is recomputed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.backends.backend import ValidatedFiles
from spark_jobs.backends.spark.decide import HELD, transformed
from spark_jobs.backends.spark.isolate import failing_records, without_failing
from spark_jobs.layers.run_inputs import validate_with_decisions
from spark_jobs.layers.silver_code import record_error
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.tables.delta_table import RowsUnaccounted
from spark_jobs.tables.spark_files import parquet_files, parquet_rows, read_files, write_folder


def validate(
    writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
) -> ValidatedFiles:
    """Write the accepted records as rows of silver, and the others with their reasons, into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    if not records:
        return ValidatedFiles((), ())
    texts = writer.payloads.texts(records, writer.payloads.learn(records))
    rows = texts.of(read_files(writer.spark, writer.bronze.spec.data_schema, records))
    validated = validate_with_decisions(writer.validator, rows, writer.decisions.for_batches(batches, until))
    held = validated.persist(HELD)
    try:
        found = _written(writer, held, RefineRun(*batches, 0), folder)
    finally:
        held.unpersist()
    rows_in, rows_out = parquet_rows(records), parquet_rows([*found.accepted, *found.invalid])
    if rows_in != rows_out:
        why = f"{rows_in} records, {rows_out} rows: silver.py must return exactly one row per record"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)
    return found


def _written(writer: SilverTables, validated: DataFrame, run: RefineRun, folder: Path) -> ValidatedFiles:
    transform = partial(transformed, writer, run)
    try:
        write_folder(transform(validated.where(F.size("_reasons") == 0)), folder / "accepted")
    except Exception as error:
        if record_error(error) is None:
            raise
        failing = failing_records(writer, validated, transform)
        return _written(writer, without_failing(validated, failing), run, folder)
    write_folder(validated.where(F.size("_reasons") > 0), folder / "invalid")
    return ValidatedFiles(tuple(parquet_files(folder / "accepted")), tuple(parquet_files(folder / "invalid")))
