"""Request job: executes a pending owner request while no stream runs.

It holds the dataset's lease, so it is the only owner, and does what a running driver would do. After a crash the
request stays pending, and the next owner executes it.

Usage: python -m spark_jobs.jobs.request_job DATASET. Prints a JSON object when it fails.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from include.declare.dataset import released_dataset
from include.declare.derived_dataset import derived_names
from include.ground.errors import Refused
from include.ground.paths import lease_path
from include.ground.settings import Settings
from include.plans.dependants import is_due
from include.read.fetch_dataset import own_in_store
from include.read.publication import read_publication
from include.state.lease import Lease, take_lease
from include.state.owner_requests import OwnerRequest, pending_request, respond
from spark_jobs.backends.release import claim_tables, open_bronze
from spark_jobs.backends.spark_session import open_session
from spark_jobs.jobs.bounded_job import run_job
from spark_jobs.stream.active_releases import open_active_releases
from spark_jobs.stream.derived import open_derived
from spark_jobs.stream.preflight import fence_earlier_owner
from spark_jobs.stream.requests import Owned


def execute_pending(settings: Settings, dataset: str) -> None:
    """Execute the pending request, if there is one, and respond. Raises LeaseHeld when a stream runs."""
    lease = take_lease(settings, lease_path(settings, dataset), dataset, datetime.now(UTC))
    request = pending_request(settings, dataset)
    if request is None:
        return
    if not is_due(settings, request):
        raise Refused(
            f"{dataset}: {', '.join(request.after)} must be published first; nothing was changed",
            f"headrace plan apply {request.plan}",
            code="request-too-early",
            dataset=dataset,
        )
    own_in_store(settings, dataset, datetime.now(UTC))
    fence_earlier_owner(settings, dataset, lease.epoch)
    respond(settings, dataset, opened(settings, dataset, request, lease).answer(request))


def opened(settings: Settings, dataset: str, request: OwnerRequest, lease: Lease) -> Owned:
    """Open what the dataset's owner owns, a patch that was begun finished."""
    name = f"headrace request of {request.requester}"
    if dataset in derived_names(settings):
        read_publication(settings, dataset)
        owned = open_derived(settings, dataset, open_session(settings, name), lease)
        owned.resume_patch()
        return owned
    declared = released_dataset(settings, dataset, read_publication(settings, dataset).release)
    spark, bronze = open_session(settings, name), open_bronze(settings, dataset)
    claim_tables([bronze], lease)
    return open_active_releases(spark, settings, declared, bronze)


if __name__ == "__main__":
    sys.exit(run_job("request", execute_pending, *sys.argv[1:]))
