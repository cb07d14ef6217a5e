"""A check's answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How it is: well, well enough to go on, or not."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One check: its name, the verdict, what was found, and what to do about it (empty when all is well)."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def well(check: str, found: str) -> Finding:
    """A finding that needs nothing."""
    return Finding(check, Verdict.OK, found)


def doubtful(check: str, found: str, remedy: str) -> Finding:
    """A finding that does not stop the work."""
    return Finding(check, Verdict.WARN, found, remedy)


def failed(check: str, found: str, remedy: str) -> Finding:
    """A finding with which Headrace cannot work, or not rightly."""
    return Finding(check, Verdict.FAIL, found, remedy)
