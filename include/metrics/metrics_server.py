"""The endpoint `/metrics`. `python -m include.metrics.metrics_server HOST PORT`

Reads: what dataset_metrics.py reads.  Writes: nothing.
Guarantee: scrapes are answered one after the other; a figure that cannot be read is left out.
After a crash: the runner starts it again; its memory of watermarks is filled from the ledger.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric

from include.host.stop_signals import stop_on
from include.metrics.dataset_metrics import HeadraceCollector
from include.settings import Settings, load_settings


class OneAtATime(HeadraceCollector):
    """A collector for a server of several threads: the figures that it keeps belong to one observation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lock = threading.Lock()

    def collect(self) -> list[Metric]:  # type: ignore[override]
        """Return every metric family with its current figures."""
        with self.lock:
            return list(super().collect())


def serve(settings: Settings, host: str, port: int) -> None:
    """Answer scrapes until SIGTERM or Ctrl-C."""
    ended = stop_on(signal.SIGTERM, signal.SIGINT)
    registry = CollectorRegistry()
    registry.register(OneAtATime(settings))
    server, thread = start_http_server(port, host, registry)
    ended.wait()
    server.shutdown()
    thread.join()


def main(arguments: Sequence[str]) -> int:
    """Serve until the process is ended; return the exit code."""
    host, port = arguments
    serve(load_settings(), host, int(port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
