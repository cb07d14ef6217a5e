"""A run's accepted rows without duplicates: as files of silver, and in memory for gold's merges.

Reads: files of accepted records, Arrow or Parquet. Writes: a folder of silver, invisible to readers until the commit.
Guarantee: every accepted row that is no duplicate, in the order of the files.
After a crash: the run is written again, into a folder of the new process.
Not by DuckDB: to write Arrow's rows as Parquet takes it three quarters more CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from include.ground.record_coordinates import POSITION
from spark_jobs.layers.identified_rows import PLACE_SQL
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import DuckSession
from spark_jobs.tables.identity_index import Words, are_in, packed_places, places_in
from spark_jobs.tables.partitioned_files import write_partitioned
from spark_jobs.tables.spark_files import batches_in_files, no_rows_of_file


def places_of(duck: DuckSession, view: str) -> Words:
    """Return the sorted places of a view's records."""
    found = duck.arrays(f"select {PLACE_SQL} from {view}")
    return np.sort(packed_places(found["_place_partition"], found["_place_offset"]))


def write_originals(silver: Table, accepted: Sequence[Path], duplicates: Words, folder: str) -> list[DataFile]:
    """Write the rows of files that are not at these sorted places into a folder of silver; return its files."""
    return write_partitioned(silver, _originals(accepted, silver.spec.schema.fieldNames(), duplicates), folder)


def originals_in_memory(accepted: Sequence[Path], names: Sequence[str], duplicates: Words) -> pa.Table:
    """Return these columns of the rows that are not at these sorted places, of one file or more.

    Of several queries, some may know that a column is never null: a column of the result may be.
    """
    chosen = list(dict.fromkeys([*names, *POSITION]))
    batches = [*_originals(accepted, chosen, duplicates), no_rows_of_file(accepted[0], chosen)]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    return pa.concat_tables(tables, promote_options="default").select(names)


def _originals(accepted: Sequence[Path], names: Sequence[str], duplicates: Words) -> Iterator[pa.RecordBatch]:
    for batch in batches_in_files(accepted, names):
        is_duplicate = are_in(places_in(batch, POSITION), duplicates)
        yield batch.filter(pa.array(~is_duplicate)) if is_duplicate.any() else batch
