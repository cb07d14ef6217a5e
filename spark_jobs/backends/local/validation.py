"""Validation of bronze records: valid ones become rows of silver, the others rows of rejected.

Guarantee: a record is among the accepted or among the invalid, or RowsUnaccounted is raised.
After a crash: the folder is replaced.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.ground.record_coordinates import POSITION
from include.ground.sql_quoting import sql_literal, sql_names
from include.read.rejected_records import DecidedRecord, Position
from spark_jobs.backends.backend import ValidatedFiles
from spark_jobs.backends.local.arrow_files import (
    Words,
    are_in,
    batches_in_files,
    places_in,
    rows_in_files,
    rows_in_folder,
    stage_files,
    unpacked_places,
)
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.backends.local.prepared_query import (
    SLOT_BYTES,
    Begun,
    PreparedQuery,
    QueryOfOneRun,
    begin_projection,
    save_by,
    uncompressed_bytes,
)
from spark_jobs.backends.local.tables import LocalTables
from spark_jobs.contract.payload_texts import PayloadTexts
from spark_jobs.contract.validator import Validator, compiled_validator
from spark_jobs.contract.warning_counts import Counts, summed_counts
from spark_jobs.layers.bronze import SCHEMA as BRONZE
from spark_jobs.layers.run_inputs import Frames, VersionRange, validate_with_decisions, without_decisions
from spark_jobs.layers.silver_code import (
    TRANSFORM_ERROR,
    FailedRecord,
    TransformationFailed,
    failure_of,
    most_tolerated,
)
from spark_jobs.layers.silver_tables import dated
from spark_jobs.tables.data_files import parquet_files, read_files, read_folder
from spark_jobs.tables.delta_table import RowsUnaccounted, validate_types
from spark_jobs.tables.failpoints import Step, pass_step


class AcceptedQuery:
    """The rows of silver of `accepted` records, joined with `reference`; the dataset's silver.py is called once.

    `prepared`: the records are those of a slot.
    """

    def __init__(self, writer: LocalTables, reference: Frames, accepted: DataFrame, *, prepared: bool = False) -> None:
        self._writer = writer
        self._query_type = PreparedQuery if prepared else QueryOfOneRun
        self._watched = writer.counting.watched(accepted.drop("_reasons"))
        rows = dated(writer.transform(self._watched.rows, **reference), writer.dataset)
        self._rows = rows.select(*writer.silver.spec.schema.fieldNames())
        validate_types(writer.silver.spec, self._rows.schema)

    @cached_property
    def _without_inputs(self) -> PreparedQuery:
        return self._query_type(self._rows)

    @cached_property
    def _with_inputs(self) -> PreparedQuery:
        return self._query_type(self._writer.inputs.added(self._rows))

    def write(self, folder: Path, *, with_inputs: bool) -> Counts:
        """Add the rows to a folder; return the counts of the warning rules."""
        query = self._with_inputs if with_inputs else self._without_inputs
        return self._watched.counted(lambda: query.save(folder))


ACCEPTED, INVALID, REMAINDER = "accepted", "invalid", "remainder"
VERDICT = "_verdict"
POSITION_IN_BRONZE = ("partition", "offset")
KAFKA_POSITION = sql_names(POSITION_IN_BRONZE)
MOST_ROWS_HERE = 500
"""Records that this thread validates in full while it would wait for tasks; more are divided among tasks."""
RECORD = StructType([field for field in BRONZE.fields if field.name != "_date"])


@dataclass
class AcceptedFiles:
    """Files of accepted records as rows of silver, with the inputs of gold as long as these fail on no record."""

    writer: LocalTables
    folder: Path
    has_inputs: bool
    counts: list[Counts] = field(default_factory=list)

    def write(self, query: AcceptedQuery) -> None:
        if self.has_inputs and failure_of(partial(self._write, with_inputs=True), query) is None:
            return
        self._write(query, with_inputs=False)
        # An expression of gold failed, not the records: its table reports the error later.
        self.has_inputs = False

    def _write(self, query: AcceptedQuery, *, with_inputs: bool) -> None:
        self.counts.append(query.write(self.folder, with_inputs=with_inputs))


def validate_files(
    writer: LocalTables,
    records: Sequence[Path],
    batches: tuple[int, int],
    folder: Path,
    until: int,
    *,
    schemas: int | None = None,
    with_inputs: bool = False,
) -> ValidatedFiles:
    """Validate the records in these files, of `batches`; replace the content of `folder` by the result.

    `until`: length of the list of decisions to apply. One query finds the valid records; the others get their
    reasons by another one. A valid record on which silver.py fails is invalid by `transform_error`; raises
    TransformationFailed when a bronze batch has too many of them. `with_inputs`: gold's inputs are computed too.
    `schemas`: length of the list of writers' schemas to read them by; by default those that are new are added first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not records:
        return ValidatedFiles((), ())
    decisions = writer.decisions.for_batches(batches, until)
    texts = writer.payloads.texts(records, writer.payloads.learn(records) if schemas is None else schemas)
    ranges = writer.reference.version_ranges(*batches)
    rows_in = rows_in_files(records)
    ranges = ranges if len(ranges) == 1 else _with_records(ranges, records)
    accepted = AcceptedFiles(writer, folder / ACCEPTED, with_inputs)
    for query in _accepted_queries(writer, texts, records, ranges, decisions):
        # If it fails on a record, all of the range are validated in full below, and the failing ones isolated.
        failure_of(accepted.write, query)
    left = _write_remainder(records, folder)
    _refuse_unaccounted(writer, batches, rows_in, rows_in_folder(folder / ACCEPTED) + left)
    invalid = list[Path]()
    if left:
        _validate_remainder(writer, texts, decisions, folder, left)
        invalid = _write_validated(accepted, ranges, folder)
        _refuse_lost(writer, batches, invalid, folder)
        _refuse_unaccounted(writer, batches, rows_in, rows_in_folder(folder / ACCEPTED) + rows_in_files(invalid))
    found = tuple(stage_files(folder / ACCEPTED))
    return ValidatedFiles(found, tuple(invalid), summed_counts(accepted.counts), accepted.has_inputs and bool(found))


def _accepted_queries(
    writer: LocalTables,
    texts: PayloadTexts,
    records: Sequence[Path],
    ranges: Sequence[VersionRange],
    decisions: Mapping[Position, DecidedRecord],
) -> Iterator[AcceptedQuery]:
    simple = len(ranges) == 1 and not decisions
    if simple and (prepared := _prepared_accepted(writer, texts, records, ranges[0].frames)):
        yield prepared
        return
    rows = texts.of(read_files(writer.spark, RECORD, records))
    for versions in ranges:
        undecided = without_decisions(_within(rows, versions, ranges), decisions)
        yield AcceptedQuery(writer, versions.frames, writer.validator.accepted(undecided))


def _prepared_accepted(
    writer: LocalTables, texts: PayloadTexts, records: Sequence[Path], frames: Frames
) -> AcceptedQuery | None:
    def build(rows: DataFrame) -> AcceptedQuery:
        return AcceptedQuery(writer, frames, writer.validator.accepted(texts.of(rows)), prepared=True)

    cache_key = (*frames.values(), texts.schemas)
    return writer.prepared.accepted.over(records, "records", RECORD, cache_key, build)


def _valid_query(
    writer: LocalTables, valid: Path, versions: VersionRange, ranges: Sequence[VersionRange]
) -> AcceptedQuery:
    frames, schema = versions.frames, writer.validated_schema
    if len(ranges) == 1:
        joined = tuple(frames.values())
        build = partial(AcceptedQuery, writer, frames, prepared=True)
        if prepared := writer.prepared.accepted.over(parquet_files(valid), ACCEPTED, schema, joined, build):
            return prepared
    return AcceptedQuery(writer, frames, _within(read_folder(writer.spark, valid, schema), versions, ranges))


def _with_records(ranges: Sequence[VersionRange], records: Sequence[Path]) -> list[VersionRange]:
    """Return the version ranges that have records; each needs its own Spark job."""
    with duckdb_session() as duck:
        duck.view_files("records", records, RECORD)
        there = [batch for (batch,) in duck.rows("select distinct _batch_id from records")]
    return [versions for versions in ranges if any(versions.first <= batch <= versions.last for batch in there)]


def _within(rows: DataFrame, versions: VersionRange, ranges: Sequence[VersionRange]) -> DataFrame:
    if len(ranges) == 1:
        return rows
    return rows.where(F.col("_batch_id").between(versions.first, versions.last))


def _write_remainder(records: Sequence[Path], folder: Path) -> int:
    """Write the records that were not accepted, if there are any; return how many."""
    # Places first: in a healthy run no payload is read a second time.
    there = _places(records, POSITION_IN_BRONZE)
    left = there[~are_in(there, np.sort(_places(stage_files(folder / ACCEPTED), POSITION)))]
    if len(left):
        with duckdb_session() as duck:
            duck.view_files("records", records, RECORD)
            duck.view_arrow("left_over", pa.table(dict(zip(POSITION_IN_BRONZE, unpacked_places(left), strict=True))))
            duck.save_records(f"select * from records semi join left_over using ({KAFKA_POSITION})", folder / REMAINDER)
    return len(left)


def _places(files: Sequence[Path], names: Sequence[str]) -> Words:
    """Return the places of the rows of files; `names` are their columns of partition and offset."""
    found = [places_in(batch, names) for batch in batches_in_files(files, names)]
    return np.concatenate([np.empty(0, np.uint64), *found])


def _validate_remainder(
    writer: LocalTables, texts: PayloadTexts, decisions: Mapping[Position, DecidedRecord], folder: Path, count: int
) -> None:
    files, target = parquet_files(folder / REMAINDER), folder / "validated"
    build = partial(_full_validation, lambda: writer.validator, texts, decisions)
    is_small = count <= MOST_ROWS_HERE and sum(map(uncompressed_bytes, files)) <= SLOT_BYTES
    if is_small and not decisions and (projection := writer.prepared.projection(RECORD, (texts.schemas,), build)):
        rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
        save_by(projection.of(rows), VERDICT, target)
        return
    query: PreparedQuery | None = None
    if not decisions:
        query = writer.prepared.validated.over(
            files, REMAINDER, RECORD, (texts.schemas,), lambda rows: PreparedQuery(build(rows))
        )
    (query or QueryOfOneRun(build(read_files(writer.spark, RECORD, files)))).save_by(VERDICT, target)


def begin_full_validation(spark: SparkSession, dataset: Dataset) -> Begun:
    """Begin to build, in a thread, the query by which `_validate_remainder` validates a few records.

    Nothing is begun for Avro, whose query depends on the schemas of the records.
    """
    contract, texts = dataset.contract, PayloadTexts(dataset.contract)
    if contract.payload.is_decoded:
        return {}
    build = partial(_full_validation, lambda: compiled_validator(contract), texts, {})
    return {(texts.schemas,): begin_projection(spark, RECORD, build)}


def _full_validation(
    validator: Callable[[], Validator],
    texts: PayloadTexts,
    decisions: Mapping[Position, DecidedRecord],
    rows: DataFrame,
) -> DataFrame:
    """Return the query that validates any records, columns of bronze, with the verdict about each."""
    validated = validate_with_decisions(validator(), texts.of(rows), decisions)
    return validated.select("*", F.when(F.size("_reasons") == 0, ACCEPTED).otherwise(INVALID).alias(VERDICT))


def _write_validated(accepted: AcceptedFiles, ranges: Sequence[VersionRange], folder: Path) -> list[Path]:
    """Add the valid records of the remainder to the accepted; return the files of the others and their reasons."""
    valid, invalid = (folder / "validated" / f"{VERDICT}={verdict}" for verdict in (ACCEPTED, INVALID))
    for versions in ranges if valid.is_dir() else ():
        if failure_of(accepted.write, _valid_query(accepted.writer, valid, versions, ranges)):
            write_isolated(accepted, valid, versions, invalid)
    return parquet_files(invalid)


def _refuse_unaccounted(writer: LocalTables, batches: tuple[int, int], rows_in: int, classified: int) -> None:
    """Raise RowsUnaccounted unless there are as many rows as records: silver.py makes one row of each."""
    if rows_in != classified:
        why = f"{rows_in} records, {classified} rows: silver.py must return exactly one row per record"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)


def _refuse_lost(writer: LocalTables, batches: tuple[int, int], invalid: Sequence[Path], folder: Path) -> None:
    """Raise RowsUnaccounted unless each record of the remainder is accepted or invalid: another may be there twice."""
    there = np.sort(_places([*stage_files(folder / ACCEPTED), *invalid], POSITION))
    remainder = _places(parquet_files(folder / REMAINDER), POSITION_IN_BRONZE)
    partitions, offsets = unpacked_places(remainder[~are_in(remainder, there)][:1])
    if len(offsets):
        why = f"silver.py must return exactly one row per record, and returns none of {partitions[0]}/{offsets[0]}"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)


def write_isolated(accepted: AcceptedFiles, valid: Path, versions: VersionRange, rejected: Path) -> None:
    """Write the valid records of a version range in parts, halved until one is written or is one record.

    Such a record is added to folder `rejected`, with the error as its reason. Raises TransformationFailed, and errors
    that no record causes.
    """
    failed, part = defaultdict[int, list[FailedRecord]](list), rejected.with_name("part")
    writer = accepted.writer

    def write(rows: DataFrame) -> None:
        accepted.write(AcceptedQuery(writer, versions.frames, rows))

    with duckdb_session() as duck, _muted(writer.spark):
        duck.view_folder("valid", valid, writer.validated_schema)
        duck.create_table("numbered", NUMBERED.format(versions.first, versions.last))
        pending = [(1, duck.count("select * from numbered"))]
        while pending:
            first, last = pending.pop()
            duck.save(PART.format(first, last), part)
            error = failure_of(write, read_folder(writer.spark, part, writer.validated_schema))
            pass_step(Step.PART_WRITTEN)
            if error and first < last:
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
            elif error:
                ((batch, partition, offset),) = duck.rows(COORDINATES.format(first))
                failed[batch].append((partition, offset, error))
                if len(failed[batch]) > most_tolerated(writer.records.count_rows(batch, batch)):
                    raise TransformationFailed(writer.dataset.name, batch, len(failed[batch]), failed[batch][0])
                rejected.mkdir(exist_ok=True)
                reason = f"[{{'rule': '{TRANSFORM_ERROR}', 'column': '', 'detail': {sql_literal(error)}}}]"
                duck.save_file(ISOLATED.format(reason=reason, part=first), rejected / f"{batch}-{first}.parquet")


@contextmanager
def _muted(spark: SparkSession) -> Iterator[None]:
    """Mute Spark's log: it has the first failure with its stack; each part would add another."""
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel("WARN")


NUMBERED = """
select *, row_number() over (order by _batch_id, _partition, _offset) as _number
from valid
where _batch_id between {} and {}
"""
PART = "select * exclude (_number) from numbered where _number between {} and {}"
COORDINATES = "select _batch_id, _partition, _offset from numbered where _number = {}"
ISOLATED = "select * exclude (_number) replace ({reason} as _reasons) from numbered where _number = {part}"
