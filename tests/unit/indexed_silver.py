"""A silver table with an index of identities, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from include.declare.dataset import declared_dataset
from include.ground.paths import identities_path
from include.ground.settings import Settings
from spark_jobs.backends.local.arrow_files import rows_in_files
from spark_jobs.backends.local.duckdb_session import session_for
from spark_jobs.backends.local.identities import IdentifiedRows, IdentityLookup, identify_files
from spark_jobs.tables.data_files import DataFile, TableSpec, written_file
from spark_jobs.tables.delta_table import Table

START = datetime(2013, 3, 1, tzinfo=UTC)
COLUMNS = (
    StructType()
    .add("event_id", StringType())
    .add("occurred_at", TimestampType())
    .add("_topic", StringType())
    .add("_timestamp", TimestampType())
    .add("_partition", IntegerType())
    .add("_offset", LongType())
    .add("_batch_id", LongType())
    .add("_month", StringType())
)
BOUNDED = ("occurred_at", "event_id", "_partition", "_offset", "_batch_id")


@dataclass
class IndexedSilver:
    """A silver table without Spark: batch n holds identities by number, at increasing offsets of partition 0."""

    settings: Settings
    batches: int = 0
    offset: int = 0
    files: list[DataFile] = field(default_factory=list)
    looked_up: IdentifiedRows = field(init=False)

    def __post_init__(self) -> None:
        self.dataset = declared_dataset(self.settings, "flights")
        assert self.dataset.pipeline.identity == ("event_id",)
        path = self.settings.state / "warehouse" / "flights" / self.dataset.release / "silver"
        self.spec = TableSpec("silver.flights", path, COLUMNS, "_month", BOUNDED)
        self.index = identities_path(self.settings, "flights", self.dataset.release)
        self.restart()

    def restart(self) -> None:
        """Open table and index as a new owner."""
        self.table = Table(self.spec)
        self.lookup = IdentityLookup(self.dataset, self.table, self.index, owns=True)

    def write(self, numbers: Iterable[int], name: str) -> DataFile:
        """Write one file; identity n happens n minutes after START."""
        chosen = list(numbers)
        rows = {
            "event_id": [f"e{number}" for number in chosen],
            "occurred_at": pa.array([START + timedelta(minutes=n) for n in chosen], pa.timestamp("us", "UTC")),
            "_topic": ["flights"] * len(chosen),
            "_timestamp": pa.array([START] * len(chosen), pa.timestamp("us", "UTC")),
            "_partition": pa.array([0] * len(chosen), pa.int32()),
            "_offset": range(self.offset, self.offset + len(chosen)),
            "_batch_id": [self.batches] * len(chosen),
        }
        path = self.spec.path / name / "_month=2013-03" / "part.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(rows), path)
        self.offset += len(chosen)
        return written_file(self.spec, path)

    def take(self, numbers: Iterable[int]) -> None:
        """Commit a batch."""
        file = self.write(numbers, f"b{self.batches}")
        self.table.commit("silver", self.batches, {}, [file])
        self.files.append(file)
        self.batches += 1

    def compact(self, text: pa.DataType | None = None) -> None:
        """Replace all files by one with the same rows; `text` is the Arrow type of its texts."""
        whole = pa.concat_tables([pq.read_table(self.spec.path / f.path, partitioning=None) for f in self.files])
        whole = whole.set_column(0, "event_id", whole["event_id"].cast(text or pa.string()))
        path = self.spec.path / f"c{self.batches}" / "_month=2013-03" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(whole, path)
        old, self.files = self.files, [written_file(self.spec, path)]
        self.table.compact(self.files, old)
        for file in old:
            (self.spec.path / file.path).unlink()

    def restart_table(self) -> None:
        """Read the table's log again; the lookup stays."""
        self.table = Table(self.spec)
        self.lookup._silver = self.lookup._index._silver = self.table

    def candidates(self, numbers: Iterable[int], lookup: IdentityLookup | None = None) -> list[str]:
        """Return the identities of the candidates of these."""
        return self.viewed(numbers, "candidates", lookup)

    def sharing(self, numbers: Iterable[int], lookup: IdentityLookup | None = None) -> list[str]:
        """Return the identities of these that may share one."""
        return self.viewed(numbers, "candidates_sharing", lookup)

    def viewed(self, numbers: Iterable[int], view: str, lookup: IdentityLookup | None) -> list[str]:
        """Return the identities in a view after a look-up of these."""
        given = self.settings.state / "given.parquet"
        kept = self.offset
        shutil.copy(self.spec.path / self.write(numbers, "given").path, given)
        self.offset = kept
        count = rows_in_files([given])
        rows = identify_files(self.dataset, self.table, [given], count)
        with session_for(count) as duck:
            self.looked_up = rows
            (lookup or self.lookup).view_candidates(duck, "candidates", [given], rows)
            return sorted(row[0] for row in duck.rows(f"select event_id from {view}"))

    def run(self, numbers: Iterable[int], duplicates: Iterable[int] = ()) -> None:
        """Look rows up and commit those that are no `duplicates` (offsets), as a run of silver does."""
        looked_up, left_out = list(numbers), list(duplicates)
        self.candidates(looked_up)
        first = self.offset
        self.take([number for at, number in enumerate(looked_up, first) if at not in left_out])
        self.note_written(left_out)

    def note_written(self, duplicates: Sequence[int] = ()) -> None:
        """Note that the last file has the rows looked up last, but those at these offsets."""
        rows = self.looked_up.indexed_without(np.array(sorted(duplicates), np.uint64))
        self.lookup.note_written(self.files[-1:], rows)


def ten_batches(settings: Settings) -> IndexedSilver:
    """Return a table of ten batches with five identities each, from 0 on."""
    silver = IndexedSilver(settings)
    for start in range(0, 50, 5):
        silver.take(range(start, start + 5))
    return silver
