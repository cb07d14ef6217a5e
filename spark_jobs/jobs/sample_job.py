"""Sample job: `headrace try`. Its tables are in a temporary state folder; nothing of the real one is read or written.

Usage: python -m spark_jobs.jobs.sample_job DATASET once|watch FILE…. Prints one JSON object per line: `tried` for each
file; of `watch`, which begins again after each edit of the folder or of a file, at the end of each round `watched`: why
it failed, else "", and `remedy`.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from os import getpid
from pathlib import Path

from include.declare.dataset import declared_dataset
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import begin_session
from spark_jobs.jobs.bounded_job import report, run_job
from spark_jobs.tables.log_lines import error_reason

# A sample is small, and its tables have no other owner: no cluster takes part, and the JVM ends before the optimising
# compiler could pay.
SMALL = {"spark_master": "", "backend": "local"}
QUICK = "-XX:TieredStopAtLevel=1"
LOOK = 0.25
"""Seconds between two looks at the files."""
WATCH = "watch"


def try_samples(settings: Settings, name: str, how: str, *samples: str) -> None:
    """Report the tables of each sample, of `watch` again after each edit."""
    settings = settings.model_copy(update={**SMALL, "driver_jvm": f"{QUICK} {settings.driver_jvm}"})
    opened = begin_session(settings, f"headrace try {name}")
    # To import the rest takes a core as long as the JVM takes the other to start.
    from include.read.memory_database import spill_folder
    from spark_jobs.jobs.tried_sample import tried

    def round_() -> None:
        dataset, spark = declared_dataset(settings, name), opened()
        for number, sample in enumerate(samples):
            state = spill_folder(getpid()) / f"sample-{number}"
            shutil.rmtree(state, ignore_errors=True)
            own = settings.model_copy(update={"state": state})
            report(tried=tried(spark, own, dataset, Path(sample), datetime.now(UTC)), sample=sample)

    if how == WATCH:
        watch([settings.datasets / name, *map(Path, samples)], round_, time.sleep)
    else:
        round_()


def watch(files: Sequence[Path], act: Callable[[], None], sleep: Callable[[float], object]) -> None:
    """Act now and after each edit below `files`, until the process is stopped; a failure is reported."""
    while True:
        seen, why, remedy = edits(files), "", ""
        try:
            act()
        except HeadraceError as error:
            why, remedy = error.what, error.remedy
        except Exception as error:  # noqa: BLE001  (any fault of a folder that is being edited is shown, and mended)
            why = error_reason(error)
        report(watched=why, remedy=remedy)
        while edits(files) == seen:
            sleep(LOOK)


def edits(files: Sequence[Path]) -> dict[str, int]:
    """Return when each file, and each file in a folder, was last written; nothing of one that is gone."""
    found: dict[str, int] = {}
    for each in (each for file in files for each in (file.rglob("*") if file.is_dir() else [file])):
        # An editor replaces a file while it is looked at.
        with suppress(OSError):
            if "__pycache__" not in each.parts and each.is_file():
                found[str(each)] = each.stat().st_mtime_ns
    return found


if __name__ == "__main__":
    sys.exit(run_job("sample", try_samples, *sys.argv[1:]))
