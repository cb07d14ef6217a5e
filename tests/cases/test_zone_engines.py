"""Spark has the windows of Python at the transitions of time zones."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.declare.windows import Window
from spark_jobs.layers.gold_windows import windowed
from tests.unit.zone_moments import chosen_zones, local_days, moments


def test_spark_and_python_have_the_same_windows_at_the_transitions_of_zones(spark: SparkSession) -> None:
    windows = local_days(chosen_zones(step=100))
    rows = [(number, at) for number, window in enumerate(windows) for at in moments(window.time_zone)]
    zones = pa.array([number for number, _ in rows], pa.int32())
    times = pa.array([at for _, at in rows], pa.timestamp("us", "UTC"))
    frame = spark.createDataFrame(pa.table({"zone": zones, "at": times})).coalesce(1)
    found = [_days(window, frame.where(F.col("zone") == number)) for number, window in enumerate(windows)]
    expected = [[window.starts(at)[0] for at in moments(window.time_zone)] for window in windows]
    assert found == expected


def _days(window: Window, frame: DataFrame) -> list[date]:
    return [day for (day,) in windowed(window, frame).select("day").collect()]
