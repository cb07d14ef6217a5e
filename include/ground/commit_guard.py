"""Checks of ownership that run right before a commit or a publication takes effect.

A lease that can expire adds its check here; it then guards every table and publication of this process
(docs/architecture.md §4, step 1).
"""

from __future__ import annotations

from collections.abc import Callable

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
