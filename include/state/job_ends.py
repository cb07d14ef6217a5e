"""Who ended a bounded job on purpose, so that the command that started it does not take it for a crash.

Reads / Writes: `plan-<job>.ended` next to the job's run file, from the end until that command has read it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from include.ground.paths import run_path
from include.ground.settings import Settings
from include.state.json_file import JsonFile, StateFileUnreadable
from include.state.process_states import job_name


@dataclass(frozen=True)
class JobEnd:
    """The command that ended a job, and who gave it; `by` is "" when the command does not know."""

    command: str
    by: str = ""


def job_end_file(settings: Settings, job: str) -> JsonFile[JobEnd]:
    """Return the file that says who ended a job."""
    path = run_path(settings, job_name(job)).with_suffix(".ended")
    return JsonFile(path, JobEnd, f'rm "{path}"', "the job counts as died", durable=False)


def note_job_end(settings: Settings, job: str, end: JobEnd) -> None:
    """Write who ends a job, before it is ended."""
    job_end_file(settings, job).write(end)


def forget_job_end(settings: Settings, job: str) -> None:
    """Remove what is noted about an earlier run of a job."""
    job_end_file(settings, job).remove()


def find_job_end(settings: Settings, job: str) -> JobEnd | None:
    """Return who ended a job, None when nobody did or the file cannot be read."""
    with suppress(StateFileUnreadable):
        return job_end_file(settings, job).read()
    return None
