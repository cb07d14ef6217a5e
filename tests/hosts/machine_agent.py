"""Runs commands in a machine for the tests outside of it: one JSON object for each connection, answered by another.

    python machine_agent.py PORT

`{"argv": […], "env": {…}, "cwd": "…"}` waits for the end; with `"log": PATH` the command goes on in the background.
"""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
from typing import Any


class Command(socketserver.StreamRequestHandler):
    """One command."""

    def handle(self) -> None:
        """Run it and answer."""
        self.wfile.write(json.dumps(executed(json.loads(self.rfile.readline()))).encode() + b"\n")


def executed(request: dict[str, Any]) -> dict[str, Any]:
    """Run a command; return its exit code and output, or its pid when it goes on."""
    log = request.pop("log", None)
    argv = request.pop("argv")
    if log is None:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **request)
        return {"code": done.returncode, "output": done.stdout, "errors": done.stderr}
    with open(log, "ab") as output:
        started = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **request
        )
    return {"pid": started.pid}


class Server(socketserver.ThreadingTCPServer):
    """Answers each connection in a thread."""

    daemon_threads = True


if __name__ == "__main__":
    Server(("", int(sys.argv[1])), Command).serve_forever()
