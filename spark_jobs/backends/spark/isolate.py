"""Valid records on which the dataset's `silver.py` fails: found by bisection (layers/adr-0008), and rejected.

Cost: about 2 · log2(n) Spark jobs for each failing record among n; nothing when no record fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.ground.record_coordinates import POSITION, RANK
from spark_jobs.backends.spark.figures import figures
from spark_jobs.contract.record_reader import REASONS
from spark_jobs.layers.silver_code import (
    TRANSFORM_ERROR,
    FailedRecord,
    TransformationFailed,
    failure_of,
    most_tolerated,
)
from spark_jobs.layers.silver_tables import SilverTables
from spark_jobs.tables.failpoints import Step, pass_step

NUMBER = "_number"
Transform = Callable[[DataFrame], DataFrame]
"""Valid records as rows of silver."""


def failing_records(writer: SilverTables, validated: DataFrame, transform: Transform) -> list[FailedRecord]:
    """Return the records on which silver.py fails. Raises TransformationFailed, and errors that no record causes."""
    failed = defaultdict[int, list[FailedRecord]](list)
    order = Window.orderBy(*RANK)
    numbered = validated.where(F.size("_reasons") == 0).withColumn(NUMBER, F.row_number().over(order)).persist()

    def write(part: DataFrame) -> None:
        transform(part.drop(NUMBER)).write.format("noop").mode("overwrite").save()

    try:
        # Spark's log has the first failure with its stack; each part would add another.
        writer.spark.sparkContext.setLogLevel("OFF")
        pending = [(1, numbered.count())]
        while pending:
            first, last = pending.pop()
            part = numbered.where(F.col(NUMBER).between(first, last))
            error = failure_of(write, part)
            pass_step(Step.PART_WRITTEN)
            if error and first < last:
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
            elif error:
                ((batch, partition, offset),) = figures(part.select(*RANK))
                failed[batch].append((partition, offset, error))
                if len(failed[batch]) > most_tolerated(writer.records.count_rows(batch, batch)):
                    raise TransformationFailed(writer.dataset.name, batch, len(failed[batch]), failed[batch][0])
    finally:
        writer.spark.sparkContext.setLogLevel("WARN")
        numbered.unpersist()
    return [record for records in failed.values() for record in records]


def without_failing(validated: DataFrame, failing: Sequence[FailedRecord]) -> DataFrame:
    """Return the validated records; those that fail have the error as their reason."""
    known = validated.sparkSession.createDataFrame(list(failing), "_partition int, _offset long, _error string")
    both = validated.join(F.broadcast(known), list(POSITION), "left")
    reason = F.array(
        F.struct(F.lit(TRANSFORM_ERROR).alias("rule"), F.lit("").alias("column"), F.col("_error").alias("detail"))
    )
    reasons = F.when(F.col("_error").isNull(), F.col("_reasons")).otherwise(reason.cast(REASONS))
    return both.withColumn("_reasons", reasons).select(*validated.columns)
