"""Check of the user's own Kafka, which HEADRACE_KAFKA_BOOTSTRAP names, and of the datasets' topics in it."""

from __future__ import annotations

from include.declare.dataset import dataset_names, declared_dataset
from include.ground.errors import HeadraceError
from include.ground.kafka import TopicMissing, cluster_id, topic_concerns
from include.ground.settings import Settings
from include.observe.check_result import CheckResult, failed, passed, warning
from include.state.broker_address import bootstrap_servers

TIMEOUT = 10.0
"""Seconds."""


def check_kafka(settings: Settings) -> list[CheckResult]:
    """Kafka answers, and the settings of each topic keep its records; empty for Headrace's own broker."""
    if not settings.kafka_bootstrap:
        return []
    try:
        bootstrap = bootstrap_servers(settings)
        cluster_id(bootstrap, TIMEOUT)
        topics = {declared_dataset(settings, name).pipeline.topic for name in dataset_names(settings)}
        findings = [finding for topic in sorted(topics) for finding in check_topic(bootstrap, topic)]
    except HeadraceError as error:
        return [failed("kafka", error.what, error.remedy or "correct the HEADRACE_KAFKA… settings, or start Kafka")]
    return [passed("kafka", f"{settings.kafka_bootstrap} answers"), *findings]


def check_topic(bootstrap: str, topic: str) -> list[CheckResult]:
    """Return a warning for each setting of the topic that can lose records; nothing for a topic that is missing."""
    remedy = "change it with kafka-configs.sh, the number of copies with kafka-reassign-partitions.sh"
    try:
        return [warning(f"topic {topic}", concern, remedy) for concern in topic_concerns(bootstrap, topic)]
    except TopicMissing:
        return []
