"""A record's Kafka time in bronze: which rows have a replacement, whatever headers the producer has sent."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType
from small_events import departed

from include.catalog.dataset import declared_dataset
from include.kafka_times import AFTER, BEFORE, HEADER
from include.settings import Settings
from spark_jobs.contract.payload_texts import PayloadTexts
from spark_jobs.contract.validator import compiled_validator
from spark_jobs.layers.bronze_layer import SCHEMA

NOON, MIN_VALUE, LAST_DAY = 1_362_139_200_000_000, -62_135_596_800_000_000, 253_402_300_799_999_000
TRACE, OWN, NUMBER = (("trace", b"\xff"), (HEADER, b"5"), (HEADER, b"9223372036854775807"))
ROWS: list[tuple[int, list[tuple[str, bytes]] | None, str | None]] = [
    *[(micros, headers, None) for micros in (NOON, MIN_VALUE, LAST_DAY) for headers in (None, [TRACE], [OWN])],
    *[(micros, [*own, NUMBER], "9223372036854775807") for micros in (BEFORE, AFTER) for own in ([], [TRACE], [OWN])],
]


def test_only_a_replaced_time_is_a_reason_and_its_detail_is_the_number(spark: SparkSession, settings: Settings) -> None:
    contract, value = declared_dataset(settings, "flights").contract, departed(1, 5).value
    fields = [StructField("timestamp", LongType()) if each.name == "timestamp" else each for each in SCHEMA.fields]
    given: list[dict[str, Any]] = [
        {"topic": "flights", "partition": 0, "offset": n, "timestamp": micros, "value": value, "headers": headers}
        | {"key": None, "timestamp_type": 0, "_date": "2013-03-01", "_batch_id": 0}
        for n, (micros, headers, _) in enumerate(ROWS)
    ]
    rows = spark.createDataFrame([tuple(row[each.name] for each in fields) for row in given], StructType(fields))
    bronze = rows.withColumn("timestamp", F.timestamp_micros("timestamp"))
    validator, texts = compiled_validator(contract), PayloadTexts(contract).of(bronze)
    found = validator.validated(texts).select("_offset", F.col("_reasons")).orderBy("_offset").collect()
    reasons = [[(each.rule, each.detail) for each in row["_reasons"]] for row in found]
    assert reasons == [[] if number is None else [("kafka_timestamp", number)] for _, _, number in ROWS]
    plain = {row["_offset"] for row in validator.accepted_plain(texts).select("_offset").collect()}
    assert plain == {n for n, (_, _, number) in enumerate(ROWS) if number is None}
