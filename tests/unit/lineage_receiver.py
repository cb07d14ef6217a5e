"""A receiver of OpenLineage events over HTTP, and a walk over what it has received."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from openlineage_schemas import schema_problems

Node = tuple[str, str]
"""Namespace and name of a dataset."""


@dataclass
class LineageReceiver:
    """Events in the order of their arrival; `codes` are its next answers (201 when there are none)."""

    port: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    keys: set[str | None] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Accept events at the same port as before; in the end all that came must be valid by the specification."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = receiver.codes.pop(0) if receiver.codes else 201
                receiver.paths.add(self.path)
                receiver.keys.add(self.headers.get("Authorization"))
                if code < 400:
                    receiver.events.append(event)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", self.port), Handler)
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            assert [problem for event in self.events for problem in schema_problems(event)] == []

    def of(self, job: str, state: str = "COMPLETE") -> list[dict[str, Any]]:
        return [each for each in self.events if each["job"]["name"] == job and each.get("eventType", state) == state]

    @property
    def jobs(self) -> list[str]:
        return list(dict.fromkeys(each["job"]["name"] for each in self.events))

    def run_ids(self, job: str) -> list[str]:
        return list(dict.fromkeys(each["run"]["runId"] for each in self.events if each["job"]["name"] == job))


def edges(events: list[dict[str, Any]]) -> dict[Node, set[Node]]:
    """Return the datasets that each dataset is made of, by the inputs and outputs of jobs."""
    found: dict[Node, set[Node]] = defaultdict(set)
    for event in events:
        sources = {(each["namespace"], each["name"]) for each in event["inputs"]}
        for each in event["outputs"]:
            found[each["namespace"], each["name"]] |= sources
    return found


def column_edges(events: list[dict[str, Any]]) -> dict[tuple[str, str, str], set[tuple[str, str, str]]]:
    """Return the columns that each column is made of: namespace, dataset, field."""
    found: dict[tuple[str, str, str], set[tuple[str, str, str]]] = defaultdict(set)
    for event in events:
        for output in event["outputs"]:
            lineage = output["facets"].get("columnLineage", {"fields": {}})
            for column, made in lineage["fields"].items():
                key = output["namespace"], output["name"], column
                found[key] |= {(i["namespace"], i["name"], i["field"]) for i in made["inputFields"]}
    return found


def reached(start: Any, graph: dict[Any, set[Any]]) -> set[Any]:
    """Return all that a node is made of, directly or not."""
    found: set[Any] = set()
    waiting = [start]
    while waiting:
        fresh = graph.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found
