"""The tables of one release of a dataset, opened or created, and the run of batches that they get next.

A release's progress is the transaction version in its own tables; there is no second checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset, released_dataset
from include.declare.reference_tables import create_reference_tables
from include.declare.yaml_declarations import Problem
from include.ground.app_ids import release_app_id
from include.ground.delta_log import LOG
from include.ground.errors import Terminal
from include.ground.paths import gold_path, rejected_path, release_path, silver_path
from include.ground.settings import Settings
from include.state.lease import Lease
from spark_jobs.backends.backend import Backend
from spark_jobs.backends.local.backend import LocalBackend
from spark_jobs.backends.spark.spark_backend import SparkBackend
from spark_jobs.backends.spark.spark_table import SparkTable
from spark_jobs.contract.validator import compiled_validator
from spark_jobs.contract.warning_counts import compiled_warning_counter
from spark_jobs.layers.bronze import ReleasedBronze, bronze_spec, last_before_waking
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_layer import gold_spec
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.run_inputs import PayloadSchemas, RecordDecisions, ReferenceVersions
from spark_jobs.layers.silver_code import code_refused, load_transformation, validate_code
from spark_jobs.layers.silver_tables import Inheritance, OpenTable, SilverTables, record_tables, silver_of_nothing
from spark_jobs.tables.data_files import batch_rows, no_rows
from spark_jobs.tables.delta_table import Table


@dataclass(frozen=True)
class BronzeEnd:
    """The last batch of bronze, -1 so that no further run begins.

    With a backlog, Kafka probably has more records than the next batch takes. `woken`: the last batch with which an
    idle partition woke, None if bronze's commits must be read.
    """

    batch: int
    has_backlog: bool = False
    woken: int | None = None


@dataclass(frozen=True)
class Release:
    """An open release: its silver writer, its gold tables, and the backend that computes their rows."""

    writer: SilverTables
    gold: tuple[GoldTable, ...]
    backend: Backend
    needed_spark: Counter[str] = field(default_factory=Counter)
    """By reason, the merges that the backend has left to Spark."""

    @property
    def dataset(self) -> Dataset:
        return self.writer.dataset

    @cached_property
    def interval_tables(self) -> Sequence[GoldTable]:
        return [target for target in self.gold if target.gold.refresh_interval is not None]

    @property
    def committed_batches(self) -> dict[str, int]:
        """The last batch of each table by name, -1 for none."""
        writer = self.writer
        return {
            writer.silver.spec.name: writer.silver.committed(writer.app_ids["silver"]),
            writer.rejected.spec.name: writer.rejected.committed(writer.app_ids["rejected"]),
            **{target.table.spec.name: target.table.committed(target.app_id) for target in self.gold},
        }

    @property
    def refined_batch(self) -> int:
        """The last batch that all tables have, -1 for none."""
        return min(self.committed_batches.values())

    @property
    def last_epoch(self) -> int:
        """The epoch of the last commit to silver, 0 for none."""
        silver, app_id = self.writer.silver, self.writer.app_ids["silver"]
        batch = silver.committed(app_id)
        return int(silver.commit_of(app_id, batch).facts["epoch"]) if batch >= 0 else 0

    @property
    def unfinished_run(self) -> tuple[int, int] | None:
        """The bounds of the run that silver has committed and another table lacks; None without one.

        Raises Terminal (`commits-lost`): the run alone would leave earlier batches out of a table, or add them twice.
        """
        silver, app_id = self.writer.silver, self.writer.app_ids["silver"]
        batches = self.committed_batches
        last = silver.committed(app_id)
        if set(batches.values()) == {last}:
            return None
        first, last = silver.commit_of(app_id, last).facts["batches"] if last >= 0 else (-1, -1)
        if not are_one_run_apart((first, last), batches.values()):
            name, shown = self.dataset.name, ", ".join(f"{table} at batch {batch}" for table, batch in batches.items())
            raise Terminal(
                f"{name}: commits of some tables are lost, as after a power cut ({shown}); nothing was written",
                f"headrace repair {name}   (rolls the tables back to the last batch that all of them have)",
                code="commits-lost",
                dataset=name,
                batches=batches,
            )
        return first, last

    def next_run(self, last: int, most_rows: int, validated: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return the bounds of the next run up to bronze batch `last`; None when the release has that batch.

        A run takes as many batches as have `most_rows` rows together, at least one; or the `validated` ones.
        """
        unfinished = self.unfinished_run
        if unfinished is not None:
            return unfinished
        first = self.refined_batch + 1
        if validated is not None and validated[0] == first and validated[1] <= last:
            return validated
        return self.run_from(first, last, most_rows)

    def run_from(self, first: int, last: int, most_rows: int, woken: int | None = None) -> tuple[int, int] | None:
        """Return the bounds of the run that begins with batch `first`; None when bronze up to `last` does not have it.

        `woken`: the last batch up to `last` with which an idle partition woke, None if bronze's commits must be read.
        """
        if last < first:
            return None
        inheritance = self.writer.inheritance
        if inheritance is not None and first < inheritance.until:
            last = min(last, inheritance.until - 1)
        bronze = self.writer.bronze
        bound = last_of_run(self.writer.records, first, last, most_rows)
        return first, bound if woken is not None and woken <= first else last_before_waking(bronze, first, bound)

    def large_run(self, first: int, end: BronzeEnd, most_rows: int) -> tuple[int, int] | None:
        """Return the bounds of the run that begins with batch `first`, if it is large enough to be validated ahead."""
        bounds = self.run_from(first, end.batch, most_rows, end.woken)
        if bounds is None:
            return None
        least = least_ahead(most_rows, has_backlog=end.has_backlog)
        is_large = bounds[1] < end.batch or sum(_next_rows(self.writer.records, *bounds, most_rows).values()) >= least
        return bounds if is_large else None


def tables_of(releases: Sequence[Release]) -> Iterator[Table]:
    """Yield each table of the releases once."""
    for release in releases:
        yield release.writer.rejected
        for target in release.gold:
            yield target.table
        yield release.writer.silver
    yield releases[0].writer.bronze


def release_paths(settings: Settings, dataset: Dataset) -> list[Path]:
    """Return the paths of a release's tables, silver first."""
    name, release = dataset.name, dataset.release
    own = [silver_path(settings, name, release), rejected_path(settings, name, release)]
    return own + [gold_path(settings, name, release, table.name) for table in dataset.pipeline.gold]


def open_release(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table | None = None) -> Release:
    """Open and return the tables of a release, creating those that are missing; nothing else is written."""
    bronze = bronze or open_bronze(settings, dataset.name)
    release = _opened(spark, settings, dataset, bronze, {})
    inheritance = _inheritance(spark, settings, release)
    return release if inheritance is None else replace(release, writer=replace(release.writer, inheritance=inheritance))


def _inheritance(spark: SparkSession, settings: Settings, release: Release) -> Inheritance | None:
    """Return the rows that the release has yet to inherit; DeclarationRefused when a column has another type now."""
    beginning, writer = release.dataset.release_start, release.writer
    if beginning is None or writer.rejected.committed(release.writer.app_ids["rejected"]) >= beginning.batch - 1:
        return None
    base = released_dataset(settings, release.dataset.name, beginning.base)
    versions = {f"silver.{base.name}": beginning.silver, f"rejected.{base.name}": beginning.rejected}
    nothing = silver_of_nothing(spark, base, load_transformation(base), ReferenceVersions(spark, settings, base))
    silver, rejected = record_tables(settings, base, nothing, versions)
    old, new = silver.spec.schema, writer.silver.spec.schema
    for name in [name for name in old.fieldNames() if name in new.fieldNames()]:
        if old[name].dataType != new[name].dataType:
            why = f"was {old[name].dataType.simpleString()} in release {base.release}, whose rows are inherited"
            declared = release.dataset
            raise code_refused(settings, declared, [Problem(declared.folder / "silver.py", 1, name, why)])
    return Inheritance(silver, rejected, beginning.batch)


def pinned_release(
    spark: SparkSession,
    settings: Settings,
    dataset: Dataset,
    versions: Mapping[str, int],
    reference: Mapping[str, int] | None = None,
) -> Release:
    """Open and return the tables of a release, only to read, at these versions by full name (`silver.flights`).

    With `reference`, all batches are joined with these versions of the reference tables instead of their own.
    """
    bronze = Table(bronze_spec(settings, dataset.name), versions[f"bronze.{dataset.name}"])
    return _opened(spark, settings, dataset, bronze, versions, reference)


def chosen_backend(spark: SparkSession, settings: Settings) -> Backend:
    """Return what writes rows, as HEADRACE_BACKEND says."""
    return SparkBackend(spark) if settings.computes_with_spark else LocalBackend(spark)


def open_bronze(settings: Settings, dataset: str) -> Table:
    """Open or create a dataset's bronze, also before there is a session."""
    spec = bronze_spec(settings, dataset)
    return SparkTable(spec) if settings.computes_with_spark else Table(spec)


def claim_tables(tables: Sequence[Table], lease: Lease) -> Lease:
    """Fence the commits of the tables' earlier owners, also those in flight; return the lease with the epoch it takes.

    Of tables that no owner has claimed, the lease, and where it expires a commit, keep earlier owners away.
    """
    needed = [table for table in tables if table.needs_claim]
    claimed = lease.with_minimum_epoch(1 + max((table.claimed_epoch for table in needed), default=0))
    for table in needed:
        table.claim(claimed.epoch)
    return claimed


def _opened(
    spark: SparkSession,
    settings: Settings,
    dataset: Dataset,
    bronze: Table,
    versions: Mapping[str, int],
    reference: Mapping[str, int] | None = None,
) -> Release:
    backend, transform = chosen_backend(spark, settings), load_transformation(dataset)
    create_reference_tables(settings, dataset)
    book = ReferenceVersions(spark, settings, dataset, reference)
    nothing = silver_of_nothing(spark, dataset, transform, book)
    # A release whose tables exist was accepted, perhaps by fewer rules.
    is_new = not (silver_path(settings, dataset.name, dataset.release) / LOG).is_dir()
    columns = validate_code(settings, dataset, nothing) if is_new else {}
    tables = (bronze, *record_tables(settings, dataset, nothing, versions, backend.open_table))
    staging = release_path(settings, dataset.name, dataset.release) / "_staging"
    followed = (RecordDecisions(settings, dataset.name), PayloadSchemas(settings, dataset))
    rules = (compiled_validator(dataset.contract), transform, book)
    counting = compiled_warning_counter(dataset.contract)
    writer = SilverTables(spark, dataset, *rules, *tables, staging, *followed, counting, is_owned=not versions)
    gold = tuple(_gold_tables(settings, writer, columns, versions, backend.open_table))
    return Release(backend.adopt(writer, gold), gold, backend)


def _gold_tables(
    settings: Settings,
    writer: SilverTables,
    columns: Mapping[str, StructType],
    versions: Mapping[str, int],
    open_table: OpenTable,
) -> list[GoldTable]:
    """Open or create the gold tables; their `columns` are found again unless they are known."""
    tables, dataset, silver = [], writer.dataset, writer.silver
    for gold in dataset.pipeline.gold:
        own = writer.spark.newSession()
        found = columns.get(gold.name) or gold_rows(gold).computed(no_rows(own, silver.spec.data_schema), 0).schema
        spec = gold_spec(settings, dataset, gold, found)
        app_id = release_app_id(dataset.name, dataset.release, f"gold/{gold.name}")
        table = open_table(spec, versions.get(spec.name))
        tables.append(GoldTable(gold, table, own, app_id))
    return tables


ROW_BYTES = 512
"""Estimated bytes of a record in bronze's files, where zstd leaves a tenth to a third of a JSON text."""
FOOTER_BYTES = 4096
"""Estimated bytes of the footer of a file with few rows."""
SHARE_AHEAD = 10
"""A smaller run is mostly its fixed cost: with the records that arrive meanwhile it costs hardly more."""
SHARE_IN_BACKLOG = 2
"""In a backlog the rest of a larger run is in bronze soon, and each record costs less in one."""


def are_one_run_apart(run: tuple[int, int], batches: Iterable[int]) -> bool:
    """Whether each table either has silver's last run or lacks only that one; a crash leaves them so."""
    first, last = run
    return all(batch in (first - 1, last) for batch in batches)


def least_ahead(most_rows: int, *, has_backlog: bool = False) -> int:
    """Return the rows from which on a run is validated ahead, when a run has at most `most_rows`."""
    return -(-most_rows // (SHARE_IN_BACKLOG if has_backlog else SHARE_AHEAD))


def last_of_run(records: ReleasedBronze, first: int, last: int, most_rows: int) -> int:
    """Return the last batch up to `last` with which the batches from `first` on have at most `most_rows` rows."""
    rows = _next_rows(records, first, last, most_rows)
    total, bound = rows.get(first, 0), first
    while bound < last and total + rows.get(bound + 1, 0) <= most_rows:
        bound += 1
        total += rows.get(bound, 0)
    return bound


def _next_rows(records: ReleasedBronze, first: int, last: int, most_rows: int) -> Counter[int]:
    """Return the rows of each batch from `first` on, up to `last` or until the batches exceed `most_rows` together.

    A row of more than ROW_BYTES on disk counts as several: a run holds its records in memory.
    """
    rows: Counter[int] = Counter()
    unsettled: dict[int, int] = {}
    settled = 0
    for file in sorted(records.batch_files(first, last), key=attrgetter("first_batch")):
        # No later file has rows of a batch before this file's first.
        for batch in [batch for batch in unsettled if batch < file.first_batch]:
            settled += unsettled.pop(batch)
        if settled > most_rows:
            break
        weight = max(1, (file.size - FOOTER_BYTES) // (file.rows * ROW_BYTES)) if file.rows else 1
        found = {
            batch: weight * count for batch, count in batch_rows(records.table.spec.path, [file], first, last).items()
        }
        rows.update(found)
        for batch, count in found.items():
            unsettled[batch] = unsettled.get(batch, 0) + count
    return rows
