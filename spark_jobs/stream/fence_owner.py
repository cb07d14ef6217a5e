"""A new owner of a dataset fences the previous one, which may have been stopped in the middle of a commit."""

from __future__ import annotations

from include.ground.paths import bronze_path
from include.ground.settings import Settings
from include.read.publication import fence_publication
from spark_jobs.tables.commit_log import take_over_tables


def fence_earlier_owner(settings: Settings, dataset: str, epoch: int) -> None:
    """Take over bronze and the publication; a release takes its tables over when they are opened.

    Only leases that expire need a claim, and a publication that fails: a file lock is free only when its holder has
    ended.
    """
    if settings.lease_url:
        fence_publication(settings, dataset)
    take_over_tables([bronze_path(settings, dataset)], epoch, leases_expire=bool(settings.lease_url))
