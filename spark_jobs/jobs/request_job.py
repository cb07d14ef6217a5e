"""The obey job: what a plan asks of the owner of a dataset's publication, done while no stream runs.

Reads: the order. Writes: what the stream would have written (live.py), and the answer.
Guarantee: it holds the dataset's lease meanwhile, so it is the owner; the same as the stream between two runs.
After a crash: the order stays; the next owner obeys it.
Does not: refine what has come since, beyond what the order needs.

Usage: obey.py DATASET. Prints a JSON object when it failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from include.catalog.dataset import released_dataset
from include.paths import lease_path
from include.reading.publication import read_publication
from include.settings import Settings
from include.state.owner_requests import pending_request, respond
from spark_jobs.engine.active_releases import open_active_releases
from spark_jobs.engine.spark_session import open_session
from spark_jobs.jobs.bounded_job import run_job
from spark_jobs.layers.bronze_layer import bronze_spec
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.lease import take_lease


def obey(settings: Settings, dataset: str) -> None:
    """Obey the order that waits, if one does, and answer it; LeaseHeld when a stream runs."""
    take_lease(lease_path(settings, dataset), dataset, datetime.now(UTC))
    order = pending_request(settings, dataset)
    if order is None:
        return
    declared = released_dataset(settings, dataset, read_publication(settings, dataset).release)
    spark = open_session(settings, f"headrace obey {order.requester}")
    live = open_active_releases(spark, settings, declared, Table(bronze_spec(settings, dataset)))
    respond(settings, dataset, live.execute(order))


def main(arguments: Sequence[str]) -> int:
    """Do it; return 0 answered, 1 failed, 2 refused."""
    (dataset,) = arguments
    return run_job("obey", lambda settings: obey(settings, dataset))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
