"""Silver and rejected: bronze batches judged, each identity once (DESIGN §4, step 4).

Reads: the bronze files of batches [a, b], and what silver already has of the same identities.
Writes: `silver.<dataset>` and `rejected.<dataset>`, one commit each, idempotent by (app id, b).
Guarantee: every bronze row is in silver or in rejected, exactly once, or nothing is committed.
After a crash: the same [a, b] is judged again against silver as it was before a, with the same verdicts.
Does not: drop a record, whatever its time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType, TimestampType

from include.catalog.dataset import Dataset
from include.catalog.pipeline import LatestGold
from include.places import rejected_path, release_path, silver_path
from include.settings import Settings
from spark_jobs.contract.counts import Counting, Counts, compiled_counting
from spark_jobs.contract.judge import Judge, compiled_judge
from spark_jobs.data_files import Bounds, DataFile, TableSpec, bounds_of
from spark_jobs.failpoints import Step, pass_step
from spark_jobs.layers.amended import Decided, judged_as_amended
from spark_jobs.layers.bronze import SCHEMA as BRONZE
from spark_jobs.layers.bronze import batch_files
from spark_jobs.layers.counted import rejected_counts
from spark_jobs.layers.reference import ReferenceBook
from spark_jobs.tables import RowsUnaccounted, Table, no_rows, partitioned_schema, read_files

MONTH = "_month"
VALID, INVALID = "valid", "invalid"
COORDINATES = ["_topic", "_partition", "_offset", "_timestamp", "_batch_id"]
REASON = StructType().add("rule", StringType()).add("column", StringType()).add("detail", StringType())
REJECTED = (
    StructType()
    .add("_topic", StringType())
    .add("_partition", IntegerType())
    .add("_offset", LongType())
    .add("_batch_id", LongType())
    .add("disposition", StringType())
    .add("reasons", ArrayType(REASON))
    .add("contract_version", StringType())
    .add("first_seen", TimestampType())
    .add(MONTH, StringType())
)
Transformation = Callable[..., DataFrame]
"""`silver(accepted, **reference)`: accepted records, and each declared reference table by its name."""


@dataclass(frozen=True)
class Inheritance:
    """What a release takes over instead of judging: silver and rejected of another, of the batches before `until`."""

    silver: Table
    rejected: Table
    until: int


@dataclass(frozen=True)
class Refinery:
    """What it takes to judge batches of one release; `bench` is its folder for unfinished work."""

    spark: SparkSession
    dataset: Dataset
    judge: Judge
    judged_schema: StructType
    transform: Transformation
    reference: ReferenceBook
    bronze: Table
    silver: Table
    rejected: Table
    bench: Path
    decided: Decided
    counting: Counting
    inheritance: Inheritance | None = None


@dataclass(frozen=True)
class JudgedFiles:
    """A run's verdicts as files: the records that keep the contract, and those that do not; what warnings counted."""

    valid: tuple[Path, ...]
    invalid: tuple[Path, ...]
    warnings: Counts = field(default_factory=dict)


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


def open_refinery(
    spark: SparkSession,
    settings: Settings,
    dataset: Dataset,
    bronze: Table,
    transform: Transformation,
    reference: ReferenceBook,
    versions: Mapping[str, int],
) -> Refinery:
    """Open or create the two tables of a release, at their `versions` if given, and compile its contract.

    What it inherits is not opened: see `release.py`.
    """
    judge = compiled_judge(dataset.contract)
    empty = judge.judged(no_rows(spark, BRONZE))
    silver_is = silver_spec(
        settings, dataset, dated(transform(empty.drop("_reasons"), **reference.frames({})), dataset)
    )
    rejected_is = rejected_spec(settings, dataset)
    silver = Table(silver_is, versions.get(silver_is.name))
    rejected = Table(rejected_is, versions.get(rejected_is.name))
    bench = release_path(settings, dataset.name, dataset.release) / "_bench"
    decided, counting = Decided(settings, dataset.name), compiled_counting(dataset.contract)
    tables = (bronze, silver, rejected)
    return Refinery(spark, dataset, judge, empty.schema, transform, reference, *tables, bench, decided, counting)


def silver_spec(settings: Settings, dataset: Dataset, rows: DataFrame) -> TableSpec:
    """Return what `silver.<dataset>` is: the columns that the transformation makes, coordinates, month."""
    pipeline = dataset.pipeline
    bounded = [pipeline.event_time, *pipeline.identity]
    for gold in pipeline.gold:
        bounded += gold.keys if isinstance(gold, LatestGold) else [gold.window.column]
    columns = tuple(dict.fromkeys([*bounded, "_partition", "_offset", "_batch_id"]))
    path = silver_path(settings, dataset.name, dataset.release)
    return TableSpec(f"silver.{dataset.name}", path, partitioned_schema(rows.schema, MONTH), MONTH, columns)


def rejected_spec(settings: Settings, dataset: Dataset) -> TableSpec:
    """Return what `rejected.<dataset>` is."""
    path = rejected_path(settings, dataset.name, dataset.release)
    return TableSpec(f"rejected.{dataset.name}", path, REJECTED, MONTH, ("_partition", "_offset", "_batch_id"))


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
    files = _judged_files(refinery, sources, *batches, until)
    rejected = _written_rejected(refinery, files, batches[0], folder)
    reasons, dispositions = rejected_counts(refinery.rejected, rejected)
    if committed is None:
        silver = _written_silver(refinery, files, rejected, dispositions, batches, folder)
    else:
        silver = list(committed)
    shutil.rmtree(refinery.bench, ignore_errors=True)
    return Judged(silver, rejected, sum(f.rows for f in sources), reasons, dispositions, files.warnings, until)


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


def _judged_files(refinery: Refinery, sources: Sequence[DataFile], first: int, last: int, until: int) -> JudgedFiles:
    """Judge once and keep the verdicts as files: what follows reads columns, and plans in no time."""
    if not sources:
        return JudgedFiles((), ())
    records = refinery.bronze.read_batches(refinery.spark, sources, first, last)
    return judged_files(refinery, records, (first, last), refinery.bench, until)


def judged_files(
    refinery: Refinery, records: DataFrame, batches: tuple[int, int], folder: Path, until: int
) -> JudgedFiles:
    """Judge bronze rows of `batches` and write the verdicts into `folder`, in the place of what is there."""
    decided = refinery.decided.about(batches, until)
    verdict = F.when(F.size("_reasons") == 0, VALID).otherwise(INVALID).alias("_verdict")
    judged, counts = refinery.counting.observed(judged_as_amended(refinery.judge, records, decided))
    judged.select("*", verdict).write.partitionBy("_verdict").mode("overwrite").parquet(str(folder))
    valid = sorted((folder / f"_verdict={VALID}").glob("*.parquet"))
    invalid = sorted((folder / f"_verdict={INVALID}").glob("*.parquet"))
    return JudgedFiles(tuple(valid), tuple(invalid), counts())


def read_judged(refinery: Refinery, paths: Sequence[Path]) -> DataFrame:
    """Return the judged rows of these files."""
    return read_files(refinery.spark, refinery.judged_schema, paths)


def silver_rows(refinery: Refinery, accepted: DataFrame, first: int, last: int) -> DataFrame:
    """Return accepted records of batches [first, last] as `silver` has them, with the month at the end."""
    rows, parts = accepted.drop("_reasons"), []
    stretches = refinery.reference.stretches(first, last)
    for stretch in stretches:
        own = rows if len(stretches) == 1 else rows.where(F.col("_batch_id").between(stretch.first, stretch.last))
        parts.append(dated(refinery.transform(own, **stretch.frames), refinery.dataset))
    return reduce(DataFrame.unionByName, parts)


def dated(rows: DataFrame, dataset: Dataset) -> DataFrame:
    """Return rows of silver with the columns in their order and the month at the end."""
    business = [name for name in rows.columns if name not in COORDINATES]
    month = F.date_format(dataset.pipeline.event_time, "yyyy-MM").alias(MONTH)
    return rows.select(*business, *COORDINATES, month)


def _written_silver(
    refinery: Refinery,
    files: JudgedFiles,
    rejected: Sequence[DataFile],
    dispositions: dict[str, int],
    batches: tuple[int, int],
    folder: str,
) -> list[DataFile]:
    if not files.valid:
        return []
    accepted = read_judged(refinery, files.valid)
    if dispositions.get("duplicate"):
        losers = refinery.rejected.read(refinery.spark, rejected).where("disposition = 'duplicate'")
        places = losers.select("_partition", "_offset")
        accepted = accepted.join(F.broadcast(places), ["_partition", "_offset"], "left_anti")
    return refinery.silver.write(silver_rows(refinery, accepted, *batches), folder)


def _written_rejected(refinery: Refinery, files: JudgedFiles, first: int, folder: str) -> list[DataFile]:
    """The invalid, with their reasons, and the records whose identity an earlier record has."""
    parts = []
    if files.invalid:
        invalid = read_judged(refinery, files.invalid)
        parts.append(invalid.select(*COORDINATES, "_reasons", F.lit("invalid").alias("disposition")))
    if files.valid:
        parts.append(duplicates(refinery, files.valid, first))
    if not parts:
        return []
    rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    return refinery.rejected.write(rejected_rows(rows, refinery.dataset), folder)


def rejected_rows(rows: DataFrame, dataset: Dataset) -> DataFrame:
    """Return records as `rejected` has them; `rows` have coordinates, `_reasons` and `disposition`."""
    return rows.select(
        "_topic",
        "_partition",
        "_offset",
        "_batch_id",
        "disposition",
        F.col("_reasons").alias("reasons"),
        F.lit(dataset.contract.version).alias("contract_version"),
        F.col("_timestamp").alias("first_seen"),
        F.date_format("_timestamp", "yyyy-MM").alias(MONTH),
    )


def duplicates(refinery: Refinery, valid: Sequence[Path], first: int) -> DataFrame:
    """Return the valid records whose identity stands earlier, in silver or in the run.

    Earlier means (ingest batch, partition, offset); silver is asked for what it had before batch `first`. A hash of
    the identity finds the few suspects; they alone are compared in full, so a collision costs time and nothing else.
    """
    identity = ", ".join(refinery.dataset.pipeline.identity)
    columns = f"xxhash64({identity}) as _mark, {identity}, {', '.join(COORDINATES)}"
    fresh, known = read_judged(refinery, valid), _known(refinery, valid, first)
    both = fresh.selectExpr(*_split(columns), "true as _fresh").union(known.selectExpr(*_split(columns), "false"))
    marks = both.groupBy("_mark").agg(F.count("*").alias("n"), F.max("_fresh").alias("any_fresh"))
    suspects = both.join(F.broadcast(marks.where("n > 1 and any_fresh").select("_mark")), "_mark", "left_semi")
    order = Window.partitionBy(*refinery.dataset.pipeline.identity).orderBy("_batch_id", "_partition", "_offset")
    ranked = suspects.select(
        *COORDINATES,
        "_fresh",
        F.row_number().over(order).alias("_place"),
        F.first(F.concat_ws("/", "_batch_id", "_partition", "_offset")).over(order).alias("_winner"),
    )
    reason = f"array(named_struct('rule', 'duplicate', 'column', '{identity}', 'detail', _winner)) as _reasons"
    return ranked.where("_place > 1 and _fresh").selectExpr(*COORDINATES, reason, "'duplicate' as disposition")


def _split(columns: str) -> list[str]:
    return columns.split(", ")


def _known(refinery: Refinery, valid: Sequence[Path], first: int) -> DataFrame:
    """Silver's rows from before batch `first` in files that may hold an identity of the run's.

    A file is left out by its bounds on the identity itself, and by event time: the horizon is the producer's promise
    how far apart the copies of an event can lie. Bounds are those of the run's row groups, so that one old record does
    not open all of silver.
    """
    time, horizon = refinery.dataset.pipeline.event_time, refinery.dataset.pipeline.horizon
    identity = refinery.dataset.pipeline.identity[0]
    spans = [bounds for path in valid for bounds in bounds_of(path, (time, identity))]
    files = [
        file
        for file in refinery.silver.files()
        if file.overlaps("_batch_id", 0, first - 1)
        and any(may_share(file, low, high, time, identity, horizon) for low, high in spans)
    ]
    return refinery.silver.read_batches(refinery.spark, files, 0, first - 1)


def may_share(file: DataFile, low: Bounds, high: Bounds, time: str, identity: str, horizon: timedelta) -> bool:
    """Whether a silver file may have an identity of rows within these bounds."""
    if time not in low or identity not in low:
        return True
    first, last = low[time], high[time]
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    near = file.overlaps(time, first - horizon, last + horizon)
    return near and file.overlaps(identity, low[identity], high[identity])
