"""Stream job: the driver of one dataset, from its source to the publication. Under its lease: `drive_stream.py`.

A crash loses no record and doubles none: the next start completes what was begun (docs/architecture.md §4). SIGTERM
drains the driver at a batch boundary.

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
from spark_jobs.backends.spark_session import begin_session
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
    from spark_jobs.stream.pacing import DriverProcess

    return drive(settings, name, lease, DriverProcess(stop, opened))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
