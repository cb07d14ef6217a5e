"""Queries of parity tests are compiled also in `make test`, as those of drivers are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session of all tests, which compiles queries."""
    before = {option: spark.conf.get(option) for option in COMPILED}
    for option, value in COMPILED.items():
        spark.conf.set(option, value)
    yield spark
    for option, value in before.items():
        spark.conf.set(option, value)
