"""How many offsets the next ingest batch may have, so that its records have about `HEADRACE_BATCH_BYTES`.

Spark's Kafka source limits a batch by offsets only, and reads the limit when the query starts. The bytes of a record
are those of the last batch, uncompressed; at first, those of a few records of the topic. When a batch is measured, the
next one is already planned: a limit that is wrong by a factor of two costs one batch and a restart.

*Reads:* footers of bronze's files, a few records of the topic. *Writes:* nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from include.ground.kafka_record import record_reader
from spark_jobs.tables.batches import last_batch
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table

SAMPLED = 20
"""Records of each partition."""
WRONG_BY = 2


class BatchLimitChanged(Exception):
    """The query must be started again to read the new limit; the planned batch stays planned."""


@dataclass
class BatchLimit:
    """The limit in `offsets`, at most `most_offsets`; `measured` is the limit that fits the last batch's records."""

    most_offsets: int
    most_bytes: int
    offsets: int = field(init=False)
    measured: int = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = self.measured = self.most_offsets

    def measure(self, rows: int, size: int) -> None:
        """Note that `rows` records had `size` bytes."""
        if rows and size:
            self.measured = max(1, min(self.most_offsets, self.most_bytes * rows // size))

    def apply(self) -> int:
        """Make the measured limit the one of the query that starts now; return it."""
        self.offsets = self.measured
        return self.offsets

    def refuse_outdated(self) -> None:
        """Raise BatchLimitChanged when the query's limit is wrong by a factor of two."""
        least, most = sorted((self.offsets, self.measured))
        if most >= WRONG_BY * least:
            raise BatchLimitChanged(f"its batches get at most {self.measured:,} offsets instead of {self.offsets:,}")


def size_in_bronze(bronze: Table, files: Sequence[DataFile]) -> tuple[int, int]:
    """Return the rows of files, and their bytes before compression."""
    footers = [pq.read_metadata(bronze.spec.path / file.path) for file in files]
    groups = [footer.row_group(number) for footer in footers for number in range(footer.num_row_groups)]
    return sum(footer.num_rows for footer in footers), sum(group.total_byte_size for group in groups)


def newest_files(bronze: Table) -> list[DataFile]:
    """Return bronze's files with its last batch. Reads the list of all files."""
    newest = max((last_batch(file) for file in bronze.files()), default=-1)
    return bronze.batch_files(newest, newest) if newest >= 0 else []


def size_in_topic(bootstrap: str, topic: str, starts: Mapping[int, int]) -> tuple[int, int]:
    """Return the number of a few records from these offsets by partition on, and the bytes of their keys and values.

    Raises BrokerUnreachable.
    """
    with record_reader(bootstrap, topic) as read:
        records = [one for partition, start in starts.items() for one in read(partition, start, start + SAMPLED)]
    return len(records), sum(len(one.key or b"") + len(one.value or b"") for one in records)
