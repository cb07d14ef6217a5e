"""A new owner of a dataset fences off the one before, which may have been stopped in the middle of a commit."""

from __future__ import annotations

from include.paths import bronze_path
from include.reading.publication import fence_publication
from include.settings import Settings
from spark_jobs.storage.claim_tables import claim_tables


def fence_earlier_owner(settings: Settings, dataset: str, epoch: int) -> None:
    """Make bronze and the publication the new owner's; a release's tables are claimed when they are opened.

    Needed for leases that expire. The lock of a file is only free when its holder is gone.
    """
    if settings.lease_url:
        fence_publication(settings, dataset)
        claim_tables([bronze_path(settings, dataset)], epoch)
