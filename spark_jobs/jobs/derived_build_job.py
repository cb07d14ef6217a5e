"""Derived build job: computes a shadow release of a derived dataset, over the sources that the published one has used.

Reads: the publication, the sources at its versions. Writes: the release's own gold, and what it would publish.
Guarantee: both releases are over the same source versions, so that their tables can be compared; readers see nothing.
Of a joint plan, the sources that are released too are the new tables at the same batch. Where the columns that the new
release reads came with a later version of a source, it is the published one.
After a crash: the next start computes everything again.

Usage: python -m spark_jobs.jobs.derived_build_job DATASET RELEASE [ORDER]. ORDER is a JSON object: `members` that are
released too; or the `published` publication of this member, and the new tables that it is built `over`. Prints one JSON
object: `built`, `published`, the pins of the members and what readers are `analysed`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from include.declare.derived_dataset import released_derived
from include.ground.paths import release_lease_path, warehouse
from include.ground.settings import Settings
from include.plans.dependants import ANALYSED
from include.read.publication import (
    Publication,
    SourceVersion,
    publication_from_json,
    publication_json,
    read_publication,
    tables_of,
)
from include.state.lease import take_lease
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.reader_analysis import analysed_readers, pin_members
from spark_jobs.jobs.bounded_job import report, run_reading_job
from spark_jobs.layers.derived import source_version
from spark_jobs.stream.derived_run import DerivedRelease


def build(settings: Settings, dataset: str, release: str, order: Mapping[str, Any]) -> None:
    """Build the release and report it. Raises LeaseHeld, SourcesGone, SourcesLackColumns, GoldFailed."""
    lease = take_lease(settings, release_lease_path(settings, dataset, release), dataset, datetime.now(UTC))
    pinned = order.get("published")
    published = publication_from_json(pinned) if pinned else read_publication(settings, dataset)
    over = [publication_from_json(each) for each in order.get("over", ())]
    spark = open_session(settings, f"headrace shadow {dataset}")
    declared = released_derived(settings, dataset, release)
    shadow = DerivedRelease(settings, declared, spark, lease.epoch, is_published=False)
    built = shadow.build(shadow.readable_versions(published.sources, new_versions(settings, over)))
    pins = pin_members(settings, published, order.get("members", ()))
    report(
        built=publication_json(built),
        published=publication_json(published),
        members={name: pin.over(built).to_json() for name, pin in pins.items()},
        analysed=ANALYSED.dump_python(analysed_readers(settings, spark, [*over, built]), mode="json"),
    )


def new_versions(settings: Settings, over: Sequence[Publication]) -> dict[str, SourceVersion]:
    """Return the versions of tables that are released by the same plan."""
    root = warehouse(settings)
    tables = {name: table for each in over for name, table in tables_of(settings, each).items()}
    return {name: source_version(table, root) for name, table in tables.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    dataset, release, *order = arguments

    def work(settings: Settings) -> bool:
        build(settings, dataset, release, json.loads(order[0]) if order else {})
        return True

    return run_reading_job("shadow", dataset, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
