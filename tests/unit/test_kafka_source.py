"""Options of the Kafka source: what consumers fetch ahead fits the heap, and declared options replace defaults only."""

from __future__ import annotations

import pytest

from include.ground.settings import Settings
from spark_jobs.layers.bronze import complete_source_options, fetch_options

FETCHED = "kafka.max.partition.fetch.bytes"


@pytest.mark.parametrize(
    ("partitions", "mebibytes", "records"),
    [(0, 8, 10_000), (1, 8, 10_000), (10, 8, 10_000), (16, 8, 6_250), (32, 4, 3_125), (1_000, 1, 500)],
)
def test_consumers_of_many_partitions_fetch_less_each(partitions: int, mebibytes: int, records: int) -> None:
    options = fetch_options(partitions)
    assert (int(options[FETCHED]), int(options["kafka.max.poll.records"])) == (mebibytes << 20, records)


def test_declared_option_replaces_a_default_and_no_other() -> None:
    declared = Settings(kafka_options={FETCHED: "5", "kafka.client.rack": "a"})
    options = complete_source_options(declared, "host:1", {"subscribe": "topic"}, fetch_options(2))
    assert (options[FETCHED], options["kafka.client.rack"]) == ("5", "a")
    assert options["kafka.max.poll.records"] == fetch_options(2)["kafka.max.poll.records"]
    assert options["kafka.isolation.level"] == "read_committed"
