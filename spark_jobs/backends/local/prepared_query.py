"""Spark queries that are built and planned once, and executed again and again over other rows (layers/adr-0013).

A *slot* is the input of such a query: files whose names and sizes never change, so that Spark lists them and plans
tasks for them once. The result is saved as files, or returned through memory if the rows are of bounded size.
A *projection* computes each row from one row: this process executes it over few rows without a Spark job, which would
take 70 ms for one row (layers/adr-0017).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from enum import Enum, auto
from functools import cached_property, reduce
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from include.ground.durable_files import new_process_folder
from spark_jobs.backends.local.arrow_files import rows_in_files, write_arrow
from spark_jobs.tables.data_files import write_files

SCAN = "FileSourceScanExec"
CONSTANTS = frozenset({"LocalTableScanExec", "RDDScanExec", "RangeExec", "OneRowRelationExec"})
"""Leaves with the same rows in each execution, such as a reference table's."""
KNOWN_LEAVES = frozenset({SCAN, *CONSTANTS, "ReusedExchangeExec", "ReusedSubqueryExec"})
"""Leaves that read no column of a file, except a scan; what is reused is in the plan once more."""
STATELESS = frozenset(
    {
        *(SCAN, "ColumnarToRowExec", "InputAdapter", "WholeStageCodegenExec", "CoalesceExec"),
        *("ProjectExec", "FilterExec", "GenerateExec", "ExpandExec", "UnionExec", "CollectMetricsExec"),
        *("BatchEvalPythonExec", "ArrowEvalPythonExec", "BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec"),
        *("SortExec", "WindowExec", "WindowGroupLimitExec"),
        *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"),
    }
)
"""Operators that keep nothing of their input."""


class Rows(Enum):
    """What an operator returns when its plan is executed again."""

    CONSTANT = auto()
    """The same rows, whatever the files have."""
    FRESH = auto()
    """The rows of the files as they are."""
    KEPT = auto()
    """Perhaps the rows of the first execution."""


def is_repeatable(query: DataFrame) -> bool:
    """Whether another execution of a frame's physical plan reads its files again, and no operator returns kept rows."""
    plan = query._jdf.queryExecution().executedPlan()
    return plan.subqueriesAll().size() == 0 and _rows(plan) is not Rows.KEPT


def scanned_columns(query: DataFrame) -> frozenset[str] | None:
    """Return the names of the columns that the execution of a frame reads from files, also in its subqueries.

    None when that is unknown: adaptive execution hides its plan in a leaf.
    """
    plan = query._jdf.queryExecution().executedPlan()
    leaves = [leaf for each in (plan, *_all(plan.subqueriesAll())) for leaf in _all(each.collectLeaves())]
    if not all(_name(leaf) in KNOWN_LEAVES for leaf in leaves):
        return None
    scans = [leaf for leaf in leaves if _name(leaf) == SCAN]
    return frozenset(name for scan in scans for name in scan.requiredSchema().fieldNames())


def _rows(node: Any) -> Rows:
    """Return what an operator returns. Each is visited once: a visit is several calls into the JVM."""
    name = _name(node)
    below = [_rows(child) for child in _children(node, name)]
    if all(rows is Rows.CONSTANT for rows in below) and (below or name in CONSTANTS):
        return Rows.CONSTANT
    return Rows.FRESH if name in STATELESS and Rows.KEPT not in below else Rows.KEPT


def _children(node: Any, name: str) -> Iterator[Any]:
    if name == "ReusedExchangeExec":
        yield node.child()
        return
    yield from _all(node.children())


def _all(sequence: Any) -> Iterator[Any]:
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


SLOT_BYTES = 48 << 20
"""The greatest size of the rows as Arrow that this process divides among a slot's files."""
# Below spark.sql.files.maxPartitionBytes, so that one task reads a file.
FILE_BYTES = 2 * SLOT_BYTES
READ_BATCH_ROWS = 4_096
# A file that is read once: a dictionary or compression would cost more than it saves.
UNCOMPRESSED = {"compression": "none", "use_dictionary": False}
SPARK_WRITING = {
    # With version 2 a failed job would leave the files of its completed tasks, whose records are written again.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.page.write-checksum.enabled": "false",
    "parquet.size.statistics.enabled": "false",
}
FOOTER_LENGTH_AND_MAGIC = 8


class ScratchFolder:
    """A folder below `parent` for the files of this process alone, made at first use, removed at exit."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @cached_property
    def path(self) -> Path:
        """The folder, created at first access; folders of dead processes are deleted then."""
        return new_process_folder(self._parent)


class SlotFull(Exception):
    """The rows are too many for a slot: the caller builds a query for this run."""


class Slot:
    """The rows that a prepared query reads, of a `schema`: one file for each of `tasks`; `rows` is their frame.

    With one task, a query that groups or sorts needs no shuffle, so that its plan is repeatable.
    """

    def __init__(self, spark: SparkSession, folder: Path, schema: StructType, tasks: int) -> None:
        # It may be left by an attempt for which the disk was full.
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._files = [folder / f"{number}.parquet" for number in range(tasks)]
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self.fill(self._schema.empty_table())
        rows = spark.read.schema(schema).parquet(str(folder))
        self.rows = rows.coalesce(1) if tasks == 1 else rows

    @property
    def names(self) -> list[str]:
        return list(self._schema.names)

    def fill(self, rows: pa.Table) -> None:
        """Exchange the rows, all columns or those that the query reads. SlotFull: the slot is not to be read then."""
        if rows.nbytes > SLOT_BYTES:
            raise SlotFull
        each = -(-len(rows) // len(self._files))
        for number, file in enumerate(self._files):
            _write_padded(rows.slice(number * each, each), file)

    def fill_from(self, files: Sequence[Path], *, copied: bool = False) -> None:
        """Exchange the rows for those of Parquet files. Raises SlotFull as soon as they exceed SLOT_BYTES.

        With `copied`, files that are as many as the slot's are taken as they are, however many rows they have: not for
        a query whose result comes through memory.
        """
        if copied and len(files) == len(self._files) and all(file.stat().st_size <= FILE_BYTES for file in files):
            for file, target in zip(files, self._files, strict=True):
                _copy_padded(file, target)
            return
        if sum(uncompressed_bytes(file) for file in files) > SLOT_BYTES:
            raise SlotFull
        parts, size = [self._schema.empty_table()], 0
        for part in self._parts(files):
            parts.append(part)
            size += part.nbytes
            if size > SLOT_BYTES:
                raise SlotFull
        self.fill(pa.concat_tables(parts))

    def remove(self) -> None:
        """Delete the files; the slot's queries must not be executed any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _parts(self, files: Sequence[Path]) -> Iterator[pa.Table]:
        names = self._schema.names
        for file in files:
            with pq.ParquetFile(file) as source:
                for batch in source.iter_batches(READ_BATCH_ROWS, columns=names):
                    yield pa.Table.from_batches([batch]).select(names).cast(self._schema)


class PreparedQuery:
    """A query over slots. Its physical plan is executed again if that is safe; else each execution plans anew."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    @cached_property
    def _is_repeatable(self) -> bool:
        return is_repeatable(self._frame)

    @cached_property
    def scanned_columns(self) -> frozenset[str] | None:
        """The columns that an execution reads from files; None when that is unknown."""
        return scanned_columns(self._frame)

    def _current(self) -> DataFrame:
        """Return the frame to execute over what the slots have now."""
        return self._frame if self._is_repeatable else self._frame.select("*")

    def result(self) -> pa.Table:
        """Execute the query; return its rows, in memory."""
        return self._current().toArrow()

    def save(self, folder: Path) -> None:
        """Execute the query; add its rows to a folder that Spark does not read."""
        write_arrow(self._current(), folder)

    def save_by(self, column: str, folder: Path) -> None:
        """Execute the query; add its rows as Parquet to a folder for each value of `column` below `folder`."""
        save_by(self.result(), column, folder)


class QueryOfOneRun(PreparedQuery):
    """A query that is built for one run, over any number of rows, and executed once."""

    def _current(self) -> DataFrame:
        return self._frame

    def save_by(self, column: str, folder: Path) -> None:
        write_files(self._frame, folder, "append", column, SPARK_WRITING)


def save_by(rows: pa.Table, column: str, folder: Path) -> None:
    """Add rows as Parquet to a folder for each value of `column` below `folder`."""
    form = ds.ParquetFileFormat()
    ds.write_dataset(
        rows,
        folder,
        format=form,
        file_options=form.make_write_options(**UNCOMPRESSED),
        partitioning=[column],
        partitioning_flavor="hive",
        basename_template=f"{uuid4().hex}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
    )


def _write_padded(rows: pa.Table, file: Path) -> None:
    """Write rows as a Parquet file of FILE_BYTES, sparse where the storage can.

    A reader finds the footer from the end and the row groups from the beginning, so there may be a gap between them.
    """
    buffer = BytesIO()
    pq.write_table(rows, buffer, write_statistics=False, **UNCOMPRESSED)
    content = buffer.getbuffer()
    if len(content) > FILE_BYTES:
        raise SlotFull
    _exchange(file, content)


def _copy_padded(source: Path, file: Path) -> None:
    """Copy a Parquet file of at most FILE_BYTES, with the gap of `_write_padded`."""
    # The view is released also on an error, which an open one would hide behind an error of its own.
    with (
        source.open("rb") as opened,
        mmap(opened.fileno(), 0, access=ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        _exchange(file, content)


def _exchange(file: Path, content: memoryview) -> None:
    """Replace a slot's file by the content of a Parquet file with a gap before its footer."""
    footer = int.from_bytes(content[-FOOTER_LENGTH_AND_MAGIC:-4], "little") + FOOTER_LENGTH_AND_MAGIC
    new = file.with_suffix(".new")
    try:
        with new.open("wb") as opened, content[:-footer] as rows, content[-footer:] as end:
            opened.write(rows)
            opened.seek(FILE_BYTES - footer)
            opened.write(end)
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)


def uncompressed_bytes(file: Path) -> int:
    """Return the bytes of a file's rows before compression, from its footer: as Arrow they are as many, or more."""
    footer = pq.read_metadata(file)
    return sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))


BATCH_ROWS = 1_024


class RowProjection:
    """The rows that a query makes of others; used by one thread at a time.

    Spark's own iterators read the rows, apply the projections, whose code is generated once, and write the results:
    without a job, whose closures hold whole expressions.
    """

    def __init__(self, spark: SparkSession, given: StructType, steps: Sequence[Any], returned: StructType) -> None:
        self._spark, self._steps = spark, steps
        self._given = to_arrow_schema(given, timezone="UTC")
        self._returned = to_arrow_schema(returned, timezone="UTC")
        self._schema = spark._jsparkSession.parseDataType(returned.json())

    def of(self, rows: pa.Table) -> pa.Table:
        """Return what the query returns for these rows, in their order."""
        _activate(self._spark)
        arrow = getattr(getattr(_java(self._spark).execution.arrow, "ArrowConverters$"), "MODULE$")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._given) as stream:
            stream.write_table(rows.select(self._given.names).cast(self._given), BATCH_ROWS)
        with closing(arrow.fromIPCStream(bytearray(sink.getvalue()))._1()) as read:
            made = reduce(lambda found, step: found.map(step), self._steps, read)
            with closing(arrow.toBatchIterator(made, self._schema, BATCH_ROWS, "UTC", True, False, None)) as written:
                batches = list[pa.RecordBatch]()
                while written.hasNext():
                    batches.append(pa.ipc.read_record_batch(pa.py_buffer(written.next()), self._returned))
        return pa.Table.from_batches(batches, self._returned)


def row_projection(
    spark: SparkSession, schema: StructType, query: Callable[[DataFrame], DataFrame]
) -> RowProjection | None:
    """Return the projection that `query` makes of rows of a schema; None if it does anything else, or calls Python."""
    frame = query(spark.createDataFrame(spark.sparkContext.emptyRDD(), schema))
    plan, projects = frame._jdf.queryExecution().optimizedPlan(), list[Any]()
    while _name(plan) == "Project" and plan.deterministic() and plan.subqueries().size() == 0:
        projects.insert(0, plan)
        plan = plan.child()
    if _name(plan) != "LogicalRDD":
        return None
    _activate(spark)
    unsafe = _java(spark).catalyst.expressions.UnsafeProjection
    # py4j cannot call a generated class, since all have one name; only what is not deterministic needs `initialize`.
    steps = [unsafe.create(project.projectList(), project.child().output()) for project in projects]
    return RowProjection(spark, schema, steps, frame.schema)


def _activate(spark: SparkSession) -> None:
    """Have expressions that are evaluated in this thread find their session."""
    _java(spark).SparkSession.setActiveSession(spark._jsparkSession)


def _java(spark: SparkSession) -> Any:
    java: Any = spark._jvm
    return java.org.apache.spark.sql


if TYPE_CHECKING:
    from spark_jobs.backends.local.validation import AcceptedQuery

Query = TypeVar("Query")
Build = Callable[[DataFrame], DataFrame]
CacheKey = tuple[Hashable, ...]
Projecting = Future[RowProjection | None]
Begun = Mapping[CacheKey, Projecting]
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
        """Return what `build` makes of rows as a projection, once it is built; None if it is none (adr-0017)."""
        if begun := self._begun.pop(cache_key, None):
            # What failed is built again, so that the run reports its error.
            with suppress(Exception):
                self._projections[cache_key] = begun.result()
        if cache_key not in self._projections:
            if len(self._projections) >= MOST_QUERIES:
                self._projections.clear()
            self._projections[cache_key] = row_projection(self._spark, schema, build)
        return self._projections[cache_key]


def begin_projection(spark: SparkSession, schema: StructType, build: Build) -> Projecting:
    """Return the future of `PreparedSilver.projection`, built in a thread, for which a process that ends waits."""
    pool = ThreadPoolExecutor(1, "projection")
    building = pool.submit(row_projection, spark, schema, build)
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
        """Return query `name` over files with columns `schema`, built of their rows; None: too many for a slot."""
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
        """Return how many tasks and files of a slot there are: as many as the records' files, if each core has one."""
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
