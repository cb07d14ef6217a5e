"""The frame of the slice jobs: which slice of a plan they recompute, and how they report it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from pyspark.sql import SparkSession

from include.declare.history_slice import Slice
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.read.publication import Publication
from include.state.release_files import PlanBuild, planned_slice_file
from spark_jobs.backends.spark_session import open_session
from spark_jobs.jobs.bounded_job import run_reading_job
from spark_jobs.stream.job_progress import report

Rebuild = Callable[[Settings, SparkSession, str, str], PlanBuild]
"""Recomputes the slice of a dataset's plan."""


class OtherRelease(Terminal):
    """The plan is about a release that is not published any more."""

    def __init__(self, plan: str, planned: str, published: str) -> None:
        super().__init__(
            f"plan {plan} is about release {planned}, and release {published} is published now; nothing was built",
            f"headrace plan cancel {plan}, then plan it again",
        )
        self.plan, self.published = plan, published


def planned_slice(settings: Settings, plan: str, published: Publication) -> Slice:
    """Return the slice of a plan. Raises OtherRelease, and Terminal without the plan's file."""
    planned = planned_slice_file(settings, plan).read()
    if planned is None:
        raise Terminal(f"plan {plan} has no plan.json; nothing was built", "headrace plan list")
    if published.release != planned.release:
        raise OtherRelease(plan, planned.release, published.release)
    return planned.slice


def run_slice_job(arguments: Sequence[str], rebuild: Rebuild) -> int:
    """Run a slice job for a dataset and a plan; return its exit code (`bounded_job.py`)."""
    dataset, plan = arguments

    def work(settings: Settings) -> bool:
        report(built=asdict(rebuild(settings, open_session(settings, f"headrace slice {plan}"), dataset, plan)))
        return True

    return run_reading_job("slice", dataset, work)
