"""Reads the records of a micro-batch from Kafka into Arrow files, without a Spark job (layers/adr-0018).

Reads: ranges of offsets, `read_committed`. Writes: a file for each partition that has records, with the columns of
Spark's Kafka source, which has no time outside the calendar (layers/adr-0019).
Does not: decide which offsets a batch has; the streaming query plans them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from include.ground.errors import Transient
from include.ground.record_coordinates import FIRST_MS, HEADER, LAST_MS
from spark_jobs.backends.local.arrow_files import SUFFIX, added_files
from spark_jobs.contract.java_function import new_instance

SOURCES = [Path(__file__).with_name(f"{name}.java") for name in ("KafkaRanges", "ArrowFile")]
PREFIX = "kafka."
BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
READING = {
    "key.deserializer": BYTES,
    "value.deserializer": BYTES,
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
}
POLL_TIMEOUT_OPTION, POLL_TIMEOUT_MS = "kafkaconsumer.polltimeoutms", "120000"
"""How long a consumer waits for records of a planned range: an option of Spark's Kafka source, and its default."""
CHECK_SECONDS = 0.5
"""How often the reader checks whether the driver drains."""
DRAIN_SECONDS = 10
"""How long a drain waits for ranges in progress. If they end in time, their batch is committed."""
TRANSIENT = "org.apache.kafka.common.errors.RetriableException"


class KafkaRanges:
    """The consumers of one topic, with the options of Spark's Kafka source. `close` ends them."""

    def __init__(self, spark: SparkSession, topic: str, options: Mapping[str, str], stop: threading.Event) -> None:
        self.topic = topic
        self._stop = stop
        self._java: Any = new_instance(spark, *SOURCES)
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._gateway = gateway
        # Spark's source reads its options in any case.
        any_case = {name.lower(): value for name, value in options.items()}
        named = {name[len(PREFIX) :]: value for name, value in options.items() if name.lower().startswith(PREFIX)}
        consumer = gateway.jvm.java.util.HashMap()
        for name, value in (named | READING).items():
            consumer.put(name, value)
        timeout = int(any_case.get(POLL_TIMEOUT_OPTION, POLL_TIMEOUT_MS))
        self._java.open(consumer, topic, timeout, FIRST_MS, LAST_MS, HEADER)

    def write(self, ranges: Mapping[int, tuple[int, int]], folder: Path) -> list[Path]:
        """Add the records of half-open ranges of offsets by partition to a folder; return the files.

        Raises Transient for a retriable error (`range-failed`) and for a drain (`read-stopped`), Py4JJavaError for any
        other.
        """
        return added_files(folder, lambda unfinished: self._read(ranges, unfinished))

    def close(self) -> None:
        self._java.close()

    def _read(self, ranges: Mapping[int, tuple[int, int]], folder: Path) -> None:
        try:
            for partition, (start, end) in ranges.items():
                if start < end:
                    self._java.begin(partition, start, end, str(folder / f"{partition:05d}{SUFFIX}"))
            self._await_all()
        except Py4JJavaError as error:
            self._java.reset()
            if is_instance_of(self._gateway, error.java_exception, TRANSIENT):
                reason = str(error.java_exception.getMessage())
                what = f"topic {self.topic}: {reason}; the batch stays planned, and its offsets are read again"
                raise Transient(what, "headrace status", code="range-failed", topic=self.topic) from error
            raise

    def _await_all(self) -> None:
        stopping = 0.0
        while not self._java.awaitAll(int(CHECK_SECONDS * 1000)):
            stopping += CHECK_SECONDS if self._stop.is_set() else 0
            if stopping > DRAIN_SECONDS:
                self._java.reset()
                what = f"topic {self.topic}: reading stopped for a drain; the batch stays planned"
                raise Transient(what, "headrace up", code="read-stopped", topic=self.topic)
