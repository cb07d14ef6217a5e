"""A run's records as Spark validated them, before anything of the run is committed (adr-0015).

Reads: the bronze files of batches [a, b].
Writes: files in a folder of the run below `staging`; silver and rejected are written from them (silver.py). The
list of writers' schemas gets those of new ids, prepared queries write into this process's folder of `_queries`.
Guarantee: nothing here depends on silver, rejected or gold, so a run may be validated before the one before it is
committed.
After a crash: the next run removes the folder.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spark_jobs.layers.identities import IdentifiedRows, identify_files
from spark_jobs.layers.silver_tables import RefineRun, SilverTables
from spark_jobs.layers.validate_records import ValidatedFiles, validate_files
from spark_jobs.tables.duckdb_session import duckdb_session, parquet_files
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.spark_files import rows_in_files

Batches = tuple[int, int]
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

    def is_current(self, writer: SilverTables) -> bool:
        """Whether bronze still has these files, no record was decided about since, and the registry has no schema that
        it lacked.
        """
        return (
            self.sources == bronze_files(writer, self.batches)
            and self.decided_until == writer.decisions.until()
            and self.schemas_until == writer.payloads.learn(self.records)
        )

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def validate_run(
    writer: SilverTables, batches: Batches, decided_until: int | None = None, schemas_until: int | None = None
) -> ValidatedRun:
    """Validate a run's records, by the whole lists of decisions and schemas or by their first `…_until` bytes."""
    folder = writer.staging / f"b{batches[1]:08d}"
    until = writer.decisions.until() if decided_until is None else decided_until
    sources = bronze_files(writer, batches)
    records = run_records(writer, batches, folder / "records")
    schemas = writer.payloads.learn(records) if schemas_until is None else schemas_until
    files = validate_files(writer, records, batches, folder / "validated", until, schemas=schemas, with_inputs=True)
    count = rows_in_files(records)
    rows = identify_files(writer.dataset, writer.silver, files.accepted, count)
    return ValidatedRun(batches, sources, tuple(records), count, files, rows, until, schemas, folder)


def bronze_files(writer: SilverTables, batches: Batches) -> tuple[str, ...]:
    """Return the paths of the bronze files that may have rows of these batches."""
    return tuple(file.path for file in writer.bronze.batch_files(*batches))


def run_records(writer: SilverTables, batches: Batches, folder: Path) -> list[Path]:
    """Return files with exactly the bronze rows of `batches`; `folder` gets those of files that have other batches."""
    bronze, files = writer.bronze, writer.bronze.batch_files(*batches)
    mixed = [file for file in files if not file.lies_within("_batch_id", *batches)]
    paths = [bronze.spec.path / file.path for file in files if file not in mixed]
    if not mixed:
        return paths
    first, last = batches
    with duckdb_session() as duck:
        duck.view_table("mixed", bronze, mixed)
        duck.save_records(f"select * from mixed where _batch_id between {first} and {last}", folder)
    return [*paths, *parquet_files(folder)]


class Validations(Protocol):
    """Receives when the validation of records begins and ends: bronze's next batch is paced by it."""

    def begin_validation(self, last: int) -> None:
        """Note that the records up to batch `last` are validated from now on."""

    def end_validation(self) -> None:
        """Note that they are validated and identified; Spark is idle since a moment before."""


class NextRun:
    """The run after the current one: its records are validated in a thread while the current run is written.

    It commits nothing (adr-0015). `finish` waits for the thread, so nothing else of a driver runs meanwhile.
    `validated`: what the run before has made of the current run; afterwards that of the next run, None without one.
    `bounds_after` returns the batches of the run after a batch, None as long as that run is not to be validated ahead.
    """

    def __init__(
        self,
        writer: SilverTables,
        validated: ValidatedRun | None,
        bounds_after: Callable[[int], Batches | None],
        validations: Validations | None = None,
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
        if self._validations is not None:
            self._validations.end_validation()
        pool = ThreadPoolExecutor(1, "next-run")
        self._running = pool.submit(self._validate_after, run.last)
        pool.shutdown(wait=False)

    def finish(self) -> None:
        """Wait until the run is validated, if that has begun. What failed is validated again, and reported, as the
        current run.
        """
        running, self._running = self._running, None
        self._ending.set()
        if running is not None:
            with suppress(Exception):
                self.validated = running.result()

    def _validate_after(self, batch: int) -> ValidatedRun | None:
        while (batches := self._bounds_after(batch)) is None:
            if self._ending.wait(POLL_SECONDS):
                return None
        if self._validations is None:
            return self._validate(batches)
        self._validations.begin_validation(batches[1])
        try:
            return self._validate(batches)
        finally:
            self._validations.end_validation()

    def _validate(self, batches: Batches) -> ValidatedRun:
        validated = validate_run(self._writer, batches)
        pass_step(Step.NEXT_VALIDATED, batches[1])
        return validated
