"""Runs a bounded job: UTC, SIGTERM, failures reported to the command that started it, exit code."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from include.ground.errors import HeadraceError
from include.ground.java import find_java
from include.ground.paths import reading_lock_path
from include.ground.settings import Settings, load_settings
from include.read.publication import find_publication
from include.state.lease import shared_lock
from spark_jobs.tables.log_lines import error_reason, log_line


def report(**facts: Any) -> None:
    """Report facts to the command that started this job."""
    print(json.dumps(facts), flush=True)


DONE, FAILED, REFUSED, STOPPED = 0, 1, 2, 3


def use_utc() -> None:
    """Set the process's time zone: PySpark converts timestamps to Python in it."""
    os.environ["TZ"] = "UTC"
    time.tzset()


def run_job(name: str, act: Callable[..., bool | None], *arguments: str) -> int:
    """Run `act` with the settings and the arguments as the job `name`, report a failure, and return the exit code.

    STOPPED when `act` returns False, DONE for anything else, REFUSED after a HeadraceError, else FAILED.
    """
    use_utc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = load_settings()
        find_java(os.environ)
        return STOPPED if act(settings, *arguments) is False else DONE
    except HeadraceError as error:
        report(failed=error.what, remedy=error.remedy)
        return REFUSED
    except Exception as error:  # noqa: BLE001  (the command that waits for this job must learn the reason)
        log_line(f"the {name} job failed", error)
        report(failed=error_reason(error))
        return FAILED


def run_reading_job(name: str, act: Callable[..., bool | None], dataset: str, *arguments: str) -> int:
    """As `run_job`, while no owner deletes files that the dataset's publication needs."""

    def work(settings: Settings) -> bool | None:
        with files_kept(settings, dataset):
            return act(settings, dataset, *arguments)

    return run_job(name, work)


@contextmanager
def files_kept(settings: Settings, dataset: str) -> Iterator[None]:
    """Hold the reading locks of a dataset and, of a derived one, of the datasets whose tables it is computed from."""
    published = find_publication(settings, dataset)
    sources = published.sources.values() if published else ()
    with ExitStack() as held:
        # The path of a source begins with its dataset's folder.
        for name in sorted({dataset, *(Path(source.path).parts[0] for source in sources)}):
            held.enter_context(shared_lock(reading_lock_path(settings, name)))
        yield
