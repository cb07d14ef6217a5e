"""Runs a bounded job: UTC, SIGTERM, failures reported to the command that started it, exit code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from include.errors import HeadraceError
from include.host.java_runtime import find_java
from include.settings import Settings, load_settings
from spark_jobs.engine.job_progress import report
from spark_jobs.engine.log_lines import error_reason, log_line

DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 3


def use_utc() -> None:
    """Set the process's time zone: PySpark converts timestamps to Python in it."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def run_job(name: str, act: Callable[[Settings], bool]) -> int:
    """Run `act` as the job `name`, report a failure, and return the exit code.

    DONE when `act` returns True, STOPPED when it returns False, REFUSED after a HeadraceError, else FAILED.
    """
    use_utc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = load_settings()
        find_java(os.environ)
        return DONE if act(settings) else STOPPED
    except HeadraceError as error:
        report(failed=error.what, remedy=error.remedy)
        return REFUSED
    except Exception as error:  # noqa: BLE001  (the command that waits for this job must learn the reason)
        log_line(f"the {name} job failed", error)
        report(failed=error_reason(error))
        return FAILED
