"""Derived build job: computes a shadow release of a derived dataset, over the sources that the published one has used.

Reads: the publication, the sources at its versions. Writes: the release's own gold, and what it would publish.
Guarantee: both releases are over the same source versions, so that their tables can be compared; readers see nothing.
After a crash: the next start computes everything again.

Usage: python -m spark_jobs.jobs.derived_build_job DATASET RELEASE. Prints one JSON object: `built` and `published`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from include.catalog.derived_dataset import released_derived
from include.leases.lease import take_lease
from include.paths import release_lease_path
from include.reading.publication import publication_json, read_publication
from include.settings import Settings
from spark_jobs.engine.derived_run import DerivedRelease
from spark_jobs.engine.job_progress import report
from spark_jobs.engine.spark_session import open_session
from spark_jobs.jobs.bounded_job import run_reading_job


def build(settings: Settings, dataset: str, release: str) -> None:
    """Build the release and report it. Raises LeaseHeld, SourcesGone, GoldFailed."""
    lease = take_lease(settings, release_lease_path(settings, dataset, release), dataset, datetime.now(UTC))
    published = read_publication(settings, dataset)
    spark = open_session(settings, f"headrace shadow {dataset}")
    shadow = DerivedRelease(
        settings, released_derived(settings, dataset, release), spark, lease.epoch, is_published=False
    )
    built = shadow.build(published.sources)
    report(built=publication_json(built), published=publication_json(published))


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    dataset, release = arguments

    def work(settings: Settings) -> bool:
        build(settings, dataset, release)
        return True

    return run_reading_job("shadow", dataset, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
