"""The last record that bronze has of each Kafka partition: what preflight compares with Kafka.

Reads: bronze's files of the highest offsets, one per partition as a rule. Writes: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from include.ground.kafka_record import KafkaRecord
from include.ground.kafka_times import kafka_time
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table


def last_records(bronze: Table, partitions: Iterable[int]) -> dict[int, KafkaRecord]:
    """Return the record of the highest offset by partition; none for a partition without rows."""
    files = bronze.files()
    found = {partition: _last_record(bronze.spec.path, files, partition) for partition in partitions}
    return {partition: record for partition, record in found.items() if record is not None}


def _last_record(table: Path, files: list[DataFile], partition: int) -> KafkaRecord | None:
    path, last = None, -1
    own = (file for file in files if file.overlaps("partition", partition, partition))
    for file in sorted(own, key=_highest_offset, reverse=True):
        if _highest_offset(file) <= last:
            break
        offset = _last_offset(table / file.path, partition)
        if offset > last:
            path, last = table / file.path, offset
    return None if path is None else _record(path, partition, last)


def _highest_offset(file: DataFile) -> int:
    return int(str(file.high["offset"]))


def _last_offset(path: Path, partition: int) -> int:
    """Return the highest offset that a file has of a partition, -1 for none."""
    rows = pq.read_table(path, columns=["offset"], filters=pc.field("partition") == partition, partitioning=None)
    found = pc.max(rows["offset"]).as_py()
    return -1 if found is None else int(found)


def _record(path: Path, partition: int, offset: int) -> KafkaRecord:
    chosen = (pc.field("partition") == partition) & (pc.field("offset") == offset)
    columns = ["timestamp", "key", "value", "headers"]
    found = pq.read_table(path, columns=columns, filters=chosen, partitioning=None).slice(0, 1)
    (row,), (micros,) = found.to_pylist(), found["timestamp"].cast(pa.int64()).to_pylist()
    return KafkaRecord(offset, kafka_time(micros, row["headers"]), row["key"], row["value"])
