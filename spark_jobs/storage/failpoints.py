"""Places where a test lets this process die or hold still: the numbered steps of the exactly-once protocol."""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Step(StrEnum):
    """Points in a driver's work; the number is the step in docs/architecture.md §4, patches are those of plans (§6)."""

    LEASED = "1.leased"
    EXAMINED = "2.examined"
    BRONZE_BEGUN = "3.bronze-begun"
    BRONZE_WRITTEN = "3.bronze-written"
    BRONZE_COMMITTED = "3.bronze-committed"
    SILVER_WRITTEN = "4.silver-written"
    SILVER_COMMITTED = "4.silver-committed"
    REJECTED_COMMITTED = "4.rejected-committed"
    GOLD_WRITTEN = "5.gold-written"
    GOLD_COMMITTED = "5.gold-committed"
    ALL_GOLD_COMMITTED = "5.all-gold-committed"
    PUBLISHED = "6.published"
    SLICE_REDONE = "slice.records-redone"
    CORRECTION_BEGUN = "correction.begun"
    CORRECTED_SILVER = "correction.silver-committed"
    CORRECTED_REJECTED = "correction.rejected-committed"
    CORRECTED_GOLD = "correction.gold-committed"
    CORRECTION_PUBLISHED = "correction.published"
    PUT_TOGETHER = "maintain.put-together"


def pass_step(step: Step, batch: int = 0) -> None:
    """Kill (`kill:<step>[:<batch>]`) or stop (`stop:…`) this process when HEADRACE_FAILPOINT names this step.

    With a batch given, the step must be of this batch or a later one. Without the variable: nothing.
    """
    wish = os.environ.get("HEADRACE_FAILPOINT")
    if not wish:
        return
    act, name, *rest = wish.split(":")
    if name == step and batch >= int(rest[0] if rest else 0):
        os.kill(os.getpid(), signal.SIGKILL if act == "kill" else signal.SIGSTOP)
