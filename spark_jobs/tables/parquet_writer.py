"""Parquet files that this process writes from Arrow rows, and how a table's files are written, by whoever writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

# Whoever reads a file holds a row group of it in memory.
GROUP_BYTES = 16 << 20
# A look-up of one row reads its row group.
ROWS_PER_GROUP = 16_384
# More than a group of GROUP_BYTES can have.
ANY_ROWS = 1 << 30


@dataclass(frozen=True)
class ParquetWriting:
    """How Spark and `ParquetFile` write a table's files: no dictionary of columns `distinct`, no bounds of columns
    `unbounded`. Files that DuckDB writes are compressed by zstd. `rows_per_group`: at most, of `ParquetFile`.
    """

    distinct: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    compression: str = "snappy"
    rows_per_group: int = ANY_ROWS

    @property
    def spark_options(self) -> Mapping[str, str]:
        """The options of Spark's writer."""
        distinct = {f"parquet.enable.dictionary#{name}": "false" for name in self.distinct}
        unbounded = {f"parquet.column.statistics.enabled#{name}": "false" for name in self.unbounded}
        sizes = {"parquet.size.statistics.enabled": "false"} if distinct or unbounded else {}
        return {"compression": self.compression} | distinct | unbounded | sizes


class ParquetFile:
    """A new Parquet file: rows are added in batches, and written in row groups of bounded bytes and rows.

    Each group has `rows_per_group` rows, or at least half of GROUP_BYTES and at most one and a half unless a row has
    more; the last one may have less.
    """

    def __init__(self, path: Path, schema: pa.Schema, writing: ParquetWriting) -> None:
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=writing.compression,
            use_dictionary=_all_but(writing.distinct, schema),
            write_statistics=_all_but(writing.unbounded, schema),
            store_schema=False,
            # As DuckDB and Spark do.
            store_decimal_as_integer=True,
        )
        self._rows_per_group = writing.rows_per_group
        self._pending: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, after those before."""
        first, most = 0, max(1, batch.num_rows * GROUP_BYTES // max(1, batch.nbytes))
        while first < batch.num_rows:
            part = batch.slice(first, min(most, self._rows_per_group - self._pending_rows()))
            self._pending.append(part)
            first += part.num_rows
            if self._pending_rows() == self._rows_per_group or self._pending_bytes() >= GROUP_BYTES // 2:
                self._write_pending()

    def close(self) -> None:
        """Write what is left, and the footer."""
        try:
            self._write_pending()
        finally:
            self._writer.close()

    def _pending_rows(self) -> int:
        return sum(each.num_rows for each in self._pending)

    def _pending_bytes(self) -> int:
        return sum(each.nbytes for each in self._pending)

    def _write_pending(self) -> None:
        # Rows whose writing fails, on a full disk, are not written again by `close`.
        pending, self._pending = self._pending, []
        if pending:
            self._writer.write_table(pa.Table.from_batches(pending), self._rows_per_group)


def _all_but(names: Sequence[str], schema: pa.Schema) -> bool | list[str]:
    """Return the columns without these; true for all, since Arrow's writer leaves out nested ones of a list."""
    return [name for name in schema.names if name not in names] if names else True


def write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path, writing: ParquetWriting) -> None:
    """Write rows into a new file."""
    with closing(ParquetFile(path, schema, writing)) as file:
        for batch in batches:
            file.add(batch)
