"""A new owner of a dataset fences the previous one, which may have been stopped in the middle of a commit."""

from __future__ import annotations

from include.paths import bronze_path
from include.reading.publication import fence_publication
from include.settings import Settings
from spark_jobs.storage.claim_tables import claim_tables


def fence_earlier_owner(settings: Settings, dataset: str, epoch: int) -> None:
    """Claim bronze and the publication for the new owner; a release claims its tables when they are opened.

    Only leases that expire need this: a file lock is free only when its holder has ended.
    """
    if settings.lease_url:
        fence_publication(settings, dataset)
        claim_tables([bronze_path(settings, dataset)], epoch)
