"""Stream job: the driver of one dataset, from Kafka to the publication.

Reads: the dataset's topic. Writes: bronze, silver, rejected, gold, the publication, the ledger.
Guarantee: every record of the topic is in bronze once, and in silver or rejected once (docs/architecture.md §4).
After a crash: the next start completes what was begun and continues; no record is lost or duplicated.

Two threads of work (stream/adr-0001): Spark's commits bronze (`ingest.py`), the main thread refines (`driver_loop.py`).
SIGTERM drains both at a batch boundary. A derived dataset has no topic: its driver follows the publications of its
sources (`derived_loop.py`). What it does under its lease: `drive_stream.py`.

Usage: python -m spark_jobs.jobs.stream_job DATASET
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from include.ground.errors import HeadraceError
from include.ground.paths import lease_path
from include.ground.processes import stop_on
from include.ground.settings import load_settings
from include.state.lease import LeaseRole, take_lease
from spark_jobs.backends.session_start import begin_session
from spark_jobs.jobs.bounded_job import FAILED, REFUSED, use_utc
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.log_lines import log_line


def main(arguments: Sequence[str]) -> int:
    """Run the driver of one dataset; return DONE drained, FAILED, or REFUSED before its loop began."""
    (name,) = arguments
    use_utc()
    stop = stop_on(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = load_settings()
        lease = take_lease(settings, lease_path(settings, name), name, datetime.now(UTC), LeaseRole.STREAM)
    except HeadraceError as error:
        log_line(str(error))
        return REFUSED
    except OSError as error:
        log_line(f"{name}: the lease cannot be taken: {error}; nothing was started")
        return FAILED
    pass_step(Step.LEASED)
    opened = begin_session(settings, f"headrace {name}")
    # To import the rest takes a core as long as the JVM takes the other to start.
    from spark_jobs.jobs.drive_stream import drive

    return drive(settings, name, lease, stop, opened)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
