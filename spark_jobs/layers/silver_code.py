"""The code of a release: its `silver.py` loaded and called, and its gold expressions checked against silver's columns.

Errors in it are `DeclarationRefused`, with the release's file, the line and the key.

Valid records on which `silver.py` fails are found by bisection and rejected (adr-0008): each record is written by one
successful Spark job, or rejected after it failed alone, never for an error of the machine. A failing record among n
costs about 2 · log2(n) jobs.
"""

from __future__ import annotations

import builtins
import importlib.util
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, IntegralType, NullType, NumericType, StructType, TimestampType

from include.declare.children import BAD_CHILDREN
from include.declare.dataset import Dataset
from include.declare.gold import Gold
from include.declare.yaml_declarations import DeclarationRefused, Document, Key, Problem
from include.ground.errors import Terminal, mask_secrets
from include.ground.record_coordinates import COORDINATES
from include.ground.settings import Settings
from spark_jobs.layers.gold_measures import gold_measures
from spark_jobs.layers.gold_rows import gold_rows, source_rows
from spark_jobs.layers.gold_windows import windowed
from spark_jobs.tables.data_files import no_rows
from spark_jobs.tables.delta_table import nullable_columns

Transformation = Callable[..., DataFrame]
"""`silver(accepted, **reference)`: accepted records, and each declared reference table by its name.

It makes one row of each record, independently of the others: duplicates of an identity are found afterwards.
"""
COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
JOB_GROUP = "spark.jobGroup.id"
LINE_IN_SQL = re.compile(r"\(?line (\d+), pos")
DIFFERS = "uses random numbers or the current time, so a replay would give other rows; use _timestamp"
FROZEN = "count(), first(), collect(), cache() and checkpoint() would keep the rows of the first run"
# Errors of the dataset's code. Not here: those of Spark or the machine (a dead JVM, a full disk).
FAULTS_OF_CODE = (
    *(SyntaxError, ImportError, AttributeError, NameError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AssertionError, NotImplementedError, AnalysisException),
)


class SourceLoader(SourceFileLoader):
    """Compiles a module from its source: byte code in `__pycache__` is outside the release's content hash."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_transformation(dataset: Dataset) -> Transformation:
    """Return the function `silver` of a release's `silver.py`; it raises DeclarationRefused, as this does."""
    path = dataset.folder / "silver.py"
    name = f"{dataset.name}_{dataset.release}_silver"
    spec = importlib.util.spec_from_file_location(name, path, loader=SourceLoader(name, str(path)))
    if spec is None or spec.loader is None or not path.is_file():
        raise refused(path, 1, "is missing")
    module = importlib.util.module_from_spec(spec)
    with faults_of(path):
        spec.loader.exec_module(module)
    function: Any = getattr(module, "silver", None)
    if not callable(function):
        raise refused(path, 1, "must define a function silver(accepted: DataFrame, …) -> DataFrame")

    def silver(accepted: DataFrame, **reference: DataFrame) -> DataFrame:
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        with faults_of(path), executed_jobs(accepted.sparkSession) as jobs:
            rows = function(accepted, **reference)
        if jobs:
            raise refused(path, line, f"silver() executes a query; {FROZEN}")
        if not isinstance(rows, DataFrame):
            raise refused(path, line, f"silver() must return a DataFrame, returned {type(rows).__name__}")
        return rows

    return silver


def validate_code(settings: Settings, dataset: Dataset, silver: DataFrame) -> dict[str, StructType]:
    """Return the columns of each gold table by its name, as Spark computes them from silver's files.

    `silver` is what `silver.py` makes of any accepted records; nothing is computed or written. Raises
    DeclarationRefused unless silver's columns can be stored and the gold tables can be computed from them.
    """
    problems, columns = list(_column_problems(dataset, silver)), dict[str, StructType]()
    if not problems:
        pipeline, stored = Document(dataset.folder / "pipeline.yaml", strict=False), _stored(silver)
        for gold in dataset.pipeline.gold:
            found = _gold_columns(pipeline, gold, stored)
            if isinstance(found, StructType):
                columns[gold.name] = found
            else:
                problems += found
    if problems:
        raise code_refused(settings, dataset, problems)
    return columns


def code_refused(settings: Settings, dataset: Dataset, problems: Iterable[Problem]) -> DeclarationRefused:
    """Return the refusal of a release's files; people correct those of the dataset's folder."""
    remedy = f"correct {settings.datasets / dataset.name}; headrace contract check --dataset {dataset.name}"
    return DeclarationRefused(problems, f"release {dataset.release} of {dataset.name} was not opened", remedy)


def _stored(silver: DataFrame) -> DataFrame:
    """Return no rows, with the columns that gold reads from silver's files."""
    fields = (silver.schema[name] for name in stored_columns(silver))
    return no_rows(silver.sparkSession, nullable_columns(fields))


def stored_columns(silver: DataFrame) -> list[str]:
    """Return the names of silver's columns as the table has them: the coordinates after the others, then the structs.

    delta-rs 1.6.6 reads no bounds of columns that follow a struct.
    """
    structs = [field.name for field in silver.schema.fields if isinstance(field.dataType, StructType)]
    others = [name for name in silver.columns if name not in (*COORDINATES, *structs)]
    return [*others, *COORDINATES, *structs]


@contextmanager
def executed_jobs(spark: SparkSession) -> Iterator[list[int]]:
    """Yield a list that has, afterwards, the numbers of the jobs that this thread has started meanwhile."""
    context, jobs, group = spark.sparkContext, list[int](), uuid4().hex
    outer = context.getLocalProperty(JOB_GROUP)
    context.setLocalProperty(JOB_GROUP, group)
    try:
        yield jobs
    finally:
        context._jsc.setLocalProperty(JOB_GROUP, outer)
        # Spark's listeners learn of a job at some later time.
        context._jsc.sc().listenerBus().waitUntilEmpty()
        jobs += context.statusTracker().getJobIdsForGroup(group)


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Raise DeclarationRefused, with the file's own line, for an error that its code raises."""
    try:
        yield
    except FAULTS_OF_CODE as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines.append(error.lineno)
        why = str(error).partition("\n")[0]
        raise refused(path, next((n for n in reversed(lines) if n), 1), f"{type(error).__name__}: {why}") from error


def refused(path: Path, line: int, why: str) -> DeclarationRefused:
    """Return the refusal of a line of code."""
    remedy = f"correct {path.name} in the dataset's folder; headrace contract check"
    return DeclarationRefused([Problem(path, line, "", why)], remedy=remedy)


def _column_problems(dataset: Dataset, silver: DataFrame) -> Iterator[Problem]:
    path, pipeline = dataset.folder / "silver.py", dataset.pipeline
    line = _line_of_silver(path)
    own = {"_topic", "_partition", "_offset", "_timestamp", "_batch_id", BAD_CHILDREN}
    needed = {*COORDINATES, *pipeline.time_columns, *pipeline.identity, *pipeline.silver_columns}
    for name in sorted(needed - set(silver.columns)):
        yield Problem(path, line, name, "silver() must return this column")
    names: dict[str, str] = {}
    for field in silver.schema.fields:
        other = names.setdefault(field.name.lower(), field.name)
        if other != field.name:
            yield Problem(path, line, field.name, f"differs from {other} by case alone")
        if field.name not in own and not COLUMN.fullmatch(field.name):
            why = "a column of silver must be letters, digits and _, and begin with a letter"
            yield Problem(path, line, field.name, why)
        if field.name in pipeline.time_columns and not isinstance(field.dataType, TimestampType):
            yield Problem(path, line, field.name, f"must be a timestamp, is {field.dataType.simpleString()}")
        if isinstance(field.dataType, NullType):
            yield Problem(path, line, field.name, "has no type: cast the null, as in F.lit(None).cast('string')")
    for name in sorted({name for name in silver.columns if silver.columns.count(name) > 1}):
        yield Problem(path, line, name, "silver() returns this column twice")
    if differs_each_time(silver):
        yield Problem(path, line, "", f"silver() {DIFFERS}")
    if not reads_its_records(silver):
        silver.sparkSession.catalog.clearCache()
        yield Problem(path, line, "", f"silver() must return a query over its records; {FROZEN}")


def differs_each_time(rows: DataFrame) -> bool:
    """Whether a query gives other rows when it is executed again: it uses random numbers or the current time."""
    plan, jvm = rows._jdf.queryExecution().analyzed(), rows.sparkSession._jvm
    assert jvm is not None
    current = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return not plan.deterministic() or bool(plan.containsPattern(current))


def reads_its_records(silver: DataFrame) -> bool:
    """Whether rows that were made of `validated_nothing`, which is a range, are still a query over it."""
    leaves = silver._jdf.queryExecution().withCachedData().collectLeaves()
    return any(leaves.apply(number).nodeName() == "Range" for number in range(leaves.size()))


def _line_of_silver(path: Path) -> int:
    lines = path.read_text("utf-8").splitlines()
    return next((n for n, line in enumerate(lines, 1) if line.startswith("def silver")), 1)


def _gold_columns(pipeline: Document, gold: Gold, records: DataFrame) -> StructType | list[Problem]:
    """Return the columns of a gold table, or the expressions that Spark cannot resolve over the rows of `records`."""
    path: Key = ("gold", gold.name)
    window, session = gold.window, gold.session
    silver = source_rows(gold.over, records)
    if window is not None and window.name.lower() in map(str.lower, silver.columns):
        why = f"{window.name!r} is already a column of silver; give the window a name of its own"
        return [pipeline.problem((*path, "window", "as"), why)]
    rows = _analysed(lambda: windowed(window, silver))
    if isinstance(rows, AnalysisException):
        return [pipeline.problem((*path, "window", "column"), _first_line(rows))]
    if session is not None and (error := _analysis_error(lambda: silver.select(F.unix_micros(session.column)))):
        return [pipeline.problem((*path, "session", "column"), error)]
    if found := list(_expression_problems(pipeline, gold, rows)):
        return found
    computed = _analysed(lambda: gold_rows(gold).computed(records, 0))
    if named := pipeline.value["gold"].get(gold.name, {}).get(gold.query_key):
        found = list(_query_problems(pipeline.path.parent / str(named), gold, computed))
    elif isinstance(computed, AnalysisException):
        found = [pipeline.problem(path, _first_line(computed))]
    else:
        found = [*_inexact_sums(pipeline, gold, computed), *_not_numbers(pipeline, gold, rows)]
    if found or isinstance(computed, AnalysisException):
        return found
    why = _problem(computed, [gold.partition_expression])
    return [pipeline.problem((*path, "partition"), why)] if why else computed.schema


def _expression_problems(pipeline: Document, gold: Gold, rows: DataFrame) -> Iterator[Problem]:
    """Yield what is wrong with expressions over silver's rows: each alone only if not all together are right."""
    named = list(gold.expressions())
    if not _problem(rows, [expression for _, expression in named]):
        return
    for key, expression in named:
        if why := _problem(rows, [expression]):
            yield pipeline.problem(("gold", gold.name, *key), why)


def _problem(rows: DataFrame, expressions: Sequence[str]) -> str:
    """Return what is wrong with one of the expressions, "" for nothing."""
    # Without names of their own, one expression could use the alias of another.
    selected = _analysed(lambda: rows.select(*(F.expr(sql).alias(f"_{n}") for n, sql in enumerate(expressions))))
    if isinstance(selected, AnalysisException):
        return _first_line(selected)
    return DIFFERS if differs_each_time(selected) else ""


def _inexact_sums(pipeline: Document, gold: Gold, rows: DataFrame) -> Iterator[Problem]:
    """Yield the measures that add up doubles: the last digits depend on the order of the rows, so no rebuild agrees."""
    for each in gold_measures(gold.measures):
        if each.added_up and isinstance(rows.schema[each.added_up].dataType, DoubleType):
            measure = each.measure
            why = f"adds up doubles; write cast({measure.expression} as decimal(p, s)), whose sum is exact in any order"
            yield pipeline.problem(("gold", gold.name, "measures", measure.name, measure.function), why)


def _not_numbers(pipeline: Document, gold: Gold, rows: DataFrame) -> Iterator[Problem]:
    """Yield the quantiles and histograms of what is not a number, and weights that are not integers."""
    for each in gold_measures(gold.silver_measures):
        measure = each.measure
        key = ("gold", gold.name, "measures", measure.name, measure.function)
        if each.of_numbers:
            kind = rows.select(F.expr(measure.expression)).schema[0].dataType
            if not isinstance(kind, NumericType):
                yield pipeline.problem((*key, "value"), f"must be a number, is {kind.simpleString()}")
        if measure.weight:
            kind = rows.select(F.expr(measure.weight)).schema[0].dataType
            if not isinstance(kind, IntegralType):
                why = f"must be an integer, whose sum is exact, is {kind.simpleString()}; as in cast(x * 100 as bigint)"
                yield pipeline.problem((*key, "weight"), why)


def _query_problems(file: Path, gold: Gold, found: DataFrame | AnalysisException) -> Iterator[Problem]:
    """Yield what is wrong with a query: its text, or columns that do not begin with those of the grain."""
    if isinstance(found, AnalysisException):
        line = LINE_IN_SQL.search(str(found))
        yield Problem(file, int(line[1]) if line else 1, "", _first_line(found))
        return
    if differs_each_time(found):
        yield Problem(file, 1, "", DIFFERS)
    grain, columns = list(gold.grain_columns), found.columns
    if columns[: len(grain)] != grain:
        why = f"the query's columns must begin with {', '.join(grain)}, are {', '.join(columns[: len(grain)])}"
        yield Problem(file, 1, "", why)


def _analysis_error(query: Callable[[], DataFrame]) -> str:
    analysed = _analysed(query)
    return _first_line(analysed) if isinstance(analysed, AnalysisException) else ""


def _analysed(query: Callable[[], DataFrame]) -> DataFrame | AnalysisException:
    """Return a query's frame, or what Spark says against it."""
    try:
        rows = query()
        _ = rows.schema
    except AnalysisException as error:
        return error
    return rows


def _first_line(error: AnalysisException) -> str:
    return str(error).strip().partition("\n")[0]


TRANSFORM_ERROR = "transform_error"
FailedRecord = tuple[int, int, str]
"""Partition, offset, and the error's text."""
Rows = TypeVar("Rows")
MOST_TOLERATED = 100
ALWAYS_TOLERATED = 10
"""Failing records of a bronze batch, however small it is: on a quiet topic one bad record is a batch."""
MOST_CHARACTERS = 300
TRACEBACK = "Traceback (most recent call last):\n"
# Classes in the JVM that report a value which an expression or a Python function cannot take.
RECORD_ERRORS = re.compile(
    r"org\.apache\.spark\.Spark(Arithmetic|ArrayIndexOutOfBounds|DateTime|IllegalArgument|NoSuchElement|NumberFormat|"
    r"Runtime)Exception"
    r"|org\.apache\.spark\.(api\.python\.PythonException|SparkException: \[MALFORMED_RECORD_IN_PARSING)"
    r"|java\.lang\.(Arithmetic|ClassCast|IllegalArgument|\w*IndexOutOfBounds|NullPointer|NumberFormat)Exception"
    r"|java\.time\.|java\.util\.NoSuchElementException"
)
# Raised by a Python function, but not because of a record.
MACHINE_ERRORS = (OSError, MemoryError, ImportError)
# PySpark's own, on a host of a cluster with another Python than the driver's.
OTHER_PYTHON = "[PYTHON_VERSION_MISMATCH]"
PACKAGES = re.compile(r"^(?:[a-z]\w*\.)+")
# The address of an object would make two validations of one record differ.
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")


class TransformationFailed(Terminal):
    """`silver.py` fails on too many records of a bronze batch. `first`: partition, offset and error of the first."""

    def __init__(self, dataset: str, batch: int, failed: int, first: FailedRecord) -> None:
        partition, offset, error = first
        super().__init__(
            f"{dataset}: silver.py fails on {failed} or more records of batch {batch}; nothing was committed."
            f" The first is partition {partition} offset {offset}: {error}",
            f"correct silver.py, then: headrace release run --dataset {dataset}",
        )
        self.dataset, self.batch, self.failed, self.first = dataset, batch, failed, first


def failure_of(write: Callable[[Rows], None], rows: Rows) -> str | None:
    """Write rows; return the text of an error that a record can cause, None after success. Others are raised."""
    try:
        write(rows)
    except Exception as error:
        text = record_error(error)
        if text is None:
            raise
        return text
    return None


def record_error(error: Exception) -> str | None:
    """Return class and first line of an error that a record can cause, masked and bounded; None for any other."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None and not RECORD_ERRORS.match(str(cause.toString())):
        cause = cause.getCause()
    if cause is None:
        return None
    text = str(cause.toString())
    if TRACEBACK in text:
        lines = text.rpartition(TRACEBACK)[2].splitlines()
        text = next(line for line in lines if line and not line.startswith(" "))
        if OTHER_PYTHON in text:
            return None
        raised = getattr(builtins, text.partition(":")[0], None)
        if isinstance(raised, type) and issubclass(raised, MACHINE_ERRORS):
            return None
    line = mask_secrets(PACKAGES.sub("", text.partition("\n")[0]))
    return ADDRESS.sub("0x…", line)[:MOST_CHARACTERS]


def most_tolerated(rows: int) -> int:
    """Return how many of a bronze batch's records may fail: a tenth, but at least 10 and at most 100.

    Stream and rebuilds group records differently, but have the same batches.
    """
    return min(MOST_TOLERATED, max(ALWAYS_TOLERATED, rows // 10))
