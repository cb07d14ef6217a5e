"""Audit job: computes silver, rejected and gold again from bronze and compares them with the published rows.

Reads: bronze, the published tables, decisions about records. Writes: temporary files only.
Guarantee: no table is changed; the published versions stay readable while it runs.
After a crash: the next process that opens DuckDB removes the temporary files.
Does not: repair anything.

Usage: python -m spark_jobs.jobs.audit_job DATASET. Prints one JSON object per line: progress, then `recomputed`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from os import getpid

from include.declare.dataset import released_dataset
from include.ground.settings import Settings
from include.read.memory_database import spill_folder
from include.read.publication import read_publication
from spark_jobs.backends.release import pinned_release
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.recompute_history import recompute_history
from spark_jobs.jobs.bounded_job import report, run_reading_job


def audit(settings: Settings, dataset: str) -> None:
    """Recompute what is published of a dataset and report the differences. Raises RowsUnaccounted."""
    published = read_publication(settings, dataset)
    declared = released_dataset(settings, dataset, published.release)
    versions = {name: table.version for name, table in published.tables.items()}
    release = pinned_release(open_session(settings, f"headrace audit {dataset}"), settings, declared, versions)

    def progress(step: str, done: int, of: int) -> None:
        report(at=step, done=done, of=of)

    found = recompute_history(settings, release, published.batch, spill_folder(getpid()) / "recomputed", progress)
    report(recomputed={"release": published.release, "batch": published.batch, **asdict(found)})


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    (dataset,) = arguments

    def work(settings: Settings) -> bool:
        audit(settings, dataset)
        return True

    return run_reading_job("audit", dataset, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
