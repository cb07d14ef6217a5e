"""A console that runs as a process at a free port."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from include.ground.ports import free_ports
from include.ground.settings import CLONE

ANSWERS_WITHIN = 90.0


@contextmanager
def served_console(environment: Mapping[str, str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a console with these variables; yield its address and its process once it answers."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "include.serve.console", "127.0.0.1", str(port)]
    server = subprocess.Popen(command, cwd=CLONE, env=environment)
    try:
        _await_answer(f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}", server
    finally:
        server.terminate()
        server.wait(20)


def _await_answer(address: str) -> None:
    end = time.monotonic() + ANSWERS_WITHIN
    while True:
        try:
            urllib.request.urlopen(address, timeout=30).close()
            return
        except OSError:
            assert time.monotonic() < end, "the console did not answer"
            time.sleep(0.2)
