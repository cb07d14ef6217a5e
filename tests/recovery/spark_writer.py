"""A driver of its own that writes one table with Spark: it reads commands as JSON lines, and answers each with one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from spark_jobs.backends.backend import Transaction
from spark_jobs.backends.spark.spark_backend import SparkBackend
from spark_jobs.backends.spark.spark_table import STALE, SparkTable
from spark_jobs.backends.spark_session import open_session
from spark_jobs.tables.data_files import TableSpec

COLUMNS = StructType().add("n", LongType()).add("_batch_id", LongType()).add("_month", StringType())
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
APP_ID = "small/runs"


def spec_of(path: Path) -> TableSpec:
    return TableSpec("silver.small", path, COLUMNS, "_month", ("n", "_batch_id"))


def waiting(flag: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, but not while the file `flag` exists: between the snapshot and the commit."""
    for batch in batches:
        if Path(flag).exists():
            Path(flag + ".at").touch()
        while Path(flag).exists():
            time.sleep(0.02)
        yield batch


def rows_of(spark: SparkSession, batch: int, flag: str) -> DataFrame:
    rows = spark.range(10).select(F.col("id").alias("n"), F.lit(batch).cast("long").alias("_batch_id"))
    rows = rows.withColumn("_month", F.lit("2026-11"))
    return rows.mapInArrow(partial(waiting, flag), rows.schema) if flag else rows


def write(table: SparkTable, spark: SparkSession, verb: str, batch: int, flag: str = "") -> None:
    """Write batch `batch` once: as an append, or in the place of the batch before it."""
    if table.committed(APP_ID) >= batch:
        return
    rows, transaction = rows_of(spark, batch, flag), Transaction(APP_ID, batch)
    metadata = {"app_id": APP_ID, "batches": [batch, batch]}
    if verb == "append":
        table.append(rows, transaction, metadata)
    else:
        old = table.read(spark, table.batch_files(batch - 1, batch - 1)).select("n", "_batch_id")
        source = rows.withColumn(STALE, F.lit(False))
        stale = old.where(F.col("_batch_id") == batch - 1).withColumn(STALE, F.lit(True))
        table.replace(source.unionByName(stale, allowMissingColumns=True), ["n", "_batch_id"], transaction, metadata)


def answer(table: SparkTable, backend: SparkBackend, command: dict[str, Any]) -> dict[str, Any]:
    name = command.pop("do")
    if name == "claim":
        table.claim(command["epoch"])
    elif name == "unfenced":
        rows_of(backend.spark, **command).write.format("delta").mode("append").save(str(table.spec.path))
    else:
        write(table, backend.spark, name, **command)
    return {"committed": table.committed(APP_ID)}


def main() -> None:
    state, path = Path(sys.argv[1]), Path(sys.argv[2])
    settings = Settings(state=state, driver_memory="700m", driver_cores=1, driver_jvm=QUICK_JVM)
    backend = SparkBackend(open_session(settings, state.name, delta=True))
    table = backend.open_table(spec_of(path))
    assert isinstance(table, SparkTable)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            found = answer(table, backend, json.loads(line))
        except HeadraceError as error:
            found = {"error": type(error).__name__, "what": error.what}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
