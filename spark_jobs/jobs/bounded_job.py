"""What the jobs of a plan have in common: UTC, an end with the command that started them, and errors told to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from include.errors import HeadraceError
from include.host.java_runtime import find_java
from include.settings import Settings, load_settings
from spark_jobs.engine.status_reporter import end_with_parent, error_reason, log_line, report


def run_job(name: str, act: Callable[[Settings], None]) -> int:
    """Do `act` as the job `name`; return 0 done, 1 failed, 2 refused; why not is told (`telling.tell`)."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        settings = load_settings()
        find_java(os.environ)
        act(settings)
    except HeadraceError as error:
        report(failed=error.what, remedy=error.remedy)
        return 2
    except Exception as error:  # noqa: BLE001  (whatever it was, the plan is told)
        log_line(f"the {name} job failed", error)
        report(failed=error_reason(error))
        return 1
    return 0
