"""A run's records decided by executors: validated, turned into rows of silver, each identity once.

Reads: bronze's files of the run; silver's files within the horizon. Both are named by the log as it is now, so a block
that is lost with an executor is computed again from the same rows.
Guarantee: each record is accepted or rejected, or RowsUnaccounted is raised and nothing is committed.
The driver sees counts by partition and reason, and hashes of one run.

Valid records on which `silver.py` fails are found by bisection (layers/adr-0008) and rejected: about 2 · log2(n) Spark
jobs for each of them among n, nothing when there are none.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from include.declare.dataset import Dataset
from include.declare.envelopes import TOMBSTONE
from include.declare.event_times import after, before
from include.ground.record_coordinates import COORDINATES, POSITION, RANK
from spark_jobs.backends.backend import DecisionCounts, Metadata, Transaction, ValidatedFiles
from spark_jobs.backends.spark.figures import figures
from spark_jobs.backends.spark.spark_table import own
from spark_jobs.contract.record_reader import REASONS
from spark_jobs.contract.warning_counts import Counts
from spark_jobs.layers.row_provenance import batch_number
from spark_jobs.layers.run_inputs import validate_with_decisions
from spark_jobs.layers.silver_code import (
    TRANSFORM_ERROR,
    FailedRecord,
    TransformationFailed,
    failure_of,
    most_tolerated,
    record_error,
)
from spark_jobs.layers.silver_tables import (
    REFUSED_AS,
    Inheritance,
    Month,
    RefineRun,
    SilverTables,
    dated,
    first_unexpired_batch,
)
from spark_jobs.tables.data_files import parquet_files, parquet_rows, read_files, write_folder
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.failpoints import Step, pass_step

HELD = StorageLevel.MEMORY_AND_DISK
MOST_BROADCAST = 2_000_000
"""Records of a run whose hashes every executor gets, 16 bytes each; those of a larger run are shuffled."""
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
MARK, TIME = "_mark", "_time"


@dataclass
class SparkRun:
    """The rows of a run, held by executors until `release`."""

    writer: SilverTables
    accepted: DataFrame
    rejected: DataFrame
    counts: DecisionCounts
    held: Sequence[DataFrame] = ()

    def commit_silver(self, transaction: Transaction, metadata: Metadata) -> None:
        own(self.writer.silver).append(self.accepted, transaction, metadata)

    def commit_rejected(self, transaction: Transaction, metadata: Metadata) -> None:
        own(self.writer.rejected).append(self.rejected, transaction, metadata)

    def release(self) -> None:
        """Free the blocks."""
        for frame in self.held:
            frame.unpersist()


@dataclass(frozen=True)
class _Decision:
    """The inputs of a run, and how they are read: by these lengths of the lists of decisions and schemas."""

    writer: SilverTables
    run: RefineRun
    decided_until: int
    schemas_until: int
    is_committed: bool = False
    """Whether silver has the run, and only rejected lacks it."""
    held: list[DataFrame] = field(default_factory=list)

    def hold(self, rows: DataFrame) -> DataFrame:
        self.held.append(rows.persist(HELD))
        return rows

    def release(self) -> None:
        for frame in self.held:
            frame.unpersist()


def decide(writer: SilverTables, run: RefineRun, *, is_committed: bool) -> SparkRun:
    """Return the decided run. Raises RowsUnaccounted, TransformationFailed."""
    inheritance = writer.inheritance
    if inheritance is not None and run.first < inheritance.until:
        return _inherited(writer, inheritance, run)
    facts = writer.silver.commit_of(writer.app_ids["silver"], run.last).facts if is_committed else {}
    paths = [writer.bronze.spec.path / file.path for file in writer.records.batch_files(*run.batches)]
    decided = facts.get("decided_until") if is_committed else writer.decisions.until()
    schemas = facts.get("schemas_until") if is_committed else writer.payloads.learn(paths)
    decision = _Decision(writer, run, int(decided or 0), int(schemas or 0), is_committed)
    try:
        return _decided(decision, decision.hold(_validated(decision)))
    except BaseException:
        decision.release()
        raise


def _validated(decision: _Decision) -> DataFrame:
    writer, run = decision.writer, decision.run
    bronze, files = writer.bronze, writer.records.batch_files(*run.batches)
    texts = writer.payloads.texts([bronze.spec.path / file.path for file in files], decision.schemas_until)
    records = texts.of(bronze.read_batches(writer.spark, files, *run.batches))
    decisions = writer.decisions.for_batches(run.batches, decision.decided_until)
    return validate_with_decisions(writer.validator, records, decisions)


def _decided(decision: _Decision, validated: DataFrame) -> SparkRun:
    writer, run = decision.writer, decision.run
    rows = transformed(writer, run, validated.where(F.size("_reasons") == 0))
    try:
        found = _counted(decision, validated, rows)
    except Exception as error:
        if record_error(error) is None:
            raise
        # Some record makes silver.py fail: those that do are found one by one, and rejected.
        failing = failing_records(writer, validated, partial(transformed, writer, run))
        return _decided(decision, decision.hold(without_failing(validated, failing)))
    duplicates = decision.hold(_duplicates(decision, rows, found))
    count = duplicates.count()
    dataset = writer.dataset
    invalid = refused_rows(dataset, validated.where(F.size("_reasons") > 0))
    if count:
        rows = rows.join(_small(duplicates.select(*POSITION), count), list(POSITION), "left_anti").select(*rows.columns)
        found = replace(found, latest=_latest(writer, rows), accepted=found.accepted - count)
        again = duplicate_rows(dataset, duplicates)
        rejected, reasons = invalid.unionByName(again), {**found.reasons, "duplicate": count}
        dispositions = {**found.dispositions, "duplicate": count}
    else:
        rejected, reasons, dispositions = invalid, dict(found.reasons), dict(found.dispositions)
    counts = DecisionCounts(
        found.rows_in,
        # Of a committed run silver counts; if the records were decided differently now, the counts refuse to add up.
        writer.silver.count_rows(*run.batches) if decision.is_committed else found.accepted,
        found.rows_in - found.accepted,
        reasons,
        dispositions,
        _warnings(writer, validated),
        found.latest,
        decision.decided_until,
        decision.schemas_until,
    )
    return SparkRun(writer, rows, rejected, counts, decision.held)


def transformed(writer: SilverTables, run: RefineRun, accepted: DataFrame) -> DataFrame:
    """Return rows of silver, each batch's joined with the reference tables as its commit names them."""
    records, ranges = accepted.drop("_reasons"), writer.reference.version_ranges(*run.batches)
    parts = [
        writer.transform(
            records if len(ranges) == 1 else records.where(F.col("_batch_id").between(each.first, each.last)),
            **each.frames,
        )
        for each in ranges
    ]
    rows = dated(reduce(DataFrame.unionByName, parts), writer.dataset)
    return rows.select(*writer.silver.spec.schema.fieldNames())


@dataclass(frozen=True)
class _Found:
    """What the first look at a run's records says; `bounds`: least and greatest event time, in microseconds."""

    rows_in: int
    accepted: int
    reasons: Mapping[str, int]
    dispositions: Mapping[str, int]
    latest: Mapping[str, datetime]
    bounds: tuple[int, int] | None


def _counted(decision: _Decision, validated: DataFrame, rows: DataFrame) -> _Found:
    """Count records by reason and rows by partition; raises RowsUnaccounted unless each valid record is one row."""
    writer, run = decision.writer, decision.run
    place, none = F.xxhash64(*POSITION), F.array().cast("array<string>")
    whole = F.xxhash64(*map(_hashable, rows.schema.fields))
    # The hash of a row has all its columns computed: silver.py fails here on a record, not while its rows are written.
    time = F.unix_micros(writer.dataset.pipeline.event_time).alias(TIME)
    made = rows.select("_partition", none.alias("_rules"), time, whole.alias("_row"), place.alias("_place"))
    rules, nothing = F.array_distinct(F.transform("_reasons", lambda reason: reason["rule"])), F.lit(None).cast("long")
    records = validated.select(
        "_partition", rules.alias("_rules"), nothing.alias(TIME), nothing.alias("_row"), place.alias("_place")
    )
    both = made.withColumn("_made", F.lit(True)).unionByName(records.withColumn("_made", F.lit(False)))
    sums = both.groupBy("_made", "_partition", "_rules").agg(
        F.count(F.lit(1)).alias("rows"),
        F.bit_xor("_place").alias("places"),
        F.min(F.coalesce(TIME, F.lit(0).cast("long"))).alias("low"),
        F.max(TIME).alias("high"),
        F.max("_row"),
    )
    groups = figures(sums)
    made_of = [group for group in groups if group["_made"]]
    valid = [group for group in groups if not group["_made"] and not group["_rules"]]
    rows_in = sum(group["rows"] for group in groups if not group["_made"])
    _refuse_unaccounted(writer, run, rows_in, _sums(valid), _sums(made_of))
    reasons: Counter[str] = Counter()
    for group in groups:
        reasons.update({rule: group["rows"] for rule in group["_rules"] if not group["_made"]})
    accepted = sum(group["rows"] for group in made_of)
    tombstones = reasons[TOMBSTONE]
    refused = {TOMBSTONE: tombstones, "invalid": rows_in - accepted - tombstones}
    dispositions = {name: rows for name, rows in refused.items() if rows}
    bounds = (min(group["low"] for group in made_of), max(group["high"] or 0 for group in made_of)) if made_of else None
    return _Found(rows_in, accepted, dict(reasons), dispositions, _latest_of(made_of), bounds)


def _hashable(field: StructField) -> Column:
    """Return a column as one that can be hashed: Spark hashes no map."""
    return F.to_json(field.name) if "map<" in field.dataType.simpleString() else F.col(field.name)


def _sums(groups: Sequence[Any]) -> tuple[int, int]:
    """Return the number of records and a digest of their places."""
    return sum(group["rows"] for group in groups), reduce(lambda a, b: a ^ b, (group["places"] for group in groups), 0)


def _refuse_unaccounted(
    writer: SilverTables, run: RefineRun, rows_in: int, valid: tuple[int, int], made: tuple[int, int]
) -> None:
    expected = writer.records.count_rows(*run.batches)
    if rows_in != expected:
        why = f"bronze has {expected} records, {rows_in} were read"
        raise RowsUnaccounted(writer.silver.spec.name, run.batches, why)
    if valid != made:
        why = f"{valid[0]} records, {made[0]} rows: silver.py must return exactly one row per record"
        raise RowsUnaccounted(writer.silver.spec.name, run.batches, why)


def _time(writer: SilverTables) -> Column:
    """Return the event time in microseconds; a row without one counts as of 1970."""
    return F.coalesce(F.unix_micros(writer.dataset.pipeline.event_time), F.lit(0).cast("long"))


def _duplicates(decision: _Decision, rows: DataFrame, found: _Found) -> DataFrame:
    """Return the coordinates of rows whose identity an earlier row of the run or of silver has, and that row's."""
    writer, identity = decision.writer, list(decision.writer.dataset.pipeline.identity)
    marked = (F.xxhash64(*identity).alias(MARK), _time(writer).alias(TIME))
    columns = list(dict.fromkeys([*identity, *COORDINATES]))
    fresh = rows.select(*columns, *marked)
    marks = fresh.select(F.col(MARK).alias("_fresh_mark"), F.col(TIME).alias("_fresh_time"))
    horizon = writer.dataset.pipeline.horizon // MICROSECOND
    near = F.abs(F.col(TIME) - F.col("_fresh_time")) <= horizon
    known = _known(decision, found).select(*dict.fromkeys([*identity, *RANK]), *marked)
    earlier = known.join(_small(marks, found.accepted), (F.col(MARK) == F.col("_fresh_mark")) & near, "left_semi")
    both = fresh.withColumn("_fresh", F.lit(True)).unionByName(
        earlier.withColumn("_fresh", F.lit(False)), allowMissingColumns=True
    )
    return copies(both, [MARK, *identity])


def copies(both: DataFrame, identity: Sequence[str]) -> DataFrame:
    """Return the coordinates of the rows marked `_fresh` whose identity an earlier row has, and that row's."""
    same = Window.partitionBy(*identity).orderBy(*RANK)
    ranked = both.select(
        *COORDINATES,
        "_fresh",
        F.row_number().over(same).alias("_place"),
        F.first(F.concat_ws("/", *RANK)).over(same).alias("_winner"),
    )
    return ranked.where(F.col("_fresh") & (F.col("_place") > 1)).select(*COORDINATES, "_winner")


def _known(decision: _Decision, found: _Found) -> DataFrame:
    """Return silver's rows before the run that may lie within the horizon of a row of it."""
    writer, run, pipeline = decision.writer, decision.run, decision.writer.dataset.pipeline
    files = [] if found.bounds is None else writer.silver.batch_files(0, run.first - 1)
    if found.bounds is not None and found.bounds[0] > 0:
        low, high = (EPOCH + bound * MICROSECOND for bound in found.bounds)
        span = before(low, pipeline.horizon), after(high, pipeline.horizon)
        # A row without an event time counts as of 1970, which no bound of a file says.
        files = [f for f in files if f.nulls.get(pipeline.event_time, 1) or f.overlaps(pipeline.event_time, *span)]
    rows = writer.silver.read(writer.spark, files)
    if all(file.lies_within("_batch_id", 0, run.first - 1) for file in files):
        return rows
    return rows.where(F.col("_batch_id") < batch_number(run.first, "_batch_id"))


def _small(rows: DataFrame, count: int) -> DataFrame:
    return F.broadcast(rows) if count <= MOST_BROADCAST else rows


def _latest(writer: SilverTables, rows: DataFrame) -> dict[str, datetime]:
    time = F.unix_micros(writer.dataset.pipeline.event_time)
    return _latest_of(figures(rows.groupBy("_partition").agg(F.max(time).alias("high"))))


def _latest_of(groups: Sequence[Row]) -> dict[str, datetime]:
    """Return the greatest event time of each partition that has one."""
    known = [group for group in groups if group["high"] is not None]
    return {str(group["_partition"]): EPOCH + group["high"] * MICROSECOND for group in known}


def _warnings(writer: SilverTables, validated: DataFrame) -> Counts:
    """Return the counts of the warning rules over the accepted records; no job without such a rule."""
    rules, aggregates = writer.counting.rules, writer.counting.aggregates
    if not rules:
        return {}
    found = validated.where(F.size("_reasons") == 0).agg(*aggregates).first()
    assert found is not None, "an aggregate without groups is one row"
    return {
        name: {
            "validated": int(found[f"validated_{n}"]),
            "violations": int(found[f"violations_{n}"]),
            "first": None if found[f"first_{n}"] is None else list(found[f"first_{n}"]),
        }
        for n, name in enumerate(rules)
    }


def duplicate_rows(dataset: Dataset, duplicates: DataFrame) -> DataFrame:
    """Return duplicates of `_winner` as rows of rejected."""
    identity = F.lit(", ".join(dataset.pipeline.identity))
    reason = F.struct(F.lit("duplicate").alias("rule"), identity.alias("column"), F.col("_winner").alias("detail"))
    return _rejected_rows(dataset, duplicates, F.lit("duplicate"), F.array(reason))


def refused_rows(dataset: Dataset, validated: DataFrame) -> DataFrame:
    """Return records with reasons as rows of rejected."""
    return _rejected_rows(dataset, validated, F.expr(REFUSED_AS.format(first="_reasons[0]")), F.col("_reasons"))


def _rejected_rows(dataset: Dataset, rows: DataFrame, disposition: Column, reasons: Column) -> DataFrame:
    return rows.select(
        *("_topic", "_partition", "_offset", "_batch_id"),
        disposition.alias("disposition"),
        reasons.cast(REASONS).alias("reasons"),
        F.lit(dataset.contract.version).alias("contract_version"),
        F.col("_timestamp").alias("first_seen"),
        Month("_timestamp", is_arrival=True).column,
    )


def _inherited(writer: SilverTables, inheritance: Inheritance, run: RefineRun) -> SparkRun:
    """Return the base release's rows of these batches, unchanged; new columns are null."""
    if run.last >= inheritance.until:
        why = f"batches before {inheritance.until} are inherited, later ones validated: a run cannot do both"
        raise RowsUnaccounted(writer.silver.spec.name, run.batches, why)
    month, arrival = Month(writer.dataset.pipeline.event_time), Month("first_seen", is_arrival=True)
    accepted = _rows_of_base(writer, inheritance.silver, writer.silver, month, run)
    rejected = _rows_of_base(writer, inheritance.rejected, writer.rejected, arrival, run)
    count, refused = (table.count_rows(*run.batches) for table in (inheritance.silver, inheritance.rejected))
    rows_in = writer.records.count_rows(*run.batches)
    if run.first < first_unexpired_batch(writer, "bronze"):
        # Bronze has no rows any more of batches that have expired.
        rows_in = count + refused
    if rows_in != count + refused:
        why = f"{rows_in} records came in, {count} are accepted and {refused} rejected"
        raise RowsUnaccounted(writer.silver.spec.name, run.batches, why)
    reasons, dispositions = _counts_of(rejected)
    counts = DecisionCounts(rows_in, count, refused, reasons, dispositions, {}, _latest(writer, accepted))
    return SparkRun(writer, accepted, rejected, counts)


def _rows_of_base(writer: SilverTables, source: Table, target: Table, month: Month, run: RefineRun) -> DataFrame:
    rows, known = source.read_batches(writer.spark, source.batch_files(*run.batches), *run.batches), source.spec.schema
    columns = [
        F.col(each.name) if each.name in known.fieldNames() else F.lit(None).try_cast(each.dataType).alias(each.name)
        for each in target.spec.data_schema.fields
    ]
    return rows.select(*columns, month.column)


def _counts_of(rejected: DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Return rejected rows by reason, each once a record, and by disposition."""
    rules = F.array_distinct(F.transform("reasons", lambda reason: reason["rule"]))
    groups = figures(rejected.groupBy("disposition", rules.alias("rules")).agg(F.count(F.lit(1)).alias("rows")))
    reasons, dispositions = Counter[str](), Counter[str]()
    for group in groups:
        dispositions[group["disposition"]] += group["rows"]
        reasons.update(dict.fromkeys(group["rules"], group["rows"]))
    return dict(reasons), dict(dispositions)


def validate(
    writer: SilverTables, records: Sequence[Path], batches: tuple[int, int], folder: Path, until: int
) -> ValidatedFiles:
    """Write the accepted records as rows of silver, and the others with their reasons, into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    if not records:
        return ValidatedFiles((), ())
    texts = writer.payloads.texts(records, writer.payloads.learn(records))
    rows = texts.of(read_files(writer.spark, writer.bronze.spec.data_schema, records))
    validated = validate_with_decisions(writer.validator, rows, writer.decisions.for_batches(batches, until))
    held = validated.persist(HELD)
    try:
        found = _written(writer, held, RefineRun(*batches, 0), folder)
    finally:
        held.unpersist()
    rows_in, rows_out = parquet_rows(records), parquet_rows([*found.accepted, *found.invalid])
    if rows_in != rows_out:
        why = f"{rows_in} records, {rows_out} rows: silver.py must return exactly one row per record"
        raise RowsUnaccounted(writer.silver.spec.name, batches, why)
    return found


def _written(writer: SilverTables, validated: DataFrame, run: RefineRun, folder: Path) -> ValidatedFiles:
    transform = partial(transformed, writer, run)
    try:
        write_folder(transform(validated.where(F.size("_reasons") == 0)), folder / "accepted")
    except Exception as error:
        if record_error(error) is None:
            raise
        failing = failing_records(writer, validated, transform)
        return _written(writer, without_failing(validated, failing), run, folder)
    write_folder(validated.where(F.size("_reasons") > 0), folder / "invalid")
    return ValidatedFiles(tuple(parquet_files(folder / "accepted")), tuple(parquet_files(folder / "invalid")))


NUMBER = "_number"
Transform = Callable[[DataFrame], DataFrame]
"""Valid records as rows of silver."""


def failing_records(writer: SilverTables, validated: DataFrame, transform: Transform) -> list[FailedRecord]:
    """Return the records on which silver.py fails. Raises TransformationFailed, and errors that no record causes."""
    failed = defaultdict[int, list[FailedRecord]](list)
    order = Window.orderBy(*RANK)
    numbered = validated.where(F.size("_reasons") == 0).withColumn(NUMBER, F.row_number().over(order)).persist()

    def write(part: DataFrame) -> None:
        transform(part.drop(NUMBER)).write.format("noop").mode("overwrite").save()

    try:
        # Spark's log has the first failure with its stack; each part would add another.
        writer.spark.sparkContext.setLogLevel("OFF")
        pending = [(1, numbered.count())]
        while pending:
            first, last = pending.pop()
            part = numbered.where(F.col(NUMBER).between(first, last))
            error = failure_of(write, part)
            pass_step(Step.PART_WRITTEN)
            if error and first < last:
                middle = (first + last) // 2
                pending += [(middle + 1, last), (first, middle)]
            elif error:
                ((batch, partition, offset),) = figures(part.select(*RANK))
                failed[batch].append((partition, offset, error))
                if len(failed[batch]) > most_tolerated(writer.records.count_rows(batch, batch)):
                    raise TransformationFailed(writer.dataset.name, batch, len(failed[batch]), failed[batch][0])
    finally:
        writer.spark.sparkContext.setLogLevel("WARN")
        numbered.unpersist()
    return [record for records in failed.values() for record in records]


def without_failing(validated: DataFrame, failing: Sequence[FailedRecord]) -> DataFrame:
    """Return the validated records; those that fail have the error as their reason."""
    known = validated.sparkSession.createDataFrame(list(failing), "_partition int, _offset long, _error string")
    both = validated.join(F.broadcast(known), list(POSITION), "left")
    reason = F.array(
        F.struct(F.lit(TRANSFORM_ERROR).alias("rule"), F.lit("").alias("column"), F.col("_error").alias("detail"))
    )
    reasons = F.when(F.col("_error").isNull(), F.col("_reasons")).otherwise(reason.cast(REASONS))
    return both.withColumn("_reasons", reasons).select(*validated.columns)
