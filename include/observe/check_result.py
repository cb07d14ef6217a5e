"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CheckResult:
    """One check: its name, the verdict, what was found, and the remedy (empty for OK)."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def passed(check: str, found: str) -> CheckResult:
    """Return the result of a passed check."""
    return CheckResult(check, Verdict.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """Return a warning, which does not prevent Headrace from working."""
    return CheckResult(check, Verdict.WARN, found, remedy)


def failed(check: str, found: str, remedy: str) -> CheckResult:
    """Return a failure, with which Headrace cannot work correctly."""
    return CheckResult(check, Verdict.FAIL, found, remedy)
