"""App ids: the names of the platform's transactions in Delta logs, and the check that this process may still commit.

`include/observe/ledger_rows.py` reads app ids. A lease that can expire adds its check, which runs right before a commit
or a publication takes effect, and so guards every table and publication of this process (docs/architecture.md §4).
"""

from __future__ import annotations

from collections.abc import Callable

_REFRESH = "/refresh"
_QUIET = "/quiet"


def bronze_app_id(dataset: str, generation: int) -> str:
    """Return the app id of a checkpoint generation's commits to bronze; versions are numbers of micro-batches."""
    return f"{dataset}/bronze/{generation}"


def quiet_app_id(app_id: str) -> str:
    """Return the app id of the batches without records that follow those of a generation with this one; versions are
    batches."""
    return app_id + _QUIET


def load_app_id(dataset: str, partition: int) -> str:
    """Return the app id of the batches of a set of files; versions are the offsets that they end with."""
    return f"{dataset}/bronze/load/{partition}"


def generation_app_id(app_id: str) -> str:
    """Return the app id of the generation to which a commit to bronze belongs."""
    return app_id.removesuffix(_QUIET)


def release_app_id(dataset: str, release: str, table: str) -> str:
    """Return the app id of a release's commits to `silver`, `rejected` or `gold/<table>`; versions are batches."""
    return f"{dataset}/{release}/{table}"


def refresh_app_id(app_id: str) -> str:
    """Return the app id of the refreshes of a gold table whose runs have this one; versions are batches."""
    return app_id + _REFRESH


def is_refresh(app_id: str | None) -> bool:
    """Whether commits of an app id are refreshes of a gold table."""
    return (app_id or "").endswith(_REFRESH)


def plan_app_id(dataset: str, release: str, plan: str) -> str:
    """Return the app id of a slice plan's commits; version 1 applies the patch, 2 reverts it."""
    return f"{dataset}/{release}/plan/{plan}"


def expiry_app_id(dataset: str, owner: str, layer: str) -> str:
    """Return the app id of expiry commits; versions are first batches that are left.

    `owner` is the release, or `bronze`, which belongs to all releases.
    """
    return f"{dataset}/{owner}/expiry/{layer}"


OWNER_APP_ID = "headrace/owner"
"""The app id of a fenced table: each commit of rows carries it, with the owner's epoch in the high bits of its version.
The platform's own transaction is in the commit's metadata."""
EPOCH_BITS = 40


def owner_version(epoch: int, number: int) -> int:
    """Return the version of an owner's commit with a number that ascends over all owners."""
    return epoch << EPOCH_BITS | number


def owner_epoch(version: int) -> int:
    """Return the epoch of the owner that made a commit."""
    return version >> EPOCH_BITS


def owner_number(version: int) -> int:
    """Return the number of an owner's commit."""
    return version & ((1 << EPOCH_BITS) - 1)


Check = Callable[[], None]
_checks: list[Check] = []


def add_check(check: Check) -> None:
    """Add a check: while it raises, nothing is committed."""
    _checks.append(check)


def remove_check(check: Check) -> None:
    """Remove a check, if it was added."""
    if check in _checks:
        _checks.remove(check)


def require_ownership() -> None:
    """Raise the error of the first check that fails: this process may no longer commit."""
    for check in tuple(_checks):
        check()
