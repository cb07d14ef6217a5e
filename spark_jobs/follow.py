"""The follow job: build a release beside production, up to what readers see; or let readers see it when no stream runs.

Reads: bronze, the publication. Writes: the release's own silver, rejected and gold; with `promote` the publication.
Guarantee: the same tables as the stream would have made, whatever the chunks; production is not touched by a build.
After a crash: started again it goes on with the run that was begun.
Does not: compare, or decide whether readers should see the release.

Usage: follow.py DATASET RELEASE build|promote. Prints one JSON object a line: how far it is, and at the end `built`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from include.catalog.dataset import released_dataset
from include.errors import HeadraceError
from include.places import lease_path
from include.reading.publication import Publication, publication_json, read_publication
from include.settings import Settings, load_settings
from include.supervision.java import find_java
from include.supervision.orders import withdraw_order
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.lease import take_lease
from spark_jobs.live import Live, open_all, open_live
from spark_jobs.refine import publication_of, refined_batch
from spark_jobs.session import open_session
from spark_jobs.tables import Table
from spark_jobs.telling import log, reason_of

# A build has history before it: larger runs cost less a row, and nobody waits for the first of them.
CHUNK = 2
# What readers see moves on while it is caught up with; behind by no more than a run this long is caught up.
CLOSE_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


def build(settings: Settings, live: Live, stop: threading.Event) -> Publication | None:
    """Bring the release up to a batch that readers see; return what they saw then, None when told to stop."""
    name, bronze = live.release.dataset.name, live.release.refinery.bronze
    while True:
        seen, began = read_publication(settings, name), time.monotonic()
        bronze.follow()
        while refined_batch(live.release) < seen.batch:
            if stop.is_set():
                return None
            report = live.refine_next(settings, seen.batch, publishing=False, most_rows=CHUNK * settings.refine_records)
            if report is not None:
                tell(batch=report.batches[1], of=seen.batch, rows=report.rows, seconds=sum(report.steps.values()))
        ahead = refined_batch(live.release) > seen.batch
        if not ahead and time.monotonic() - began < CLOSE_SECONDS:
            return seen
        if stop.wait(0.2):
            return None


def promote(settings: Settings, dataset: str, release: str, bronze: Table, spark: SparkSession) -> None:
    """Let readers see the release; for the holder of the dataset's lease, while no stream runs."""
    seen = released_dataset(settings, dataset, read_publication(settings, dataset).release)
    open_all(spark, settings, seen, bronze).promote(release)


def main(arguments: Sequence[str]) -> int:
    """Do one of both; return 0 done, 1 failed, 2 refused before anything was read, 3 told to stop."""
    dataset, release, verb = arguments
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
        if verb == "promote":
            take_lease(lease_path(settings, dataset), dataset, datetime.now(UTC))
            # Whatever was asked of the stream before: this job does what is asked now.
            withdraw_order(settings, dataset)
    except HeadraceError as error:
        tell(failed=error.what, remedy=error.remedy)
        return 2
    try:
        spark = open_session(settings, f"headrace follow {dataset}")
        bronze = Table(bronze_spec(settings, dataset))
        if verb == "promote":
            promote(settings, dataset, release, bronze, spark)
            return 0
        live = open_live(spark, settings, declared, bronze)
        seen = build(settings, live, stop)
        if seen is None:
            return 3
        built = publication_of(settings, live.release, seen.batch)
    except Exception as error:  # noqa: BLE001  (whatever it was, the plan is told)
        log("the follow job failed", error)
        tell(failed=reason_of(error), remedy=error.remedy if isinstance(error, HeadraceError) else "")
        return 1
    tell(built=publication_json(built), seen=publication_json(seen))
    return 0


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the plan's command is gone: nobody would hear what this job says (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def tell(**facts: Any) -> None:
    """Say something to who started the job."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
