"""A check's answer."""

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
    """A finding that needs nothing."""
    return CheckResult(check, Verdict.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """A finding that does not stop the work."""
    return CheckResult(check, Verdict.WARN, found, remedy)


def failed(check: str, found: str, remedy: str) -> CheckResult:
    """A finding with which Headrace cannot work, or not rightly."""
    return CheckResult(check, Verdict.FAIL, found, remedy)
