"""The follow job: build a release beside production, up to what readers see.

Reads: bronze, the publication. Writes: the release's own silver, rejected and gold.
Guarantee: the same tables as the stream would have made, whatever the chunks; production is not touched.
After a crash: started again it goes on with the run that was begun.
Does not: compare, or let readers see the release (obey.py, or the stream).

Usage: follow.py DATASET RELEASE. Prints one JSON object a line: how far it is, and at the end `built`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from include.catalog.dataset import released_dataset
from include.errors import HeadraceError
from include.host.java_runtime import find_java
from include.reading.publication import Publication, publication_json, read_publication
from include.settings import Settings, load_settings
from spark_jobs.engine.active_releases import ActiveRelease, open_active_release
from spark_jobs.engine.refine import publication_of, refined_batch
from spark_jobs.engine.spark_session import open_session
from spark_jobs.engine.status_reporter import end_with_parent, error_reason, log_line, report
from spark_jobs.layers.bronze_layer import bronze_spec
from spark_jobs.storage.delta_table import Table

# A build has history before it: larger runs cost less a row, and nobody waits for the first of them.
CHUNK = 2
# What readers see moves on while it is caught up with; behind by no more than a run this long is caught up.
CLOSE_SECONDS = 20.0


def build(settings: Settings, live: ActiveRelease, stop: threading.Event) -> Publication | None:
    """Bring the release up to a batch that readers see; return what they saw then, None when told to stop."""
    name, bronze = live.release.dataset.name, live.release.writer.bronze
    while True:
        seen, began = read_publication(settings, name), time.monotonic()
        bronze.follow()
        while refined_batch(live.release) < seen.batch:
            if stop.is_set():
                return None
            run = live.refine_next(settings, seen.batch, publishing=False, most_rows=CHUNK * settings.refine_records)
            if run is not None:
                report(at="batches", done=run.batches[1] + 1, of=seen.batch + 1)
        ahead = refined_batch(live.release) > seen.batch
        if not ahead and time.monotonic() - began < CLOSE_SECONDS:
            return seen
        if stop.wait(0.2):
            return None


def main(arguments: Sequence[str]) -> int:
    """Build; return 0 done, 1 failed, 2 refused before anything was read, 3 told to stop."""
    dataset, release = arguments
    os.environ["TZ"] = "UTC"
    time.tzset()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        settings = load_settings()
        find_java(os.environ)
        declared = released_dataset(settings, dataset, release)
        read_publication(settings, dataset)
    except HeadraceError as error:
        report(failed=error.what, remedy=error.remedy)
        return 2
    try:
        spark = open_session(settings, f"headrace follow {dataset}")
        live = open_active_release(spark, settings, declared, Table(bronze_spec(settings, dataset)))
        seen = build(settings, live, stop)
        if seen is None:
            return 3
        built = publication_of(settings, live.release, seen.batch)
    except Exception as error:  # noqa: BLE001  (whatever it was, the plan is told)
        log_line("the follow job failed", error)
        report(failed=error_reason(error), remedy=error.remedy if isinstance(error, HeadraceError) else "")
        return 1
    report(built=publication_json(built), seen=publication_json(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
