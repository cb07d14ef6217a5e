"""Columns that a Java function computes (`spark_jobs/contract/java_class.py`), without a name in a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import _to_seq
from pyspark.sql.types import DataType


def java_function(spark: SparkSession, function: Any, returned: DataType, argument: Column) -> Column:
    """Return the column of what a Java function (`UDF1`) returns for a column; no session has a name for it."""
    kind = spark._jsparkSession.parseDataType(returned.json())
    # By reflection: py4j takes `udf(Object, DataType)`, which Spark refuses.
    types = [_class(spark, f"org.apache.spark.sql.{name}") for name in ("api.java.UDF1", "types.DataType")]
    method = _class(spark, "org.apache.spark.sql.functions").getMethod("udf", _array(spark, "Class", types))
    defined = method.invoke(None, _array(spark, "Object", [function, kind]))
    return Column(defined.apply(_to_seq(spark.sparkContext, [argument._jc])))


def _class(spark: SparkSession, name: str) -> Any:
    java: Any = spark._jvm
    return java.org.apache.spark.util.Utils.classForName(name, True, False)


def _array(spark: SparkSession, kind: str, values: Sequence[Any]) -> Any:
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(getattr(gateway.jvm.java.lang, kind), len(values))
    for number, value in enumerate(values):
        array[number] = value
    return array
