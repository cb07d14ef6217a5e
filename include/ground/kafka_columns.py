"""Committed records of a Kafka partition as columns, which a Java class reads into Arrow files.

The audit uses it in a JVM of its own, by the broker's version of Kafka's client (audit/adr-0002); the driver in Spark's
JVM, for records that Spark's source does not give (spark_jobs/layers/adr-0019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa

SOURCE = Path(__file__).with_name("KafkaRecords.java")
CLASS = "headrace.KafkaRecords"
BYTES = "org.apache.kafka.common.serialization.ByteBufferDeserializer"
"""The client makes no array of its own of each key and value."""
POLLED = 1_000
"""Records of one poll. 10,000 leave the processor's cache before they are copied: reading takes half as long again."""
OPTIONS = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "auto.offset.reset": "none",
    "max.poll.records": str(POLLED),
    "fetch.max.bytes": str(8 << 20),
    "max.partition.fetch.bytes": str(8 << 20),
    "key.deserializer": BYTES,
    "value.deserializer": BYTES,
}
COLUMNS = pa.schema(
    {
        "offset": pa.int64(),
        "timestamp": pa.int64(),
        "timestamp_type": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
"""The timestamp is in milliseconds; its type as in Spark: 0 set by the producer, 1 by the broker."""
RECORD = pl.DataFrame(pl.from_arrow(COLUMNS.empty_table())).schema
HEADERS = RECORD["headers"]


@dataclass(frozen=True)
class PartitionReader:
    """Reads a partition's committed records in turn, by way of files in a folder."""

    java: Any
    folder: Path

    def open(self, address: Mapping[str, str], topic: str, partition: int, start: int) -> None:
        """The records from offset `start` on are next."""
        columns = COLUMNS.serialize().to_pybytes()
        self.java.open({**address, **OPTIONS}, topic, partition, start, columns)

    def read(self, end: int, most_records: int, most_bytes: int) -> tuple[int, pl.DataFrame]:
        """Return the next records below `end`, and the offset before which all are read.

        There may be fewer, or none, while Kafka has not answered.
        """
        file = self.folder / uuid4().hex
        position = int(self.java.read(str(file), end, most_records, most_bytes))
        with pa.memory_map(str(file)) as mapped:
            records = pl.from_arrow(pa.ipc.open_file(mapped).read_all())
        file.unlink()
        return position, pl.DataFrame(records)
