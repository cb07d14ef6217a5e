"""A session whose tables Spark writes: unsafe settings are refused, and a version of a log is created once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.backends.spark.delta_session import FORBIDDEN, UnsafeDelta, require_delta


@pytest.mark.parametrize("key", FORBIDDEN)
def test_settings_with_which_commits_are_lost_or_doubled_are_refused(spark: SparkSession, key: str) -> None:
    session = spark.newSession()
    require_delta(session)
    session.conf.set(key, "7")
    with pytest.raises(UnsafeDelta) as refused:
        require_delta(session)
    assert refused.value.key == key
    require_delta(spark)


def test_log_store_creates_a_version_whole_and_once(spark: SparkSession, tmp_path: Path) -> None:
    require_delta(spark)
    java: Any = spark._jvm
    hadoop = spark._jsparkSession.sessionState().newHadoopConf()
    arguments = spark.sparkContext._gateway.new_array(java.java.lang.Object, 1)
    arguments[0] = hadoop
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    store = loader.loadClass("headrace.LinkLogStore").getConstructors()[0].newInstance(arguments)
    path = java.org.apache.hadoop.fs.Path(f"file:{tmp_path}/00000000000000000001.json")

    def write(line: str, *, overwrite: bool = False) -> None:
        lines = java.java.util.ArrayList()
        lines.add(line)
        store.write(path, lines.iterator(), overwrite, hadoop)

    write("first")
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        write("second")
    assert [file.read_text("utf-8") for file in tmp_path.iterdir()] == ["first\n"]
    write("third", overwrite=True)
    assert [file.read_text("utf-8") for file in tmp_path.iterdir()] == ["third\n"]
