"""The queries by which one process validates a release's records, built once and executed over other files (adr-0013).

Not for records with decisions, runs over several versions of reference tables, or files that no slot takes: these
queries are built for the run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.tables.prepared_query import PreparedQuery, RowProjection, ScratchFolder, Slot, SlotFull, row_projection
from spark_jobs.tables.spark_files import computes_here, rows_in_files

if TYPE_CHECKING:
    from spark_jobs.layers.validate_records import AcceptedQuery

Query = TypeVar("Query")
Build = Callable[[DataFrame], DataFrame]
CacheKey = tuple[Hashable, ...]
Projecting = Future[RowProjection | None]
Begun = Mapping[CacheKey, Projecting]
PROJECTIONS = "projections"
MOST_QUERIES = 8
"""Queries over superseded versions of reference tables are never used again."""
# A task generates the code of its projections, 20 to 40 ms for a contract: more than it saves for few records.
ROWS_OF_ONE_TASK = 500
MOST_TASKS = 16
"""Up to this many files are copied, each for a task; the rows of more files are divided among the cores."""
MOST_SLOTS = 4
"""One for each query and number of files; the one that was used least recently is deleted."""


class PreparedSilver:
    """The queries of one release in one process: of accepted records, and of records that are validated in full."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._scratch = spark, ScratchFolder(folder)
        self.accepted: PreparedQueries[AcceptedQuery] = PreparedQueries(spark, self._scratch, copying=True)
        # Their result comes through memory, so their rows must be of bounded size.
        self.validated: PreparedQueries[PreparedQuery] = PreparedQueries(spark, self._scratch, copying=False)
        self._projections: dict[CacheKey, RowProjection | None] = {}
        self._begun: dict[CacheKey, Projecting] = {}

    def expect(self, begun: Begun) -> None:
        """Use these projections, which are being built (`begin_projection`). No other object may use them."""
        self._begun.update(begun)

    def projection(self, schema: StructType, cache_key: CacheKey, build: Build) -> RowProjection | None:
        """Return what `build` makes of rows of a schema, as a projection; None if it is none (adr-0017).

        Waits for one that is being built.
        """
        if begun := self._begun.pop(cache_key, None):
            # What failed is built again, so that the run reports its error.
            with suppress(Exception):
                self._projections[cache_key] = begun.result()
        if cache_key not in self._projections:
            if len(self._projections) >= MOST_QUERIES:
                self._projections.clear()
            folder = self._scratch.path / PROJECTIONS
            self._projections[cache_key] = row_projection(self._spark, schema, build, folder)
        return self._projections[cache_key]


def begin_projection(spark: SparkSession, schema: StructType, build: Build, scratch: ScratchFolder) -> Projecting:
    """Begin to build in a thread what `PreparedSilver.projection` returns; return its future.

    A process that ends meanwhile waits for it.
    """
    pool = ThreadPoolExecutor(1, "projection")
    building = pool.submit(lambda: row_projection(spark, schema, build, scratch.path / PROJECTIONS))
    pool.shutdown(wait=False)
    return building


class PreparedQueries(Generic[Query]):
    """Queries by name and by what they are built from (joined frames, schemas), each over a slot of its name.

    `copying`: a slot may have any number of rows, in files that are copied.
    """

    def __init__(self, spark: SparkSession, scratch: ScratchFolder, *, copying: bool) -> None:
        self._spark, self._scratch, self._copying = spark, scratch, copying
        self._slots: dict[tuple[str, int], Slot] = {}
        self._queries: dict[tuple[str, int, CacheKey], Query] = {}

    def over(
        self,
        files: Sequence[Path],
        name: str,
        schema: StructType,
        cache_key: CacheKey,
        build: Callable[[DataFrame], Query],
    ) -> Query | None:
        """Return the query `name` over these files, whose columns are `schema`; `build` makes it of their rows.

        None when they have too many rows for a slot, or tasks run on other hosts: these may have an older slot cached.
        """
        if not computes_here(self._spark):
            return None
        tasks = self._tasks(files)
        slot, key = self._slot(name, tasks, schema), (name, tasks, cache_key)
        try:
            slot.fill_from(files, copied=self._copying)
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
        cores, rows = int(self._spark.sparkContext.defaultParallelism), rows_in_files(files)
        if rows <= ROWS_OF_ONE_TASK:
            return 1
        is_copied = self._copying and cores <= len(files) <= MOST_TASKS and rows > ROWS_OF_ONE_TASK * len(files)
        return len(files) if is_copied else cores

    def _slot(self, name: str, tasks: int, schema: StructType) -> Slot:
        """Return the slot, made now if there is none; the one that was used least recently is given up for it."""
        slot = self._slots.pop((name, tasks), None)
        if slot is None:
            if len(self._slots) >= MOST_SLOTS:
                oldest = next(iter(self._slots))
                self._queries = {key: query for key, query in self._queries.items() if key[:2] != oldest}
                self._slots.pop(oldest).remove()
            slot = Slot(self._spark, self._scratch.path / "silver" / f"{name}-{tasks}", schema, tasks)
        self._slots[name, tasks] = slot
        return slot
