"""A query that computes each row from one row, executed by this process over few rows, without a Spark job.

A job over such a query takes 70 ms for one row: Spark serializes the expressions for its tasks, and a task generates
their code. Here that is done once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.contract.java_class import new_instance
from spark_jobs.tables.arrow_files import SUFFIX, read_arrow

SOURCE = Path(__file__).with_name("RowProjection.java")
BATCH_ROWS = 1_024


class RowProjection:
    """The rows that a query makes of others; used by one thread at a time."""

    def __init__(self, prepared: Any, schema: pa.Schema, folder: Path) -> None:
        self._prepared, self._schema, self._folder = prepared, schema, folder

    def of(self, rows: pa.Table) -> pa.Table:
        """Return what the query returns for these rows, in their order."""
        self._folder.mkdir(parents=True, exist_ok=True)
        source, target = (self._folder / f"{uuid4().hex}{SUFFIX}" for _ in range(2))
        try:
            with pa.ipc.new_file(source, self._schema) as file:
                file.write_table(rows.select(self._schema.names).cast(self._schema), BATCH_ROWS)
            self._prepared.write(str(source), str(target))
            return read_arrow([target])
        finally:
            # The rows that were read stay mapped.
            source.unlink(missing_ok=True)
            target.unlink(missing_ok=True)


def row_projection(
    spark: SparkSession, schema: StructType, query: Callable[[DataFrame], DataFrame], folder: Path
) -> RowProjection | None:
    """Return the projection that `query` makes of rows of a schema; None if it does anything else, or calls Python.

    `folder`: for the rows on their way to the JVM and back.
    """
    nothing = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
    prepared = new_instance(spark, SOURCE)
    if not prepared.prepare(query(nothing)._jdf.queryExecution()):
        return None
    return RowProjection(prepared, to_arrow_schema(schema, timezone="UTC"), folder)
