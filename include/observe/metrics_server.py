"""The endpoint `/metrics`. `python -m include.observe.metrics_server HOST PORT`

Reads: what dataset_metrics.py reads.  Writes: nothing.
Guarantee: scrapes are answered one after the other; a figure that cannot be read is left out.
After a crash: the runner starts it again; for how long a watermark was held counts anew.
"""

from __future__ import annotations

import signal
import sys
import threading
from asyncio import Task, create_task, shield, to_thread
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from include.ground.http_server import serve_application
from include.ground.settings import Settings, load_settings
from include.observe.dataset_metrics import HeadraceCollector


class OneAtATime(HeadraceCollector):
    """A collector for a server of several threads: the figures that it keeps belong to one observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lock = threading.Lock()

    def collect(self) -> list[Metric]:  # type: ignore[override]
        """Return every metric family with its current figures."""
        with self.lock:
            return list(super().collect())


def metrics_application(registry: CollectorRegistry) -> Any:
    """Return the application that answers each request with all figures.

    Requests that come while the figures are read share the result: clients that leave would queue a scrape each.
    """
    running = dict[str, Task[bytes]]()

    async def answer(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        accepted = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == b"accept")
        encode, kind = choose_encoder(accepted)
        if kind not in running:
            running[kind] = create_task(to_thread(encode, registry))
            running[kind].add_done_callback(lambda _: running.pop(kind))
        body = await shield(running[kind])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": body})

    return answer


def serve(settings: Settings, host: str, port: int) -> None:
    """Answer scrapes until SIGTERM or Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # The server stops at it, then sends it to this process once more.
        signal.signal(number, lambda *_: None)
    registry = CollectorRegistry()
    registry.register(OneAtATime(settings))
    serve_application(metrics_application(registry), host, port)


def main(arguments: Sequence[str]) -> int:
    """Serve until the process is ended; return the exit code."""
    host, port = arguments
    serve(load_settings(), host, int(port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
