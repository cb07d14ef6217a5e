"""Shadow job: builds a release that is not published: from bronze up to the published batch, or from its sources.

The tables are those that the stream would write, however large its runs are; production is not touched. After a crash
the next start finishes the run that was begun, and continues; a derived dataset is computed again.

Usage: python -m spark_jobs.jobs.shadow_job DATASET RELEASE ORDER. ORDER is a JSON object: the `members` that are
released too; or the `published` publication of this member, and the new tables that it is built `over`. Prints one
JSON object per line: progress, then `built`, `published`, the pins of the members and what readers are `analysed`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from include.declare.dataset import Dataset, released_dataset
from include.declare.derived_dataset import released_derived
from include.ground.paths import release_lease_path, warehouse
from include.ground.processes import stop_on
from include.ground.settings import Settings
from include.plans.dependants import ANALYSED, Analysed
from include.read.publication import (
    Publication,
    SourceVersion,
    batches_behind,
    publication_from_json,
    publication_json,
    read_publication,
    tables_of,
)
from include.state.lease import take_lease
from spark_jobs.backends.release import BronzeEnd, open_bronze
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.reader_analysis import Pin, analysed_readers, pin_members
from spark_jobs.jobs.bounded_job import report, run_reading_job
from spark_jobs.layers.derived import source_version
from spark_jobs.stream.active_releases import ActiveRelease, open_active_release
from spark_jobs.stream.derived import DerivedRelease
from spark_jobs.stream.refine import is_ahead, publication_of, refresh_up_to

# The stream publishes while the shadow catches up; a last pass shorter than this counts as caught up.
CAUGHT_UP_SECONDS = 20.0


def catch_up(settings: Settings, shadow: ActiveRelease, stop: threading.Event) -> Publication | None:
    """Advance the shadow to a published batch; return that publication, None when stopped."""
    name, bronze = shadow.release.dataset.name, shadow.release.writer.bronze
    while True:
        published, began = read_publication(settings, name), time.monotonic()
        bronze.advance()
        if not advance(settings, shadow, published.batch, stop):
            return None
        # Both sides of the comparison hold the same batches, also in tables that are behind.
        behind = batches_behind(published)
        ahead = shadow.release.refined_batch > published.batch or is_ahead(shadow.release, behind)
        if not ahead and time.monotonic() - began < CAUGHT_UP_SECONDS:
            refresh_up_to(shadow.release, shadow.lease.epoch, behind, time.time())
            return published
        if stop.wait(0.2):
            return None


def advance(settings: Settings, shadow: ActiveRelease, last: int, stop: threading.Event) -> bool:
    """Advance the shadow to batch `last`, each run validated during the one before; return False when stopped.

    A stop waits for the current run and, if it has begun, the validation of the next one.
    """

    def bronze_end() -> BronzeEnd:
        return BronzeEnd(-1 if stop.is_set() else last)

    while shadow.release.refined_batch < last:
        if stop.is_set():
            if shadow.validated is not None:
                shadow.validated.remove()
            return False
        run = shadow.refine_next(settings, last, publishing=False, refreshing=False, bronze_end=bronze_end)
        if run is not None:
            report(at="batches", done=run.batches[1] + 1, of=last + 1)
    return True


def build(settings: Settings, dataset: str, release: str, order: Mapping[str, Any], stop: threading.Event) -> bool:
    """Build the release and report it; return False when stopped. Raises LeaseHeld, and what the builds raise."""
    pinned = order.get("published")
    # Raises before Spark starts when nothing is published.
    published = publication_from_json(pinned) if pinned else read_publication(settings, dataset)
    spark = open_session(settings, f"headrace shadow {dataset}")
    found: Mapping[str, Any] | None
    if published.is_derived:
        found = built_from_sources(settings, spark, release, published, order)
    else:
        found = built_from_bronze(settings, spark, released_dataset(settings, dataset, release), order, stop)
    if found is not None:
        report(**found)
    return found is not None


def built_from_bronze(
    settings: Settings, spark: SparkSession, declared: Dataset, order: Mapping[str, Any], stop: threading.Event
) -> Mapping[str, Any] | None:
    """Build a release of a dataset with a topic up to the published batch; return the facts, None when stopped."""
    shadow = open_active_release(spark, settings, declared, open_bronze(settings, declared.name))
    published = catch_up(settings, shadow, stop)
    if published is None:
        return None
    built = publication_of(settings, shadow.release, published.batch)
    pins = pin_members(settings, published, order.get("members", ()))
    shadow.release.writer.bronze.advance()
    # A run ends at each of these batches, so the tables have a version for each.
    for batch in sorted({pin.batch_of_source for pin in pins.values()}):
        if not advance(settings, shadow, batch, stop):
            return None
        over = built if batch <= built.batch else publication_of(settings, shadow.release, batch)
        pins |= {name: pin.over(over) for name, pin in pins.items() if pin.batch_of_source == batch}
    return _facts(built, published, pins, analysed_readers(settings, spark, [built]))


def built_from_sources(
    settings: Settings, spark: SparkSession, release: str, published: Publication, order: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Compute a release of a derived dataset, over the sources that the published one has used; return the facts.

    Of a joint plan, the sources that are released too are the new tables at the same batch. Where the columns that the
    new release reads came with a later version of a source, it is the published one.
    Raises SourcesGone, SourcesLackColumns, GoldFailed.
    """
    dataset, over = published.dataset, [publication_from_json(each) for each in order.get("over", ())]
    lease = take_lease(settings, release_lease_path(settings, dataset, release), dataset, datetime.now(UTC))
    declared = released_derived(settings, dataset, release)
    shadow = DerivedRelease(settings, declared, spark, lease, is_published=False)
    built = shadow.build(shadow.readable_versions(published.sources, new_versions(settings, over)))
    pins = {name: pin.over(built) for name, pin in pin_members(settings, published, order.get("members", ())).items()}
    return _facts(built, published, pins, analysed_readers(settings, spark, [*over, built]))


def new_versions(settings: Settings, over: Sequence[Publication]) -> dict[str, SourceVersion]:
    """Return the versions of tables that are released by the same plan."""
    root = warehouse(settings)
    tables = {name: table for each in over for name, table in tables_of(settings, each).items()}
    return {name: source_version(table, root) for name, table in tables.items()}


def _facts(
    built: Publication, published: Publication, pins: Mapping[str, Pin], analysed: dict[str, Analysed]
) -> Mapping[str, Any]:
    return {
        "built": publication_json(built),
        "published": publication_json(published),
        "members": {name: pin.to_json() for name, pin in pins.items()},
        "analysed": ANALYSED.dump_python(analysed, mode="json"),
    }


if __name__ == "__main__":
    name, number, order = sys.argv[1:]
    work = partial(build, order=json.loads(order), stop=stop_on(signal.SIGTERM))
    sys.exit(run_reading_job("shadow", work, name, number))
