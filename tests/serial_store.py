"""moto's server, one request at a time: it compares and replaces in two steps, so that two clients may both win a race.

Arguments as of `python -m moto.server`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto import server

RUN = server.run_simple


def run_serially(host: str, port: int, application: Callable[..., Iterable[bytes]], **options: Any) -> None:
    """Serve the application; each request begins when the one before is answered."""
    turn = threading.Lock()

    def in_turn(environ: Any, start_response: Any) -> Iterable[bytes]:
        with turn:
            return list(application(environ, start_response))

    RUN(host, port, in_turn, **options)


if __name__ == "__main__":
    server.run_simple = run_serially
    server.main(sys.argv[1:])
