"""Derived audit job: computes the queries of a derived dataset over its published sources and compares every row.

Reads: the publication, its sources at the versions that it names, the published tables. Writes: temporary files only.
Guarantee: rows are compared as sets with repetitions, doubles by their first nine digits.
After a crash: the next process that opens DuckDB removes the temporary files.

Usage: python -m spark_jobs.jobs.derived_audit_job DATASET. Prints one JSON object per line: progress, `recomputed`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import getpid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog.comparable_doubles import DIGITS
from include.catalog.derived_dataset import DerivedGold, released_derived
from include.paths import reading_lock_path
from include.reading.memory_database import spill_folder
from include.reading.publication import read_publication
from include.reading.publication import tables_of as published_tables_of
from include.settings import Settings
from include.state.file_locks import shared_lock
from spark_jobs.engine.job_progress import report
from spark_jobs.engine.spark_session import open_session
from spark_jobs.jobs.bounded_job import run_job
from spark_jobs.layers.derived_gold import query_over
from spark_jobs.layers.derived_sources import open_source, open_sources
from spark_jobs.storage.duckdb_session import parquet_files, write_folder


def recomputed_tables(settings: Settings, spark: SparkSession, name: str) -> dict[str, dict[str, Any]]:
    """Return by table `rows` published, `grains`, rows `missing` in it and `surplus`, and one of these as `sample`.

    Raises PublishedVersionGone when a source has been deleted.
    """
    publication = read_publication(settings, name)
    derived = released_derived(settings, name, publication.release)
    sources = open_sources(settings, derived.pipeline.sources, publication.sources)
    found = {}
    for number, gold in enumerate(derived.pipeline.gold):
        report(at=f"gold.{gold.name}", done=number, of=len(derived.pipeline.gold))
        published = open_source(published_tables_of(settings, publication)[f"gold.{gold.name}"])
        own = spark.newSession()
        expected = query_over(own, gold.query, {source: each.all_rows(own) for source, each in sources.items()})
        found[f"gold.{gold.name}"] = _compared(gold, published.all_rows(own), expected)
    return found


def _compared(gold: DerivedGold, published: DataFrame, expected: DataFrame) -> dict[str, Any]:
    columns = expected.columns
    rows, fresh = _comparable(published, columns), _comparable(expected, columns)
    surplus, missing = rows.exceptAll(fresh), fresh.exceptAll(rows)
    sample = spill_folder(getpid()) / f"sample-{gold.name}"
    write_folder(missing.unionByName(surplus).select(*gold.grain).limit(1), sample)
    return {
        "rows": published.count(),
        "grains": published.select(*gold.grain).distinct().count(),
        "missing": missing.count(),
        "surplus": surplus.count(),
        "sample": _first_row(sample),
    }


def _first_row(folder: Path) -> str:
    found = [row for path in parquet_files(folder) for row in pq.read_table(path).to_pylist()]
    return ", ".join(f"{name}={value}" for name, value in found[0].items()) if found else ""


def _comparable(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    doubles = {field.name for field in rows.schema.fields if field.dataType.typeName() in ("double", "float")}
    rounded = f"%.{DIGITS - 1}e"
    # -0.0 + 0.0 is 0.0.
    return rows.select(
        *[F.format_string(rounded, F.col(c) + 0.0).alias(c) if c in doubles else F.col(c) for c in columns]
    )


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    (dataset,) = arguments

    def work(settings: Settings) -> bool:
        with shared_lock(reading_lock_path(settings, dataset)):
            spark = open_session(settings, f"headrace audit {dataset}")
            report(recomputed=recomputed_tables(settings, spark, dataset))
        return True

    return run_job("audit", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
