"""Options that could lose or change records are refused: only options of a list are accepted."""

from __future__ import annotations

import pytest

from include.ground.settings import InvalidSetting, Settings
from include.ground.settings_profiles import REASONS, reason_refused
from spark_jobs.backends.spark_session import GUARDED, TUNED

REFUSED = [
    ("kafka_options", "startingTimestamp", "1700000000000", "start offsets"),
    ("kafka_options", "startingOffsetsByTimestamp", '{"t": {"0": 1}}', "start offsets"),
    ("kafka_options", "endingTimestamp", "1", "end offsets"),
    ("kafka_options", "kafka.group.id", "mine", "group"),
    ("kafka_options", "KAFKA.AUTO.OFFSET.RESET", "latest", "missing offset"),
    ("kafka_options", "subscribePattern", ".*", "not one of"),
    ("spark_conf", "spark.sql.parquet.outputTimestampType", "INT96", "microseconds"),
    ("spark_conf", "spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY", "what is written"),
    ("spark_conf", "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version", "1", "committed"),
    ("spark_conf", "spark.sql.files.ignoreCorruptFiles", "true", "damaged files"),
    ("spark_conf", "spark.sql.optimizer.excludedRules", "x", "not one of"),
]
ACCEPTED = [
    ("kafka_options", "kafka.sasl.jaas.config"),
    ("kafka_options", "kafka.security.protocol"),
    ("kafka_options", "minOffsetsPerTrigger"),
    ("kafka_options", "kafka.request.timeout.ms"),
    ("kafka_options", "kafka.max.partition.fetch.bytes"),
    ("spark_conf", "spark.ssl.keyStorePassword"),
    ("spark_conf", "spark.ui.enabled"),
    ("spark_conf", "spark.authenticate"),
    ("spark_conf", "spark.authenticate.secret"),
    ("spark_conf", "spark.authenticate.secret.file"),
    ("spark_conf", "spark.network.crypto.enabled"),
    ("spark_conf", "spark.network.crypto.cipher"),
    ("spark_conf", "spark.io.encryption.enabled"),
    ("spark_conf", "spark.ssl.rpc.enabled"),
    ("spark_conf", "spark.ssl.keyPassword"),
    ("spark_conf", "spark.sql.shuffle.partitions"),
    ("spark_conf", "spark.sql.parquet.columnarReaderBatchSize"),
]


@pytest.mark.parametrize(("field", "option", "value", "why"), REFUSED)
def test_option_outside_the_list_is_refused_with_its_reason(field: str, option: str, value: str, why: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Settings(**{field: {option: value}})  # type: ignore[arg-type]
    assert refused.value.key == f"HEADRACE_{field.upper()}"
    assert option in refused.value.what
    assert why in refused.value.what


@pytest.mark.parametrize(("field", "option"), ACCEPTED)
def test_option_of_the_list_is_accepted(field: str, option: str) -> None:
    assert getattr(Settings(**{field: {option: "1"}}), field) == {option: "1"}  # type: ignore[arg-type]


@pytest.mark.parametrize("option", GUARDED)
def test_guarded_setting_is_accepted_with_the_guarded_value_only(option: str) -> None:
    assert Settings(spark_conf={option: GUARDED[option]}).spark_conf
    with pytest.raises(InvalidSetting):
        Settings(spark_conf={option: "Europe/Berlin" if "timeZone" in option else "false"})


def test_every_reason_belongs_to_a_refused_option() -> None:
    names = {"kafka_options": ("starting", "ending", "kafka"), "spark_conf": ("spark",)}
    for pattern in REASONS:
        (field,) = (field for field, starts in names.items() if pattern.startswith(starts))
        assert reason_refused(field, pattern.replace("*", "x")) == REASONS[pattern]


def test_settings_that_decide_what_is_written_are_not_in_the_list() -> None:
    for option in TUNED:
        if option.startswith("spark.hadoop.") or "Timestamp" in option or "checkpoint" in option.lower():
            assert reason_refused("spark_conf", option)
