"""Parquet files that this process writes from Arrow rows, and how a table's files are written, by whoever writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# Whoever reads a file holds a row group of it in memory.
GROUP_BYTES = 16 << 20


@dataclass(frozen=True)
class ParquetWriting:
    """How Spark and `write_parquet` write a table's files: no dictionary of columns `distinct`, no bounds of columns
    `unbounded`. Files that DuckDB writes are compressed by zstd.
    """

    distinct: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    compression: str = "snappy"

    @property
    def spark_options(self) -> Mapping[str, str]:
        """The options of Spark's writer."""
        distinct = {f"parquet.enable.dictionary#{name}": "false" for name in self.distinct}
        unbounded = {f"parquet.column.statistics.enabled#{name}": "false" for name in self.unbounded}
        sizes = {"parquet.size.statistics.enabled": "false"} if distinct or unbounded else {}
        return {"compression": self.compression} | distinct | unbounded | sizes


def write_parquet(rows: pa.Table, path: Path, writing: ParquetWriting) -> None:
    """Write rows into a new file, in row groups of bounded bytes (`row_groups`)."""
    names = rows.schema.names
    dictionaries = [name for name in names if name not in writing.distinct]
    bounds = [name for name in names if name not in writing.unbounded]
    with pq.ParquetWriter(
        path,
        rows.schema,
        compression=writing.compression,
        use_dictionary=dictionaries,
        write_statistics=bounds,
        store_schema=False,
    ) as writer:
        for group in row_groups(rows.to_batches()):
            writer.write_table(group)


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of at least half of GROUP_BYTES, and at most one and a half unless a row has more."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        most = max(1, batch.num_rows * GROUP_BYTES // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, most):
            pending.append(batch.slice(first, most))
            if sum(each.nbytes for each in pending) >= GROUP_BYTES // 2:
                yield pa.Table.from_batches(pending)
                pending = []
    if pending:
        yield pa.Table.from_batches(pending)
