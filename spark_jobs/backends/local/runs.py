"""A run of silver and rejected in this process: its records validated, each identity once, the files of both tables.

Validation depends on bronze alone, so a run may be validated before the one before it is committed (adr-0015). Every
record is in silver or in rejected, exactly once, or nothing is committed. After a crash the same batches are validated
again against silver as it was before them, with the same verdicts; the next run removes the folder.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from include.declare.children import Elements
from include.ground.record_coordinates import POSITION
from spark_jobs.backends.backend import DecisionCounts, Metadata, NeedsSpark, Queries, Transaction, ValidatedFiles
from spark_jobs.backends.local.arrow_files import (
    Words,
    are_in,
    batches_in_files,
    no_rows_of_file,
    packed_places,
    places_in,
    rows_in_files,
)
from spark_jobs.backends.local.duckdb_session import duckdb_session, session_for, write_partitioned
from spark_jobs.backends.local.identities import PLACE_SQL, IdentifiedRows, identify_files, rank_copies
from spark_jobs.backends.local.prepared_query import SlotFull
from spark_jobs.backends.local.tables import LocalTables
from spark_jobs.backends.local.validation import validate_files
from spark_jobs.layers.bronze import ReleasedBronze
from spark_jobs.layers.gold_rows import source_rows
from spark_jobs.layers.silver_code import failure_of
from spark_jobs.layers.silver_tables import Inheritance, Month, RefineRun, SilverTables, first_unexpired_batch
from spark_jobs.tables.data_files import DataFile, parquet_files, write_folder
from spark_jobs.tables.delta_table import RowsUnaccounted, Table
from spark_jobs.tables.failpoints import Step, pass_step

Batches = tuple[int, int]
NextBounds = Callable[[int], Batches | None]
"""Returns the batches of the run after a batch, None as long as that run is not to be validated ahead."""
POLL_SECONDS = 0.01
"""How often the next run's batches are looked for while the current run is written."""


@dataclass(frozen=True)
class ValidatedRun:
    """The records of `batches` in `files`; they were validated from `rows_in` records in the `sources` of bronze."""

    batches: Batches
    sources: tuple[str, ...]
    records: tuple[Path, ...]
    """The files that were read: `sources`, or the run's records of them."""
    rows_in: int
    files: ValidatedFiles
    rows: IdentifiedRows
    """The accepted ones, which are looked up in silver by these."""
    decided_until: int
    """Length of the list of decisions (bytes) by which the records were validated."""
    schemas_until: int
    """Length of the list of writers' schemas (bytes) by which they were read."""
    folder: Path

    def is_current(self, writer: LocalTables) -> bool:
        """Whether bronze has these files, no record was decided about since, and no schema is known that was not."""
        return (
            self.sources == bronze_files(writer, self.batches)
            and self.decided_until == writer.decisions.until()
            and self.schemas_until == writer.payloads.learn(self.records)
        )

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def validate_run(
    writer: LocalTables, batches: Batches, decided_until: int | None = None, schemas_until: int | None = None
) -> ValidatedRun:
    """Validate a run's records, by the whole lists of decisions and schemas or by their first `…_until` bytes."""
    folder = writer.staging / f"b{batches[1]:08d}"
    sources = bronze_files(writer, batches)
    records = run_records(duckdb_session, writer.records, batches, folder / "records")
    until = writer.decisions.until() if decided_until is None else decided_until
    schemas = writer.payloads.learn(records) if schemas_until is None else schemas_until
    files = validate_files(writer, records, batches, folder / "validated", until, schemas=schemas, with_inputs=True)
    count = rows_in_files(records)
    rows = identify_files(writer.dataset, writer.silver, files.accepted, count)
    return ValidatedRun(batches, sources, tuple(records), count, files, rows, until, schemas, folder)


def run_records(
    open_session: Callable[[], AbstractContextManager[Queries]],
    records: ReleasedBronze,
    batches: tuple[int, int],
    folder: Path,
) -> list[Path]:
    """Return files with exactly the bronze rows of `batches`; `folder` gets those of files that have other batches."""
    bronze, files = records.table, records.batch_files(*batches)
    mixed = [file for file in files if not file.lies_within("_batch_id", *batches)]
    paths = [bronze.spec.path / file.path for file in files if file not in mixed]
    if not mixed:
        return paths
    first, last = batches
    with open_session() as sql:
        sql.view_table("mixed", bronze, mixed)
        sql.save_records(f"select * from mixed where _batch_id between {first} and {last}", folder)
    return [*paths, *parquet_files(folder)]


def bronze_files(writer: LocalTables, batches: Batches) -> tuple[str, ...]:
    """Return the paths of the bronze files that may have rows of these batches."""
    return tuple(file.path for file in writer.records.batch_files(*batches))


class Validations:
    """Receives when the validation of records begins and ends: bronze's next batch may be paced by it."""

    def begin_validation(self, last: int) -> None:
        """Note that the records up to batch `last` are validated from now on."""

    def end_validation(self) -> None:
        """Note that they are validated and identified; Spark is idle since a moment before."""


UNPACED = Validations()


class NextRun:
    """The run after the current one: its records are validated in a thread while the current run is written.

    It commits nothing (adr-0015). `finish` waits for the thread, so nothing else of a driver runs meanwhile.
    `validated`: what the run before has made of the current run; afterwards that of the next run, None without one.
    """

    def __init__(
        self,
        writer: LocalTables,
        validated: ValidatedRun | None,
        bounds_after: NextBounds,
        validations: Validations = UNPACED,
    ) -> None:
        self.validated = validated
        self._writer, self._bounds_after, self._validations = writer, bounds_after, validations
        self._running: Future[ValidatedRun | None] | None = None
        self._ending = threading.Event()

    def claim(self, run: RefineRun) -> ValidatedRun | None:
        """Return the validated records of `run` and forget them; None unless they would be validated the same now."""
        validated, self.validated = self.validated, None
        if validated is not None and validated.batches == run.batches and validated.is_current(self._writer):
            return validated
        return None

    def start(self, run: RefineRun) -> None:
        """Note that `run` is validated; begin to validate the run after it, once its batches are known."""
        self._validations.end_validation()
        pool = ThreadPoolExecutor(1, "next-run")
        self._running = pool.submit(self._validate_after, run.last)
        pool.shutdown(wait=False)

    def finish(self) -> None:
        """Wait until the run is validated, if that has begun; what failed is reported when it is the current run."""
        running, self._running = self._running, None
        self._ending.set()
        if running is not None:
            with suppress(Exception):
                self.validated = running.result()

    def _validate_after(self, batch: int) -> ValidatedRun | None:
        while (batches := self._bounds_after(batch)) is None:
            if self._ending.wait(POLL_SECONDS):
                return None
        self._validations.begin_validation(batches[1])
        try:
            validated = validate_run(self._writer, batches)
            pass_step(Step.NEXT_VALIDATED, batches[1])
            return validated
        finally:
            self._validations.end_validation()


class RunRows:
    """A run's rows of silver for gold's merges: in memory if they were just written, else from silver's files."""

    def __init__(
        self, tables: LocalTables, files: Sequence[DataFile], batches: Batches, known: pa.Table | None = None
    ) -> None:
        self._tables, self._files, self._batches = tables, files, batches
        self._known: dict[Elements | None, pa.Table] = {} if known is None else {None: known}
        self._lock = threading.Lock()

    def get(self, over: Elements | None = None) -> pa.Table:
        """Return the rows, or their children's. Raises NeedsSpark when an expression fails: Spark's merge names it."""
        with self._lock:
            if over not in self._known:
                self._known[over] = self._computed() if over is None else self._of_children(over)
            return self._known[over]

    def _of_children(self, over: Elements) -> pa.Table:
        tables, (first, last) = self._tables, self._batches
        try:
            with session_for(sum(file.rows for file in self._files)) as duck:
                duck.view_table("run_files", tables.silver, self._files)
                duck.view_query("run_silver", f"select * from run_files where _batch_id between {first} and {last}")
                columns = tables.silver.spec.data_schema.fieldNames()
                return tables.child_inputs[over].of_run(duck, "run_silver", columns)
        except (SlotFull, PySparkException):
            return self._computed(over)

    def _computed(self, over: Elements | None = None) -> pa.Table:
        tables = self._tables
        inputs = tables.inputs if over is None else tables.child_inputs[over].inputs
        silver = tables.silver.read_batches(tables.spark, self._files, *self._batches)
        rows = inputs.merge_rows(source_rows(over, silver))
        folder = tables.staging / f"inputs-{uuid4().hex}"
        if error := failure_of(lambda computed: write_folder(computed, folder), rows):
            raise NeedsSpark(f"an expression fails on a row: {error}")
        found = [pq.read_table(path, partitioning=None) for path in parquet_files(folder)]
        shutil.rmtree(folder, ignore_errors=True)
        if not found:
            raise NeedsSpark("the run has no rows")
        return pa.concat_tables(found)


@dataclass(frozen=True)
class LocalRun:
    """A run whose files of silver and rejected are written. Those of silver may be committed already."""

    tables: LocalTables
    silver: Sequence[DataFile]
    rejected: Sequence[DataFile]
    counts: DecisionCounts
    rows: RunRows

    def commit_silver(self, transaction: Transaction, metadata: Metadata) -> None:
        self.tables.silver.commit(*transaction, metadata, self.silver)

    def commit_rejected(self, transaction: Transaction, metadata: Metadata) -> None:
        self.tables.rejected.commit(*transaction, metadata, self.rejected)

    def release(self) -> None:
        """Nothing is held: the files of the validated records are deleted when the tables' files are written."""


def decided_run(tables: LocalTables, run: RefineRun, following: NextRun | None, *, is_committed: bool) -> LocalRun:
    """Write the run's files of both tables, but not silver's when it `is_committed`. Raises RowsUnaccounted.

    `following` may have the run's records validated; once they are, it begins with the run after it.
    """
    committed = tables.silver.batch_files(*run.batches) if is_committed else None
    inheritance = tables.inheritance
    if inheritance is not None and run.first < inheritance.until:
        return _inherited(tables, inheritance, run, committed)
    validated = _validated(tables, run, following, is_committed=is_committed)
    if following is not None:
        following.start(run)
    return _written(tables, run, validated, committed)


def _validated(tables: LocalTables, run: RefineRun, following: NextRun | None, *, is_committed: bool) -> ValidatedRun:
    """Return the run's records as Spark validates them, or has during the run before.

    Silver's commit says by which decisions and schemas it was validated, so rejected is completed by the same.
    """
    ahead = following.claim(run) if following is not None else None
    if ahead is not None and not is_committed:
        return ahead
    shutil.rmtree(tables.staging, ignore_errors=True)
    if not is_committed:
        return validate_run(tables, run.batches)
    facts = tables.silver.commit_of(tables.app_ids["silver"], run.last).facts
    return validate_run(tables, run.batches, int(facts.get("decided_until", 0)), int(facts.get("schemas_until", 0)))


def _written(
    tables: LocalTables, run: RefineRun, validated: ValidatedRun, committed: Sequence[DataFile] | None
) -> LocalRun:
    accepted = validated.files.accepted
    with session_for(validated.rows_in) as duck:
        duck.view_files("invalid", validated.files.invalid, tables.validated_schema)
        tables.identities.view_candidates(duck, "candidates", accepted, validated.rows)
        duck.view_query("known", f"select * from candidates where _batch_id < {run.first}")
        rank_copies(duck, tables.dataset, "candidates_sharing", "known")
        rejected_rows = duck.arrow(tables.rejected_rows)
        found = duck.arrays(f"select {PLACE_SQL} from duplicates")
        duplicates = np.sort(packed_places(found["_place_partition"], found["_place_offset"]))
    rejected = write_partitioned(tables.rejected, rejected_rows.to_batches(), run.folder)
    reasons, dispositions = rejected_counts([rejected_rows])
    del rejected_rows
    silver = write_originals(tables.silver, accepted, duplicates, run.folder) if committed is None else committed
    inputs = tables.input_names if validated.files.has_inputs else []
    rows = originals_in_memory(accepted, inputs, duplicates) if inputs else None
    tables.identities.note_written(silver, validated.rows.indexed_without(duplicates))
    validated.remove()
    counts = _counts(
        tables,
        (silver, rejected),
        rows_in=validated.rows_in,
        reasons=reasons,
        dispositions=dispositions,
        warnings=validated.files.warnings,
        decided_until=validated.decided_until,
        schemas_until=validated.schemas_until,
    )
    return LocalRun(tables, silver, rejected, counts, RunRows(tables, silver, run.batches, rows))


def _counts(tables: LocalTables, files: tuple[Sequence[DataFile], Sequence[DataFile]], **known: Any) -> DecisionCounts:
    accepted, rejected = (sum(file.rows for file in each) for each in files)
    latest = _latest_events(tables.silver, files[0], tables.dataset.pipeline.event_time)
    return DecisionCounts(accepted=accepted, rejected=rejected, latest=latest, **known)


def _inherited(
    tables: LocalTables, inheritance: Inheritance, run: RefineRun, committed: Sequence[DataFile] | None
) -> LocalRun:
    """Return the base release's rows of these batches, unchanged; new columns are null."""
    batches, folder = run.batches, run.folder
    if run.last >= inheritance.until:
        why = f"batches before {inheritance.until} are inherited, later ones validated: a run cannot do both"
        raise RowsUnaccounted(tables.silver.spec.name, batches, why)
    arrival = Month("first_seen", is_arrival=True)
    rejected = _inherited_rows(tables, inheritance.rejected, tables.rejected, arrival, batches, folder)
    silver = committed
    if silver is None:
        month = Month(tables.dataset.pipeline.event_time)
        silver = _inherited_rows(tables, inheritance.silver, tables.silver, month, batches, folder)
    rows_in = tables.records.count_rows(*batches)
    if run.first < first_unexpired_batch(tables, "bronze"):
        # Bronze has no rows any more of batches that have expired.
        rows_in = sum(file.rows for file in [*silver, *rejected])
    paths = [tables.rejected.spec.path / file.path for file in rejected]
    reasons, dispositions = rejected_counts(pq.ParquetFile(path).read(columns=COUNTED) for path in paths)
    known = {"rows_in": rows_in, "reasons": reasons, "dispositions": dispositions, "warnings": {}}
    counts = _counts(tables, (silver, rejected), **known)
    return LocalRun(tables, silver, rejected, counts, RunRows(tables, silver, batches))


def _inherited_rows(
    writer: SilverTables, source: Table, target: Table, month: Month, batches: tuple[int, int], folder: str
) -> list[DataFile]:
    files = source.batch_files(*batches)
    if not files:
        return []
    rows, known = source.read_batches(writer.spark, files, *batches), source.spec.schema.fieldNames()
    columns = [
        F.col(field.name) if field.name in known else F.lit(None).try_cast(field.dataType).alias(field.name)
        for field in target.spec.data_schema.fields
    ]
    return target.write(rows.select(*columns, month.column), folder)


def _latest_events(silver: Table, files: Sequence[DataFile], column: str) -> dict[str, datetime]:
    """Return the greatest event time of each partition that has one; a file may hold rows of several partitions."""
    latest: dict[str, datetime] = {}
    for file in files:
        rows = pq.ParquetFile(silver.spec.path / file.path).read(columns=["_partition", column])
        for found in rows.group_by("_partition").aggregate([(column, "max")]).to_pylist():
            partition, high = str(found["_partition"]), found[f"{column}_max"]
            if high is not None:
                latest[partition] = max(latest.get(partition, high), high)
    return latest


COUNTED = ["disposition", "reasons"]


def rejected_counts(rows: Iterable[pa.Table]) -> tuple[dict[str, int], dict[str, int]]:
    """Return rejected rows by reason (each reason once a record) and by disposition; `rows` have COUNTED, or more."""
    reasons: Counter[str] = Counter()
    dispositions: Counter[str] = Counter()
    for each in rows:
        dispositions += _counted(each["disposition"])
        reasons += _counted_reasons(each["reasons"].combine_chunks())
    return dict(reasons), dict(dispositions)


def _counted_reasons(reasons: Any) -> Counter[str]:
    rules = pc.struct_field(pc.list_flatten(reasons), "rule")
    pairs = pa.table({"record": pc.list_parent_indices(reasons), "rule": rules})
    return _counted(pairs.group_by(["record", "rule"]).aggregate([])["rule"])


def _counted(values: Any) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()})


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
