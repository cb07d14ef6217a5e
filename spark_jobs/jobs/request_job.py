"""Request job: executes a pending owner request while no stream runs.

Reads: the owner request. Writes: what the driver would write for it (`requests.py`), and the response.
Guarantee: it holds the dataset's lease, so it is the only owner; the result is that of a running driver.
After a crash: the request stays pending, and the next owner executes it.
Does not: refine batches beyond those that the request needs.

Usage: python -m spark_jobs.jobs.request_job DATASET. Prints a JSON object when it fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from include.declare.dataset import released_dataset
from include.declare.derived_dataset import derived_names, released_derived
from include.ground.errors import Terminal
from include.ground.paths import lease_path
from include.ground.settings import Settings
from include.plans.dependants import is_due
from include.read.publication import read_publication
from include.state.lease import take_lease
from include.state.owner_requests import OwnerRequest, pending_request, respond
from spark_jobs.backends.release import claim_tables, open_bronze
from spark_jobs.backends.spark_session import open_session
from spark_jobs.jobs.bounded_job import run_job
from spark_jobs.stream.active_releases import open_active_releases
from spark_jobs.stream.derived_loop import execute_derived
from spark_jobs.stream.derived_run import DerivedRelease
from spark_jobs.stream.preflight import fence_earlier_owner
from spark_jobs.stream.requests import execute


class RequestTooEarly(Terminal):
    """Datasets that have to move first have not moved."""

    def __init__(self, dataset: str, request: OwnerRequest) -> None:
        super().__init__(
            f"{dataset}: {', '.join(request.after)} must be published first; nothing was changed",
            f"headrace plan apply {request.plan}",
        )


def execute_pending(settings: Settings, dataset: str) -> bool:
    """Execute the pending request, if there is one, and respond. Raises LeaseHeld when a stream runs."""
    lease = take_lease(settings, lease_path(settings, dataset), dataset, datetime.now(UTC))
    request = pending_request(settings, dataset)
    if request is None:
        return True
    if not is_due(settings, request):
        raise RequestTooEarly(dataset, request)
    fence_earlier_owner(settings, dataset, lease.epoch)
    if dataset in derived_names(settings):
        _execute_derived(settings, dataset, request, lease.epoch)
        return True
    declared = released_dataset(settings, dataset, read_publication(settings, dataset).release)
    spark = open_session(settings, f"headrace request of {request.requester}")
    bronze = open_bronze(settings, dataset)
    claim_tables([bronze], lease)
    active = open_active_releases(spark, settings, declared, bronze)
    respond(settings, dataset, execute(active, request))
    return True


def _execute_derived(settings: Settings, dataset: str, request: OwnerRequest, epoch: int) -> None:
    declared = released_derived(settings, dataset, read_publication(settings, dataset).release)
    spark = open_session(settings, f"headrace request of {request.requester}")
    release = DerivedRelease(settings, declared, spark, epoch)
    respond(settings, dataset, execute_derived(release, request)[1])


def main(arguments: Sequence[str]) -> int:
    """Run the job; return its exit code (`bounded_job.py`)."""
    (dataset,) = arguments
    return run_job("request", lambda settings: execute_pending(settings, dataset))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
