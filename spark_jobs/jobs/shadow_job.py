"""Shadow job: builds a shadow release up to the published batch.

Reads: bronze, the publication. Writes: the release's own silver, rejected and gold.
Guarantee: the same tables as the stream would write, however large its runs are; production is not touched.
After a crash: the next start finishes the run that was begun, and continues.
Does not: compare the release, or publish it (`requests.py`).

Usage: python -m spark_jobs.jobs.shadow_job DATASET RELEASE [MEMBER…]. Prints one JSON object per line: progress, then
`built`; with derived datasets that are released too, the members, what each is compared with and built over.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence

from include.declare.dataset import released_dataset
from include.ground.processes import stop_on
from include.ground.settings import Settings
from include.plans.dependants import ANALYSED
from include.read.publication import Publication, batches_behind, publication_json, read_publication
from spark_jobs.backends.release import BronzeEnd, open_bronze, refined_batch
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.reader_analysis import analysed_readers, pin_members
from spark_jobs.jobs.bounded_job import report, run_reading_job
from spark_jobs.stream.active_releases import ActiveRelease, open_active_release
from spark_jobs.stream.publication import publication_of
from spark_jobs.stream.refine import is_ahead, refresh_up_to

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
        ahead = refined_batch(shadow.release) > published.batch or is_ahead(shadow.release, behind)
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

    while refined_batch(shadow.release) < last:
        if stop.is_set():
            if shadow.validated is not None:
                shadow.validated.remove()
            return False
        run = shadow.refine_next(settings, last, publishing=False, refreshing=False, bronze_end=bronze_end)
        if run is not None:
            report(at="batches", done=run.batches[1] + 1, of=last + 1)
    return True


def build(settings: Settings, dataset: str, release: str, stop: threading.Event, members: Sequence[str] = ()) -> bool:
    """Build the release and report it; return False when stopped. Raises LeaseHeld, and errors of `refine`."""
    declared = released_dataset(settings, dataset, release)
    # Raises before Spark starts when nothing is published.
    read_publication(settings, dataset)
    spark = open_session(settings, f"headrace shadow {dataset}")
    shadow = open_active_release(spark, settings, declared, open_bronze(settings, dataset))
    published = catch_up(settings, shadow, stop)
    if published is None:
        return False
    built = publication_of(settings, shadow.release, published.batch)
    pins = pin_members(settings, published, members)
    shadow.release.writer.bronze.advance()
    # A run ends at each of these batches, so the tables have a version for each.
    for batch in sorted({pin.batch_of_source for pin in pins.values()}):
        if not advance(settings, shadow, batch, stop):
            return False
        over = built if batch <= built.batch else publication_of(settings, shadow.release, batch)
        pins |= {name: pin.over(over) for name, pin in pins.items() if pin.batch_of_source == batch}
    report(
        built=publication_json(built),
        published=publication_json(published),
        members={name: pin.to_json() for name, pin in pins.items()},
        analysed=ANALYSED.dump_python(analysed_readers(settings, spark, [built]), mode="json"),
    )
    return True


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    dataset, release, *members = arguments
    stop = stop_on(signal.SIGTERM)

    def work(settings: Settings) -> bool:
        return build(settings, dataset, release, stop, members)

    return run_reading_job("shadow", dataset, work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
