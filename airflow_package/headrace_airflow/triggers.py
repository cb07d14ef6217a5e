"""What deferred tasks wait for: a stream that ends, a piece of work that is done, a plan that is closed.

Guarantee: a restart of the triggerer changes nothing; an outage of the server is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from headrace_airflow.connection import HeadraceConnection, NotKnown, Refused

POLL_SECONDS = 3.0
LOG_SECONDS = 60.0
# The scheduler takes a task that is queued again, before it has seen its first part end, for one that was killed.
SETTLE_SECONDS = 5.0


class RemoteTrigger(BaseTrigger):
    """Polls the server, which its connection names."""

    def __init__(self, connection: str) -> None:
        super().__init__()
        self.connection = connection

    async def connected(self) -> HeadraceConnection:
        """Return the connection; Airflow's secrets are read outside of the event loop."""
        return await sync_to_async(HeadraceConnection)(self.connection)

    async def deferred(self) -> HeadraceConnection:
        """Return the connection once the scheduler has surely seen the task defer; nothing fires sooner."""
        await asyncio.sleep(SETTLE_SECONDS)
        return await self.connected()

    async def answer(self, server: HeadraceConnection, path: str, **query: str | float) -> dict[str, Any] | None:
        try:
            return await asyncio.to_thread(server.request, "GET", path, None, **query)
        except Refused:
            raise
        except AirflowException as error:
            self.log.info("%s", error)
            return None


class StreamEnds(RemoteTrigger):
    """Fires when the stream was released or gave up, or breaches its level for longer than the grace period.

    When a person stops the run, the stream is released, unless somebody requested it since.
    """

    def __init__(
        self, connection: str, dataset: str, run: str, since: str, lag_seconds: float, grace_seconds: float
    ) -> None:
        super().__init__(connection)
        self.dataset, self.run_id, self.since = dataset, run, since
        self.lag_seconds, self.grace_seconds = lag_seconds, grace_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("connection", "dataset", "since", "lag_seconds", "grace_seconds")
        given = {name: getattr(self, name) for name in names}
        return f"{__name__}.{type(self).__name__}", {**given, "run": self.run_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        server, began, logged, state = await self.deferred(), dict[str, float](), 0.0, ""
        while True:
            health = await self.answer(server, f"streams/{self.dataset}", lag_seconds=self.lag_seconds)
            if health is not None:
                now = time.monotonic()
                began = {kind: began.get(kind, now) for kind in health["breaches"]}
                lasting = [kind for kind, since in began.items() if now - since > self.grace_seconds]
                if ended := health["ended"]:
                    yield TriggerEvent(ended)
                    return
                if lasting:
                    why = f"{health['breaches'][lasting[0]]}, for more than {self.grace_seconds:g} s"
                    yield TriggerEvent({"outcome": "breached", "why": why})
                    return
                if health["state"] != state or now - logged >= LOG_SECONDS:
                    state, logged = health["state"], now
                    self.log.info("%s", health["line"])
            await asyncio.sleep(POLL_SECONDS)

    async def on_kill(self) -> None:
        """A person has stopped the run: release the stream, which drains it."""
        server = await self.connected()
        path = f"streams/{self.dataset}"
        answer = await asyncio.to_thread(server.request, "DELETE", path, None, by=self.run_id, since=self.since)
        kept = "not released: it was released or requested again since"
        self.log.info("%s: %s", self.dataset, "released; the stream drains" if answer["released"] else kept)


class WorkDone(RemoteTrigger):
    """Fires when a piece of work is done, or is not known to the server any more, as after its restart."""

    def __init__(self, connection: str, key: str) -> None:
        super().__init__(connection)
        self.key = key

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {"connection": self.connection, "key": self.key}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until the work is done, and log its new lines; the event has its state, None when it is lost."""
        server, logged = await self.deferred(), 0
        while True:
            try:
                state = await self.answer(server, "work", key=self.key)
            except NotKnown:
                yield TriggerEvent({"work": None})
                return
            if state is not None:
                new = min(state["reported"] - logged, len(state["lines"]))
                for line in state["lines"][len(state["lines"]) - new :]:
                    self.log.info("%s", line)
                logged = state["reported"]
                if state["done"]:
                    yield TriggerEvent({"work": {**state, "lines": []}})
                    return
            await asyncio.sleep(POLL_SECONDS)


class PlanClosed(RemoteTrigger):
    """Fires when a plan that is in the way cannot change anything any more."""

    def __init__(self, connection: str, plan: str) -> None:
        super().__init__(connection)
        self.plan = plan

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {"connection": self.connection, "plan": self.plan}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        server = await self.deferred()
        while True:
            found = await self.answer(server, f"plans/{self.plan}")
            if found is not None and not found["is_open"]:
                yield TriggerEvent({"plan": self.plan})
                return
            await asyncio.sleep(POLL_SECONDS)
