"""Derived audit job: computes the queries of a derived dataset over its published sources and compares every row.

Reads: the publication, its sources at the versions that it names, the published tables. Writes: temporary files only.
Guarantee: rows are computed and compared as a backfill does (`rebuild_derived.py`).
After a crash: the next process that opens DuckDB removes the temporary files.

Usage: python -m spark_jobs.jobs.derived_audit_job DATASET. Prints one JSON object per line: progress, `recomputed`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import getpid
from typing import Any

from pyspark.sql import SparkSession

from include.declare.derived_dataset import released_derived
from include.ground.settings import Settings
from include.read.memory_database import spill_folder
from include.read.publication import read_publication, tables_of
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.rebuild_derived import DerivedSlice, examine_derived, published_sources
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.jobs.bounded_job import report, run_reading_job
from spark_jobs.layers.derived import open_source


def recomputed_tables(settings: Settings, spark: SparkSession, name: str) -> dict[str, dict[str, Any]]:
    """Return by table what `examine_derived` finds. Raises SourcesGone, PublishedVersionGone."""
    publication = read_publication(settings, name)
    derived = released_derived(settings, name, publication.release)
    sources, tables = published_sources(settings, derived, publication), tables_of(settings, publication)
    folder, found = PlanFolder(spill_folder(getpid()) / "recomputed"), dict[str, dict[str, Any]]()
    for number, gold in enumerate(derived.pipeline.gold):
        table = f"gold.{gold.name}"
        report(at=table, done=number, of=len(tables))
        whole = DerivedSlice(gold, open_source(tables[table]), None, folder)
        found[table] = examine_derived(spark, whole, sources)
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    (dataset,) = arguments

    def work(settings: Settings) -> bool:
        spark = open_session(settings, f"headrace audit {dataset}")
        report(recomputed=recomputed_tables(settings, spark, dataset))
        return True

    return run_reading_job("audit", dataset, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
