"""The queries by which one process validates a release's records, built once and executed over other files (adr-0013).

Not for records with decisions, runs over several versions of reference tables, or more records than a slot takes: their
queries are built for the run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.storage.prepared_query import PreparedQuery, ScratchFolder, Slot, SlotFull
from spark_jobs.storage.spark_files import computes_here, rows_in_files

if TYPE_CHECKING:
    from spark_jobs.layers.accepted_query import AcceptedQuery

Query = TypeVar("Query")
MOST_QUERIES = 8
"""Queries over superseded versions of reference tables are never used again."""
# A task generates the code of its projections, 20 to 40 ms for a contract: more than it saves for few records.
ROWS_OF_ONE_TASK = 500
MOST_TASKS = 16
"""Files that are read as they are; more are small ones, which are cheaper together."""


class PreparedSilver:
    """The queries of one release in one process: of accepted records, and of records that are validated in full."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        scratch = ScratchFolder(folder)
        self.accepted: PreparedQueries[AcceptedQuery] = PreparedQueries(spark, scratch)
        self.validated: PreparedQueries[PreparedQuery] = PreparedQueries(spark, scratch)


class PreparedQueries(Generic[Query]):
    """Queries by name and by what they are built from (joined frames, schemas), each over the slot of its name."""

    def __init__(self, spark: SparkSession, scratch: ScratchFolder) -> None:
        self._spark, self._scratch = spark, scratch
        self._slots: dict[tuple[str, int], Slot] = {}
        self._queries: dict[tuple[str, int, tuple[Hashable, ...]], Query] = {}

    def over(
        self,
        files: Sequence[Path],
        name: str,
        schema: StructType,
        cache_key: tuple[Hashable, ...],
        build: Callable[[DataFrame], Query],
    ) -> Query | None:
        """Return the query `name` over these files, whose columns are `schema`; `build` makes it of their rows.

        None when they have too many rows for a slot, or tasks run on other hosts: these may have an older slot cached.
        """
        if not computes_here(self._spark):
            return None
        tasks = self._tasks(files)
        if (name, tasks) not in self._slots:
            folder = self._scratch.path / "silver" / f"{name}-{tasks}"
            self._slots[name, tasks] = Slot(self._spark, folder, schema, tasks)
        slot, key = self._slots[name, tasks], (name, tasks, cache_key)
        try:
            slot.fill_from(files)
        except SlotFull:
            return None
        if key not in self._queries:
            if len(self._queries) >= MOST_QUERIES:
                self._queries.clear()
            self._queries[key] = build(slot.rows)
        return self._queries[key]

    def _tasks(self, files: Sequence[Path]) -> int:
        """Return how many tasks, and files of a slot, the records get: as many as they have files, if each core has one
        then.
        """
        cores = int(self._spark.sparkContext.defaultParallelism)
        if rows_in_files(files) <= ROWS_OF_ONE_TASK:
            return 1
        return len(files) if cores <= len(files) <= MOST_TASKS else cores
