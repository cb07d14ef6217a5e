"""Arrival job: lets records arrive at datasets in given batches, each order of arrival in a state folder of its own.

Reads: `<order>/steps.json` and the batches that it names, Parquet files with the columns of Spark's Kafka source.
Writes: the tables and publications of `<order>`, which is a state folder.
Guarantee: bronze, runs and publications are made by the modules of the streams.
After a crash: the next call with the same folders continues in their tables, as a driver does.
Does not: read Kafka.

A step names a dataset, and the file of its next bronze batch; a derived dataset has no file and follows its sources.
The step `KILL` has a failpoint instead: the first time that it is passed after that, this process gets SIGKILL.

Usage: python -m workloads.arrival_job ORDER…. Prints one JSON object a line: `order` for each that is published.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from pyspark.sql import SparkSession

from include.declare.dataset import Dataset, snapshot_dataset
from include.declare.derived_dataset import snapshot_derived
from include.declare.reference_tables import current_versions
from include.ground.app_ids import bronze_app_id
from include.ground.paths import lease_path, warehouse
from include.ground.settings import Settings
from include.read.publication import publish
from include.state.lease import take_lease
from spark_jobs.backends.local.bronze import commit_bronze
from spark_jobs.backends.spark_session import open_session
from spark_jobs.jobs.bounded_job import report, run_job
from spark_jobs.layers.bronze import BronzeBatch, bronze_spec
from spark_jobs.stream.active_releases import ActiveRelease, open_active_release
from spark_jobs.stream.derived import DerivedRelease
from spark_jobs.stream.refine import publication_of, refresh_up_to
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, step_listeners

KILL = "kill"
ArrivalStep = tuple[str, str]
"""A dataset and a file, empty for a derived one; or KILL and a failpoint."""


@dataclass
class ArrivingDataset:
    """The tables of a dataset in one order of arrival; `batches` have arrived."""

    settings: Settings
    dataset: Dataset
    bronze: Table
    active: ActiveRelease
    batches: int = 0

    def ingest(self, spark: SparkSession, file: Path) -> None:
        """Commit the next bronze batch, and execute the runs that this leads to."""
        number, rows = self.batches, pl.read_parquet(file, columns=["partition", "offset"])
        ends = rows.group_by("partition").agg(pl.min("offset").alias("first"), pl.max("offset").alias("last"))
        ranges = {partition: (first, last + 1) for partition, first, last in ends.iter_rows()}
        records = spark.read.parquet(str(file)).repartitionById(max(ranges) + 1, "partition")
        app_id = bronze_app_id(self.dataset.name, 1)
        batch = BronzeBatch(number, app_id, number, ranges, self._facts())
        commit_bronze(self.bronze, records.sortWithinPartitions("offset"), batch)
        while self.active.refine_next(self.settings, number, publishing=True) is not None:
            pass
        self.batches += 1

    def finish(self) -> None:
        """Refresh the gold tables that are refreshed after an interval, and publish."""
        release = self.active.release
        refresh_up_to(release, self.active.lease.epoch, {}, time.time())
        publish(self.settings, publication_of(self.settings, release, release.refined_batch))

    def _facts(self) -> Mapping[str, object]:
        topic = self.dataset.pipeline.topic
        return {
            **{"dataset": self.dataset.name, "code": self.dataset.release, "epoch": self.active.lease.epoch},
            **{"topic": topic, "topic_id": topic, "query_id": topic},
            "reference": current_versions(self.settings, self.dataset.name),
        }


def open_dataset(spark: SparkSession, settings: Settings, name: str, templates: Path) -> ArrivingDataset:
    """Open the tables of a dataset; new ones are copies of empty ones in `templates`, which saves seconds."""
    tables, template = warehouse(settings) / name, templates / name
    is_new = not tables.exists()
    if is_new and template.exists():
        shutil.copytree(template, tables)
    dataset, bronze = snapshot_dataset(settings, name), Table(bronze_spec(settings, name))
    opened = ArrivingDataset(settings, dataset, bronze, open_active_release(spark, settings, dataset, bronze))
    if is_new and not template.exists():
        shutil.copytree(tables, template)
    return opened


def follow(spark: SparkSession, settings: Settings, name: str) -> None:
    """Execute the runs of a derived dataset as a new process does."""
    with ExitStack() as held:
        lease = take_lease(settings, lease_path(settings, name), name, datetime.now(UTC))
        held.callback(lease.release)
        release = DerivedRelease(settings, snapshot_derived(settings, name), spark, lease)
        while not release.missing_sources() and (run := release.next_run()) is not None:
            release.execute(run)


def arrive(spark: SparkSession, settings: Settings, steps: Sequence[ArrivalStep], templates: Path) -> None:
    """Take the steps of one order of arrival; `settings` name its state folder."""
    opened = dict[str, ArrivingDataset]()
    with ExitStack() as held:
        for name, file in steps:
            if name == KILL:
                kill_once(settings.state, Step(file))
            elif not file:
                follow(spark, settings, name)
            else:
                if name not in opened:
                    opened[name] = open_dataset(spark, settings, name, templates)
                    held.callback(opened[name].active.lease.release)
                opened[name].ingest(spark, settings.state / file)
        for each in opened.values():
            each.finish()
    for name in dict.fromkeys(name for name, file in steps if not file):
        follow(spark, settings, name)


def kill_once(order: Path, step: Step) -> None:
    """Let this process be killed at a step, once for an order of arrival."""
    mark = order / "killed"

    def die(passed: Step) -> None:
        if passed == step:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    if not mark.exists():
        step_listeners.append(die)


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""

    def work(settings: Settings) -> bool:
        spark = open_session(settings, "orders of arrival")
        with TemporaryDirectory(prefix="headrace-empty-tables-") as templates:
            for order in map(Path, arguments):
                own, steps = (
                    settings.model_copy(update={"state": order}),
                    json.loads((order / "steps.json").read_bytes()),
                )
                arrive(spark, own, steps, Path(templates))
                report(order=order.name)
        return True

    return run_job("arrival", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
