"""Audit job: computes the published tables of a dataset again and compares every row, while readers keep them.

Silver, rejected and gold come from bronze, tables of a derived dataset from its sources at the published versions. It
writes temporary files only, which the next process that opens DuckDB removes after a crash.

Usage: python -m spark_jobs.jobs.audit_job DATASET. Prints one JSON object per line: progress, then `recomputed`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from os import getpid
from typing import Any

from pyspark.sql import SparkSession

from include.declare.dataset import released_dataset
from include.declare.derived_dataset import released_derived
from include.ground.settings import Settings
from include.read.memory_database import spill_folder
from include.read.publication import Publication, read_publication, tables_of
from spark_jobs.backends.release import pinned_release
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.rebuild_derived import DerivedSlice, examine_derived, published_sources
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.history.recompute_history import recompute_history
from spark_jobs.jobs.bounded_job import report, run_reading_job
from spark_jobs.layers.derived import open_source


def recomputed_records(settings: Settings, spark: SparkSession, published: Publication) -> dict[str, Any]:
    """Return the release, the batch, and how its tables differ from bronze. Raises RowsUnaccounted."""
    declared = released_dataset(settings, published.dataset, published.release)
    versions = {name: table.version for name, table in published.tables.items()}
    release = pinned_release(spark, settings, declared, versions)

    def progress(step: str, done: int, of: int) -> None:
        report(at=step, done=done, of=of)

    found = recompute_history(settings, release, published.batch, spill_folder(getpid()) / "recomputed", progress)
    return {"release": published.release, "batch": published.batch, **asdict(found)}


def recomputed_tables(settings: Settings, spark: SparkSession, published: Publication) -> dict[str, dict[str, Any]]:
    """Return by table of a derived dataset what `examine_derived` finds. Raises SourcesGone, PublishedVersionGone."""
    derived = released_derived(settings, published.dataset, published.release)
    sources, tables = published_sources(settings, derived, published), tables_of(settings, published)
    folder, found = PlanFolder(spill_folder(getpid()) / "recomputed"), dict[str, dict[str, Any]]()
    for number, gold in enumerate(derived.pipeline.gold):
        table = f"gold.{gold.name}"
        report(at=table, done=number, of=len(tables))
        whole = DerivedSlice(gold, open_source(tables[table]), None, folder)
        found[table] = examine_derived(spark, whole, sources)
    return found


def audit(settings: Settings, dataset: str) -> None:
    """Report how the published tables of a dataset differ from those computed again."""
    published = read_publication(settings, dataset)
    spark = open_session(settings, f"headrace audit {dataset}")
    recompute = recomputed_tables if published.is_derived else recomputed_records
    report(recomputed=recompute(settings, spark, published))


if __name__ == "__main__":
    sys.exit(run_reading_job("audit", audit, *sys.argv[1:]))
