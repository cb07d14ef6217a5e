"""Serves an application over HTTP to clients that may be slow, many or hostile.

Guarantee: an unfinished request is ended in time, and however many connections one client opens, others are answered.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

THIS_MACHINE = "this machine"


def source_network(address: str) -> str:
    """Return the network of a client's address: this machine, or what one client commonly has for itself.

    All loopback addresses are this machine. An IPv6 client can choose among the addresses of its /64.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return THIS_MACHINE
    return str(found) if found.version == 4 else str(ip_network(f"{found}/64", strict=False))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at `host`."""
    return host == "localhost" or source_network(host) == THIS_MACHINE


STOP_WITHIN = 1
MOST_HEADER_BYTES = 64_000
MOST_CONNECTIONS = 1_000
# What the client must have sent in these seconds: the rest of a request's headers, the rest of its body.
WITHIN = {h11.IDLE: 10.0, h11.SEND_BODY: 20.0}
READS_WITHIN = 60.0
"""How long a client may read nothing of an answer."""


class BoundedConnection(H11Protocol):
    """A connection that is closed when its client is too slow, or to make room for another one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, unless the client has too many connections that must be kept."""
        super().connection_made(transport)
        self.began = self.loop.time()
        self.timer: asyncio.TimerHandle | None = None
        self.awaited: Any = None
        self.source = source_network(self.client[0] if self.client else "")
        if not self._has_room():
            transport.abort()
            return
        self._await_client()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_client()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._await_client()

    def pause_writing(self) -> None:
        """Begin to wait until the client reads."""
        super().pause_writing()
        self._close_in(READS_WITHIN)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self.awaited = None
        self._close_in(None)
        self._await_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._close_in(None)

    def _await_client(self) -> None:
        """Give the client the seconds of what it must send next; what it sends meanwhile does not extend them."""
        awaited = self.conn.their_state if self.conn.their_state in WITHIN else None
        if awaited is not self.awaited:
            self.awaited = awaited
            self._close_in(None if awaited is None else WITHIN[awaited])

    def _close_in(self, seconds: float | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _has_room(self) -> bool:
        """Whether the connection may stay: where there are too many, the oldest one that waits for its client ends."""
        most, others = most_connections(), [each for each in self.connections if isinstance(each, BoundedConnection)]
        counts = Counter(each.source for each in others)
        source = self.source if counts[self.source] > most // 2 else counts.most_common(1)[0][0]
        if len(others) <= most and counts[source] <= most // 2:
            return True
        waiting = [each for each in others if each.source == source and each.awaited is not None]
        if waiting:
            oldest = min(waiting, key=lambda each: each.began)
            self.connections.discard(oldest)
            oldest.transport.abort()
        return bool(waiting)


def most_connections() -> int:
    """Return how many connections may be open: half of the files that this process may open, so that it can work."""
    return min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def serve_application(application: Any, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    protocol: Any = BoundedConnection
    uvicorn.run(
        application,
        host=host,
        port=port,
        http=protocol,
        ws="none",
        backlog=64,
        log_level="warning",
        access_log=False,
        server_header=False,
        # The connection's address is the client's: a header that anyone can send would evade limits.
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_WITHIN,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
