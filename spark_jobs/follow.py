"""The follow job: build a release beside production, up to what readers see; or let readers see it when no stream runs.

Reads: bronze, the publication. Writes: the release's own silver, rejected and gold; with `promote` the publication.
Guarantee: the same tables as the stream would have made, whatever the chunks; production is not touched by a build.
After a crash: started again it goes on with the run that was begun.
Does not: compare, or decide whether readers should see the release.

Usage: follow.py DATASET RELEASE build|promote. Prints one JSON object a line: how far it is, and at the end `built`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from include.catalog.dataset import released_dataset
from include.errors import HeadraceError
from include.places import lease_path
from include.reading.publication import Publication, publication_json, publish, read_publication
from include.settings import Settings, load_settings
from include.supervision.java import find_java
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.lease import take_lease
from spark_jobs.live import Live, bring_up, keep_live, open_live
from spark_jobs.refine import publication_of, refined_batch
from spark_jobs.session import open_session
from spark_jobs.tables import Table
from spark_jobs.telling import log, reason_of

# A build has history before it: larger runs cost less a row, and nobody waits for the first of them.
CHUNK = 2
# What readers see moves on while it is caught up with; behind by no more than a run this long is caught up.
CLOSE_SECONDS = 20.0


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
        if ahead:
            time.sleep(0.2)


def promote(settings: Settings, live: Live) -> None:
    """Let readers see the release; for the holder of the dataset's lease, while no stream runs."""
    dataset = live.release.dataset.name
    seen = read_publication(settings, dataset)
    if seen.release == live.name:
        return
    before = open_live(
        live.release.refinery.spark,
        settings,
        released_dataset(settings, dataset, seen.release),
        live.release.refinery.bronze,
    )
    keep_live(settings, dataset, [live, before])
    bring_up(settings, live, before.release)
    publish(settings, publication_of(settings, live.release, refined_batch(live.release)))


def main(arguments: Sequence[str]) -> int:
    """Do one of both; return 0 done, 1 failed, 2 refused before anything was read, 3 told to stop."""
    dataset, release, verb = arguments
    os.environ["TZ"] = "UTC"
    time.tzset()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = load_settings()
        find_java(os.environ)
        declared = released_dataset(settings, dataset, release)
        read_publication(settings, dataset)
        if verb == "promote":
            take_lease(lease_path(settings, dataset), dataset, datetime.now(UTC))
    except HeadraceError as error:
        tell(failed=error.what, remedy=error.remedy)
        return 2
    try:
        spark = open_session(settings, f"headrace follow {dataset}")
        live = open_live(spark, settings, declared, Table(bronze_spec(settings, dataset)))
        if verb == "promote":
            promote(settings, live)
            return 0
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


def tell(**facts: Any) -> None:
    """Say something to who started the job."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
