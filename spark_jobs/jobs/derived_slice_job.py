"""Derived slice job: recomputes a range of a derived dataset from the sources that its publication names.

Reads: the publication, the sources at its versions, the published tables. Writes: the plan's folder of rows only.
Guarantee: published and recomputed rows are over the same versions of the sources.
After a crash: the next start begins again; no table was changed.
Does not: judge the difference, or change a table.

Usage: python -m spark_jobs.jobs.derived_slice_job DATASET PLAN. Prints JSON objects: progress, then `built`.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from include.declare.derived_dataset import released_derived
from include.declare.grain_range import GrainRange, grain_range
from include.declare.history_slice import Slice
from include.ground.paths import patch_path
from include.ground.settings import Settings
from include.read.publication import read_publication, tables_of
from include.read.published_tables import open_dataset
from include.state.release_files import PlanBuild, plan_build_file
from spark_jobs.backends.local.arrow_files import rows_in_folder
from spark_jobs.history.rebuild_derived import DerivedSlice, published_sources, rebuild_derived
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.jobs.bounded_job import planned_slice, report, run_slice_job
from spark_jobs.layers.derived import open_source
from spark_jobs.tables.failpoints import Step, pass_step


def rebuild(settings: Settings, spark: SparkSession, dataset: str, plan: str) -> PlanBuild:
    """Recompute the plan's range; return the content of `built.json`, which is written last.

    Raises OtherRelease, SourcesGone.
    """
    read_at, began = datetime.now(UTC), time.monotonic()
    published = read_publication(settings, dataset)
    requested = planned_slice(settings, plan, published)
    derived = released_derived(settings, dataset, published.release)
    sources = published_sources(settings, derived, published)
    folder = PlanFolder(patch_path(settings, dataset, published.release, plan))
    shutil.rmtree(folder.path, ignore_errors=True)
    differing, rows, tables = dict[str, int](), 0, tables_of(settings, published)
    for done, gold in enumerate(derived.pipeline.gold):
        table = tables[f"gold.{gold.name}"]
        report(at=table.name, done=done, of=len(tables))
        inside = _inside(requested, gold.grain, open_dataset(table).schema)
        differing[table.name] = rebuild_derived(spark, DerivedSlice(gold, open_source(table), inside, folder), sources)
        rows += rows_in_folder(folder.rows("after", table.name))
        pass_step(Step.SLICE_REBUILT)
    built = PlanBuild(
        attempt=uuid4().hex,
        batch=published.batch,
        filled=0,
        read_at_ms=int(read_at.timestamp() * 1000),
        release=published.release,
        records=rows,
        differing=differing,
        seconds=round(time.monotonic() - began, 1),
    )
    shutil.rmtree(folder.path / "_staging", ignore_errors=True)
    plan_build_file(settings, dataset, published.release, plan).write(built)
    return built


def _inside(requested: Slice, grain: Sequence[str], schema: Any) -> GrainRange | None:
    if requested.since is None or requested.until is None:
        return None
    return grain_range(grain, schema, requested.since, requested.until)


if __name__ == "__main__":
    sys.exit(run_slice_job(sys.argv[1:], rebuild))
