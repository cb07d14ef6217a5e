"""Silver and rejected: bronze batches judged, each identity once (DESIGN §4, step 4).

Reads: the bronze files of batches [a, b], and what silver already has of the same identities.
Writes: `silver.<dataset>` and `rejected.<dataset>`, one commit each, idempotent by (app id, b).
Guarantee: every bronze row is in silver or in rejected, exactly once, or nothing is committed.
After a crash: the same [a, b] is judged again against silver as it was before a, with the same verdicts.
Does not: drop a record, whatever its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType, TimestampType

from include.catalog.dataset import Dataset
from include.places import rejected_path, silver_path
from include.settings import Settings
from spark_jobs.contract.judge import judged_records
from spark_jobs.failpoints import Step, pass_step
from spark_jobs.layers.bronze import SCHEMA as BRONZE
from spark_jobs.layers.bronze import batch_files
from spark_jobs.tables import DataFile, RowsUnaccounted, Table, TableSpec, partitioned_schema

MONTH = "_month"
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
Transformation = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Judged:
    """A run's files, written and not yet committed, and its counts."""

    silver: list[DataFile]
    rejected: list[DataFile]
    rows_in: int
    reasons: dict[str, int]
    dispositions: dict[str, int]

    @property
    def accepted(self) -> int:
        """Rows for silver."""
        return sum(file.rows for file in self.silver)


def silver_spec(spark: SparkSession, settings: Settings, dataset: Dataset, transform: Transformation) -> TableSpec:
    """Return what `silver.<dataset>` is: the columns that the transformation makes, coordinates, month."""
    rows = _silver_rows(judged_records(_no_bronze(spark), dataset.contract), dataset, transform)
    schema = partitioned_schema(rows.schema, MONTH)
    windows = [gold.window.column for gold in dataset.pipeline.gold if hasattr(gold, "window")]
    keys = [key for gold in dataset.pipeline.gold if not hasattr(gold, "window") for key in gold.keys]
    timed = [dataset.pipeline.event_time, *dataset.pipeline.identity]
    bounded = dict.fromkeys([*timed, *windows, *keys, "_partition", "_offset", "_batch_id"])
    path = silver_path(settings, dataset.name, dataset.release)
    return TableSpec(f"silver.{dataset.name}", path, schema, MONTH, tuple(bounded))


def rejected_spec(settings: Settings, dataset: Dataset) -> TableSpec:
    """Return what `rejected.<dataset>` is."""
    path = rejected_path(settings, dataset.name, dataset.release)
    return TableSpec(f"rejected.{dataset.name}", path, REJECTED, MONTH, ("_partition", "_offset", "_batch_id"))


@dataclass(frozen=True)
class Refinery:
    """What it takes to judge batches of one release."""

    spark: SparkSession
    dataset: Dataset
    transform: Transformation
    bronze: Table
    silver: Table
    rejected: Table


def judge_batches(
    refinery: Refinery, first: int, last: int, epoch: int, committed: Sequence[DataFile] | None = None
) -> Judged:
    """Judge bronze batches [first, last] and write the files of both tables; RowsUnaccounted when rows are missing.

    `committed` are silver's files of this run when silver has them already: they are never written again.
    """
    sources = batch_files(refinery.bronze, first, last)
    records = refinery.bronze.read(refinery.spark, sources).where(F.col("_batch_id").between(first, last))
    judged = judged_records(records, refinery.dataset.contract).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        folder = f"b{last:08d}-{epoch}"
        rejected = refinery.rejected.write(_rejected_rows(refinery, judged, first), folder)
        reasons, dispositions = _counts(refinery.rejected, rejected)
        accepted = _without_rejected(refinery, judged, rejected, dispositions)
        rows = _silver_rows(accepted, refinery.dataset, refinery.transform)
        silver = refinery.silver.write(rows, folder) if committed is None else list(committed)
    finally:
        judged.unpersist()
    result = Judged(silver, rejected, sum(file.rows for file in sources), reasons, dispositions)
    validate_balance(refinery.silver.spec.name, (first, last), result)
    pass_step(Step.SILVER_WRITTEN, last)
    return result


def validate_balance(name: str, batches: tuple[int, int], judged: Judged) -> None:
    """Rows in = silver + rejected."""
    rejected = sum(file.rows for file in judged.rejected)
    if judged.rows_in != judged.accepted + rejected:
        why = f"{judged.rows_in} records came in, {judged.accepted} are accepted and {rejected} rejected"
        raise RowsUnaccounted(name, batches, why)


def _no_bronze(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], BRONZE)


def _silver_rows(accepted: DataFrame, dataset: Dataset, transform: Transformation) -> DataFrame:
    rows = transform(accepted.drop("_reasons"))
    business = [name for name in rows.columns if name not in COORDINATES]
    month = F.date_format(dataset.pipeline.event_time, "yyyy-MM").alias(MONTH)
    return rows.select(*business, *COORDINATES, month)


def _rejected_rows(refinery: Refinery, judged: DataFrame, first: int) -> DataFrame:
    """The invalid, with their reasons, and the records whose identity an earlier record has."""
    invalid = judged.where(F.size("_reasons") > 0).select(
        *COORDINATES, "_reasons", F.lit("invalid").alias("disposition")
    )
    duplicate = duplicates(refinery, judged.where(F.size("_reasons") == 0), first)
    return invalid.unionByName(duplicate).select(
        "_topic",
        "_partition",
        "_offset",
        "_batch_id",
        "disposition",
        F.col("_reasons").alias("reasons"),
        F.lit(refinery.dataset.contract.version).alias("contract_version"),
        F.col("_timestamp").alias("first_seen"),
        F.date_format("_timestamp", "yyyy-MM").alias(MONTH),
    )


def duplicates(refinery: Refinery, valid: DataFrame, first: int) -> DataFrame:
    """Return the valid records whose identity stands earlier, in silver or in the run.

    Earlier means (ingest batch, partition, offset); silver is asked for what it had before batch `first`. A hash of
    the identity finds the few suspects; they alone are compared in full, so a collision costs time and nothing else.
    """
    identity = list(refinery.dataset.pipeline.identity)
    order = ["_batch_id", "_partition", "_offset"]
    mark = F.xxhash64(*identity).alias("_mark")
    fresh = valid.select(mark, *identity, *COORDINATES, F.lit(True).alias("_fresh"))
    known = _known(refinery, valid, first).select(mark, *identity, *COORDINATES, F.lit(False).alias("_fresh"))
    both = fresh.unionByName(known)
    marks = both.groupBy("_mark").agg(F.count("*").alias("n"), F.max("_fresh").alias("fresh"))
    suspects = both.join(F.broadcast(marks.where("n > 1 and fresh").select("_mark")), "_mark", "left_semi")
    place = F.row_number().over(Window.partitionBy(*identity).orderBy(*order))
    winner = F.first(F.concat_ws("/", *order)).over(Window.partitionBy(*identity).orderBy(*order))
    losers = suspects.withColumn("_place", place).withColumn("_winner", winner).where("_place > 1 and _fresh")
    reason = F.struct(
        F.lit("duplicate").alias("rule"), F.lit(",".join(identity)).alias("column"), F.col("_winner").alias("detail")
    )
    return losers.select(*COORDINATES, F.array(reason).alias("_reasons"), F.lit("duplicate").alias("disposition"))


def _known(refinery: Refinery, valid: DataFrame, first: int) -> DataFrame:
    """Silver's rows from before batch `first` in files that may hold an identity of the run's.

    A file is left out by its bounds on the identity itself, and by event time: the horizon is the producer's promise
    how far apart the copies of an event can lie. The run is asked month by month, so that one old record does not
    open all of silver.
    """
    time, horizon = refinery.dataset.pipeline.event_time, refinery.dataset.pipeline.horizon
    identity = refinery.dataset.pipeline.identity[0]
    months = valid.groupBy(F.date_trunc("month", time)).agg(F.min(time), F.max(time), F.min(identity), F.max(identity))
    spans = [(_utc(row[1]) - horizon, _utc(row[2]) + horizon, row[3], row[4]) for row in months.collect()]
    files = [
        file
        for file in refinery.silver.files()
        if file.overlaps("_batch_id", 0, first - 1)
        and any(file.overlaps(time, a, b) and file.overlaps(identity, c, d) for a, b, c, d in spans)
    ]
    return refinery.silver.read(refinery.spark, files).where(F.col("_batch_id") < first)


def _without_rejected(
    refinery: Refinery, judged: DataFrame, rejected: Sequence[DataFile], dispositions: dict[str, int]
) -> DataFrame:
    valid = judged.where(F.size("_reasons") == 0)
    if not dispositions.get("duplicate"):
        return valid
    losers = refinery.rejected.read(refinery.spark, rejected).where("disposition = 'duplicate'")
    return valid.join(F.broadcast(losers.select("_partition", "_offset")), ["_partition", "_offset"], "left_anti")


def _counts(table: Table, files: Sequence[DataFile]) -> tuple[dict[str, int], dict[str, int]]:
    """Return rejected rows by reason (each reason once a record) and by disposition, from the files just written."""
    reasons: Counter[str] = Counter()
    dispositions: Counter[str] = Counter()
    for file in files:
        rows = pq.read_table(table.spec.path / file.path, columns=["disposition", "reasons"], partitioning=None)
        dispositions += _counted(rows["disposition"])
        reasons += _counted_reasons(rows["reasons"].combine_chunks())
    return dict(reasons), dict(dispositions)


def _counted_reasons(reasons: Any) -> Counter[str]:
    rules = pc.struct_field(pc.list_flatten(reasons), "rule")
    pairs = pa.table({"record": pc.list_parent_indices(reasons), "rule": rules})
    return _counted(pairs.group_by(["record", "rule"]).aggregate([])["rule"])


def _counted(values: Any) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()})


def _utc(moment: datetime) -> datetime:
    """PySpark hands times out in the process's local zone, without saying so."""
    return moment.astimezone()
