"""Recomputes the tables of a derived dataset from the sources that its publication names, in a job, for the audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from include.change.bounded_jobs import run_job
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.run.job_process import refuse_running


def recompute_derived(
    settings: Settings, name: str, progress: Callable[[str], object]
) -> tuple[Mapping[str, Mapping[str, Any]], str]:
    """Return what the job found by table (`spark_jobs/jobs/derived_audit_job.py`), and why it found nothing, else "".

    `progress` gets a line for each table. Raises JobRunning.
    """
    job = f"audit-{name}"
    refuse_running(settings, job)

    def report(facts: Mapping[str, Any]) -> None:
        if "at" in facts:
            progress(f"{name}: {facts['at']} from its sources, {facts['done']} of {facts['of']}")

    again = f"headrace audit --dataset {name}"
    try:
        output = run_job(settings, job, name, ("spark_jobs.jobs.derived_audit_job", name), report, again)
    except HeadraceError as error:
        return {}, error.what
    return output.get("recomputed", {}), str(output.get("failed", ""))
