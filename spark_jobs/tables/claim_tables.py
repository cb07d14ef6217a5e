"""A new owner takes tables over: a commit in progress of an earlier one is refused (include/state/adr-0001)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from include.ground.delta_log import LOG, latest_version
from spark_jobs.tables.log_commit import VersionTaken, discard_unfinished_commits, put_commit

EPOCH = "headraceEpoch"


def take_over_tables(paths: Iterable[Path], epoch: int, *, leases_expire: bool) -> None:
    """Remove unfinished commits of earlier owners; where leases expire, also claim the tables.

    A lock of a file is free only when its holder has ended, so that its unfinished commits are leftovers of a crash.
    """
    existing = [path for path in paths if (path / LOG).is_dir()]
    for path in existing:
        discard_unfinished_commits(path)
    if leases_expire:
        claim_tables(existing, epoch)


def claim_tables(paths: Iterable[Path], epoch: int) -> None:
    """Commit an empty version to each existing table, with the owner's `epoch`.

    An earlier owner may have been stopped between the check of its lease and its commit. It then tries to create the
    same version of the log, and one of the two succeeds. If the earlier owner does, its commit is read and the claim
    becomes the next version. A table whose creation was interrupted has no version yet: the new owner creates it, and
    only one of two can. A claim would become version 0, without the table's schema.
    """
    for path in paths:
        if (path / LOG).is_dir() and latest_version(path) >= 0:
            while not _has_claimed(path, epoch):
                pass


def _has_claimed(path: Path, epoch: int) -> bool:
    try:
        put_commit(path, latest_version(path) + 1, {EPOCH: str(epoch)}, [], durable=False)
    except VersionTaken:
        return False
    return True
