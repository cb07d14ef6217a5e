"""What this process must still own to commit; checked right before a commit or a publication takes effect.

A lease with an expiry adds its check here, so that every table and every publication of the process is held by it
(docs/architecture.md §4, step 1).
"""

from __future__ import annotations

from collections.abc import Callable

Check = Callable[[], None]
_checks: list[Check] = []


def add_check(check: Check) -> None:
    """From now on nothing is committed once `check` raises."""
    _checks.append(check)


def remove_check(check: Check) -> None:
    """End a check; no effect when it is none."""
    if check in _checks:
        _checks.remove(check)


def require_ownership() -> None:
    """Raise the error of the first check that fails: this process may commit nothing any more."""
    for check in tuple(_checks):
        check()
