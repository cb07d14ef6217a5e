"""One Parquet file of several, by copying their row groups: costs reading and writing the bytes, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_jobs.java_class import new_instance

SOURCE = Path(__file__).with_name("RowGroupCopy.java")


def have_same_columns(files: Sequence[Path]) -> bool:
    """Return whether the files have the same columns in the same physical types, as the parts of one file must."""
    first, *others = (pq.read_metadata(file).schema for file in files)
    return all(first.equals(other) for other in others)


def copy_row_groups(spark: SparkSession, files: Sequence[Path], target: Path) -> None:
    """Write the row groups of the files, in order, into one new file. Raises py4j's error when one cannot be read."""
    java = spark.sparkContext._gateway
    assert java is not None
    paths = java.new_array(java.jvm.java.lang.String, len(files))
    for number, file in enumerate(files):
        paths[number] = str(file)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    new_instance(spark, SOURCE).concatenate(configuration, paths, str(target))
