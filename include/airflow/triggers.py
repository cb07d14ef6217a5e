"""What deferred tasks wait for, in the triggerer: a stream's health, and the end of a plan.

Reads: streams' health and plans.  Writes: the release of a stream (on_kill).
Guarantee: a restart of the triggerer changes nothing: triggers watch again.
After a crash: as after a restart.
Does not: start or stop a process, or define health (include/observe/health.py does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.ground.settings import load_settings

POLL_SECONDS = 3.0
LOG_SECONDS = 60.0


class PlanClosed(BaseTrigger):
    """Fires when a plan cannot change anything any more."""

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.plan = plan

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments of this trigger."""
        return f"{__name__}.{type(self).__name__}", {"plan": self.plan}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the plan's journal until it is closed."""
        from include.plans.journal import load_plan

        while (await asyncio.to_thread(load_plan, load_settings(), self.plan)).is_open:
            await asyncio.sleep(POLL_SECONDS)
        yield TriggerEvent({"plan": self.plan})


class StreamWatch(BaseTrigger):
    """Fires when the stream has failed, breaches its service level, or was released.

    It writes the stream's health into the task's log. When a person stops the run (marks or clears it), the stream is
    released, so that it drains, unless it was requested again after `since`.
    """

    def __init__(
        self,
        dataset: str,
        requester: str = "",
        since: str = "",
        lag_seconds: float = 0,
        grace_seconds: float = 0,
        **former: str,
    ) -> None:
        super().__init__()
        # Triggers that an earlier version stored call the requester `wish`.
        self.dataset, self.requester, self.since = dataset, requester or former["wish"], since
        self.lag_seconds, self.grace_seconds = lag_seconds, grace_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments of this trigger."""
        names = ("dataset", "requester", "since", "lag_seconds", "grace_seconds")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll the stream's health until the watch ends."""
        from include.observe.health import LagLimit, ServiceLevelMonitor, health_line, observer_of

        watch = await asyncio.to_thread(observer_of, load_settings(), self.dataset)
        monitor, logged, logged_at = ServiceLevelMonitor(LagLimit(self.lag_seconds, self.grace_seconds)), "", 0.0
        while True:
            health = await asyncio.to_thread(watch.observe)
            verdict = monitor.evaluate(health, time.monotonic())
            if verdict is not None:
                self.log.info("%s", verdict.why)
                yield TriggerEvent({"outcome": verdict.outcome, "why": verdict.why})
                return
            text = health_line(health)
            if health.state.label != logged or time.monotonic() - logged_at > LOG_SECONDS:
                self.log.info("%s", text)
                logged, logged_at = health.state.label, time.monotonic()
            await asyncio.sleep(POLL_SECONDS)

    async def on_kill(self) -> None:
        """A person has stopped the run: release the stream, which drains it."""
        await asyncio.to_thread(self.release)

    def release(self) -> None:
        """Release the stream, unless a run of the DAG has requested it since.

        A later request of `headrace up` does not count: stopping the run stops the stream.
        """
        from include.state.streams import release_of_run

        if release_of_run(load_settings(), self.dataset, self.requester, datetime.fromisoformat(self.since)):
            self.log.info("%s: released; the stream drains", self.dataset)
