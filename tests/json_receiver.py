"""A server that takes JSON objects by POST, and may refuse some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from served_in_thread import served_in_thread


@dataclass
class JsonReceiver:
    """`posted`: the accepted objects in the order of their arrival; `codes`: the next answers, 200 without."""

    port: int = 0
    posted: list[dict[str, Any]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    keys: set[str | None] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Accept objects, at the same port as before."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802
                found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = receiver.codes.pop(0) if receiver.codes else 200
                receiver.paths.add(self.path)
                receiver.keys.add(self.headers.get("Authorization"))
                if code < 400:
                    receiver.posted.append(found)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", self.port), Handler)
        self.port = server.server_port
        with served_in_thread(server):
            yield
