"""A new owner claims its tables: a commit that an earlier owner has under way is refused (include/leases/adr-0001)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import CommitProperties, PostCommitHookProperties

from include.clients.delta_log import LOG

EPOCH = "headraceEpoch"


def claim_tables(paths: Iterable[Path], epoch: int) -> None:
    """Commit an empty version to each existing table, with the owner's `epoch`.

    An earlier owner may have been stopped between the check of its lease and its commit. It then tries to create the
    same version of the log, and one of the two succeeds. If the earlier owner does, its commit is read and the claim
    becomes the next version.
    """
    for path in paths:
        if (path / LOG).is_dir():
            while not _has_claimed(DeltaTable(str(path)), epoch):
                pass


def _has_claimed(table: DeltaTable, epoch: int) -> bool:
    try:
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={EPOCH: str(epoch)}),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
    except CommitFailedError:
        return False
    return True
