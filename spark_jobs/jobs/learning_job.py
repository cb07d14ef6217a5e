"""Learning job: fits a model of MLlib to the rows of an analysis.

Reads: `rows.parquet` and `declared.json` of the run's folder. Writes: `result/` there. Guarantee: the same rows and
seed give the same result. After a crash: k-means continues after its last iteration, ALS (MLlib cannot start from
factors) from the start; the result is replaced whole. Does not: publish.

Usage: python -m spark_jobs.jobs.learning_job FOLDER. Prints one JSON object: the model's figures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from include.declare.analyses import KMeans, Recommendations
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.learned_models import clustered, recommended
from spark_jobs.jobs.bounded_job import run_job
from spark_jobs.stream.job_progress import report
from spark_jobs.tables.spark_files import write_files


def learn(settings: Settings, folder: Path) -> None:
    """Fit the declared model and write its result."""
    model: TypeAdapter[KMeans | Recommendations] = TypeAdapter(KMeans | Recommendations)
    declared = model.validate_json((folder / "declared.json").read_bytes())
    rows = open_session(settings, f"headrace analysis {folder.parent.name}").read.parquet(str(folder / "rows.parquet"))
    if isinstance(declared, KMeans):
        found, figures = clustered(declared, rows, folder / "centres.json")
    else:
        found, figures = recommended(declared, rows, folder / "checkpoints")
    write_files(found.coalesce(1), folder / "result", "overwrite")
    report(figures=figures)


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    (folder,) = arguments

    def work(settings: Settings) -> bool:
        learn(settings, Path(folder))
        return True

    return run_job("learning", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
