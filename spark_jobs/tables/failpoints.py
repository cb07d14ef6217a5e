"""Failpoints: steps of the exactly-once protocol at which a test kills or stops this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    """Steps of drivers and jobs: numbers are those of docs/architecture.md §4, patches belong to plans (§6)."""

    LEASED = "1.leased"
    PREFLIGHT_PASSED = "2.preflight-passed"
    BRONZE_STARTED = "3.bronze-started"
    BRONZE_WRITTEN = "3.bronze-written"
    BRONZE_COMMITTED = "3.bronze-committed"
    NEXT_VALIDATED = "4.next-validated"
    SILVER_WRITTEN = "4.silver-written"
    SILVER_COMMITTED = "4.silver-committed"
    REJECTED_COMMITTED = "4.rejected-committed"
    GOLD_WRITTEN = "5.gold-written"
    GOLD_COMMITTED = "5.gold-committed"
    ALL_GOLD_COMMITTED = "5.all-gold-committed"
    PUBLISHED = "6.published"
    PART_WRITTEN = "isolate.part-written"
    SLICE_REBUILT = "slice.records-rebuilt"
    PATCH_STARTED = "patch.started"
    PATCH_SILVER_COMMITTED = "patch.silver-committed"
    PATCH_REJECTED_COMMITTED = "patch.rejected-committed"
    PATCH_GOLD_COMMITTED = "patch.gold-committed"
    PATCH_PUBLISHED = "patch.published"
    COMPACTION_WRITTEN = "compact.files-written"
    BATCHES_EXPIRED = "expire.committed"
    HISTORY_WRITTEN = "history.file-written"
    HISTORY_EXTENDED = "history.extended"
    HISTORY_COMMIT_REMOVED = "history.commit-removed"


INGEST_STEPS = (Step.BRONZE_STARTED, Step.BRONZE_WRITTEN, Step.BRONZE_COMMITTED)
step_listeners: list[Callable[[Step], None]] = []
"""Called at each step of this process, before its failpoint."""


def pass_step(step: Step, batch: int = 0) -> None:
    """Kill (`kill:<step>[:<batch>]`) or stop (`stop:…`) this process when HEADRACE_FAILPOINT names this step.

    A batch in the variable restricts it to that batch and later ones.
    """
    for listener in step_listeners:
        listener(step)
    setting = os.environ.get("HEADRACE_FAILPOINT")
    if not setting:
        return
    action, name, *rest = setting.split(":")
    if name == step and batch >= int(rest[0] if rest else 0):
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
