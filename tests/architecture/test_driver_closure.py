"""What a driver loads: the transitive imports of each job, those inside functions included, from the syntax trees."""

from __future__ import annotations

import pytest
from source_tree import imports, modules

from include.ground.settings import CLONE

SUPERVISORS = tuple(f"include.{name}." for name in ("run", "change", "cli", "serve"))
JOBS = sorted(f"spark_jobs.jobs.{path.stem}" for path in (CLONE / "spark_jobs/jobs").glob("*_job.py"))


def import_paths(start: str) -> dict[str, tuple[str, ...]]:
    """Return every module that `start` imports, directly or not, with the chain of imports that leads to it.

    Importing `a.b.c` also executes the packages `a` and `a.b`.
    """
    known = {module.name: module for module in modules()}
    chains: dict[str, tuple[str, ...]] = {start: (start,)}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        for _, target in imports(known[name]):
            parts = target.split(".")
            for depth in range(1, len(parts) + 1):
                loaded = ".".join(parts[:depth])
                if loaded in known and loaded not in chains:
                    chains[loaded] = (*chains[name], loaded)
                    waiting.append(loaded)
    return chains


def test_every_job_is_checked() -> None:
    assert {"spark_jobs.jobs.stream_job", "spark_jobs.jobs.slice_job", "spark_jobs.jobs.request_job"} <= set(JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_job_imports_nothing_of_its_supervisors(job: str) -> None:
    chains = import_paths(job)
    assert "include.ground.settings" in chains, "the closure is empty"
    wrong = [" → ".join(chain) for name, chain in chains.items() if f"{name}.".startswith(SUPERVISORS)]
    assert wrong == [], "a driver that loads its supervisor's code fails with it; move what both need to include.state"
