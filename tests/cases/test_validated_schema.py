"""The columns of validated records, as they are declared and as Spark finds them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from include.declare.dataset import declared_dataset
from include.ground.settings import CLONE, Settings
from spark_jobs.contract.payload_texts import PayloadTexts
from spark_jobs.contract.validator import compiled_validator, validated_schema
from spark_jobs.layers.bronze import SCHEMA
from spark_jobs.layers.silver_tables import validated_nothing
from spark_jobs.tables.data_files import no_rows

WORKLOADS = CLONE / "tests" / "workloads" / "datasets"


@pytest.mark.parametrize("name", ["flights", "weather", "ad_events", "auction", "lineitem"])
def test_declared_columns_are_those_that_spark_finds(spark: SparkSession, settings: Settings, name: str) -> None:
    place = settings if name in ("flights", "weather") else settings.model_copy(update={"datasets": WORKLOADS})
    dataset = declared_dataset(place, name)
    contract = dataset.contract
    rows = compiled_validator(contract).validated(PayloadTexts(contract).of(no_rows(spark, SCHEMA)))
    assert rows.schema == validated_schema(contract)
    assert validated_nothing(spark, dataset).schema == rows.schema
