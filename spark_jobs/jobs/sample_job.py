"""Sample job: `headrace try`. Its tables are in a temporary state folder; nothing of the real one is read or written.

Usage: python -m spark_jobs.jobs.sample_job DATASET FILE…. Prints one JSON object per line: `tried` for each file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from os import getpid
from pathlib import Path

from include.declare.dataset import declared_dataset
from include.ground.settings import Settings
from spark_jobs.backends.session_start import begin_session
from spark_jobs.jobs.bounded_job import report, run_job

# A sample is small, and its tables have no other owner: no cluster takes part, and the JVM ends before the optimising
# compiler could pay.
SMALL = {"spark_master": "", "backend": "local"}
QUICK = "-XX:TieredStopAtLevel=1"


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    name, *samples = arguments

    def work(settings: Settings) -> bool:
        settings = settings.model_copy(update={**SMALL, "driver_jvm": f"{QUICK} {settings.driver_jvm}"})
        opened = begin_session(settings, f"headrace try {name}")
        # To import the rest takes a core as long as the JVM takes the other to start.
        from include.read.memory_database import spill_folder
        from spark_jobs.jobs.tried_sample import tried

        dataset, spark = declared_dataset(settings, name), opened()
        for number, sample in enumerate(samples):
            state = spill_folder(getpid()) / f"sample-{number}"
            own = settings.model_copy(update={"state": state})
            report(tried=tried(spark, own, dataset, Path(sample), datetime.now(UTC)), sample=sample)
        return True

    return run_job("sample", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
