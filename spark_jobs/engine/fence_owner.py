"""A new owner of a dataset fences the previous one, which may have been stopped in the middle of a commit."""

from __future__ import annotations

from include.paths import bronze_path
from include.reading.publication import fence_publication
from include.settings import Settings
from spark_jobs.storage.claim_tables import take_over_tables


def fence_earlier_owner(settings: Settings, dataset: str, epoch: int) -> None:
    """Take over bronze and the publication; a release takes its tables over when they are opened.

    Only leases that expire need a claim, and a publication that fails: a file lock is free only when its holder has
    ended.
    """
    if settings.lease_url:
        fence_publication(settings, dataset)
    take_over_tables([bronze_path(settings, dataset)], epoch, leases_expire=bool(settings.lease_url))
