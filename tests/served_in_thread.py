"""A server of Python's library that answers from a thread of the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer

LOOK_EVERY = 0.01
"""Seconds until the server sees that it is to end; half a second by default, which each test would wait."""


@contextmanager
def served_in_thread(server: BaseServer) -> Iterator[None]:
    """Serve meanwhile; close the server then."""
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_EVERY,), daemon=True)
    with server:
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
