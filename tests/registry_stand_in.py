"""A schema registry in memory behind a real HTTP server, with Confluent's answers: for tests that need no real one."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from served_in_thread import served_in_thread

BY_ID = re.compile(r"/schemas/ids/(\d+)")
LATEST = re.compile(r"/subjects/([^/]+)/versions/latest")
VERSION = re.compile(r"/subjects/([^/]+)/versions/(\d+)")
VERSIONS = re.compile(r"/subjects/([^/]+)/versions")


@dataclass
class StandIn:
    """The schemas by id, the ids of each subject, and every request; `answer` replaces all answers: status and body."""

    address: str = ""
    schemas: dict[int, str] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)
    references: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By id, what a schema imports: name, subject and version of each."""
    requests: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    answer: tuple[int, bytes] | None = None
    knows_default: bool = True
    """Whether it answers with its own level for a subject without one, where a request asks for that."""

    def respond(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        if found := BY_ID.fullmatch(path):
            return self._by_id(int(found[1]))
        if found := LATEST.fullmatch(path):
            return self._version(found[1])
        if found := VERSION.fullmatch(path):
            return self._version(found[1], int(found[2]))
        if (found := VERSIONS.fullmatch(path)) and method == "POST":
            return 200, {"id": self.add(found[1], body["schema"], kind=body.get("schemaType", "AVRO"))}
        if path.startswith("/config"):
            return self._level(path)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def add(self, subject: str, text: str, number: int | None = None, kind: str = "AVRO") -> int:
        """Register a schema, once, and return its id."""
        same = [known for known, schema in self.schemas.items() if schema == text]
        given = number or (same[0] if same else max(self.schemas, default=0) + 1)
        self.schemas[given], self.types[given] = text, kind
        if given not in (ids := self.subjects.setdefault(subject, [])):
            ids.append(given)
        return given

    def _by_id(self, number: int) -> tuple[int, Any]:
        if number not in self.schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"schema": self.schemas[number]} | self._about(number)

    def _about(self, number: int) -> dict[str, Any]:
        kind, references = self.types[number], self.references.get(number)
        return ({} if kind == "AVRO" else {"schemaType": kind}) | ({"references": references} if references else {})

    def _level(self, path: str) -> tuple[int, Any]:
        """Return the level: as Apicurio NONE for a subject without one of its own, unless the default is asked."""
        if path == "/config" or (self.knows_default and path.endswith("?defaultToGlobal=true")):
            return 200, {"compatibilityLevel": "BACKWARD"}
        return (200, {"compatibilityLevel": "NONE"}) if self.knows_default else (404, {"error_code": 40408})

    def _version(self, subject: str, number: int = 0) -> tuple[int, Any]:
        """Return a version of a subject, by default the last one."""
        ids = self.subjects.get(subject)
        if not ids:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        version = number or len(ids)
        found = ids[version - 1]
        known = {"subject": subject, "version": version, "id": found, "schema": self.schemas[found]}
        return 200, known | self._about(found)


@contextmanager
def registry_stand_in() -> Iterator[StandIn]:
    """Serve a registry on a free port of this machine."""
    registry = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET", {})

        def do_POST(self) -> None:
            self._serve("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _serve(self, method: str, body: dict[str, Any]) -> None:
            path = self.path.partition("?")[0]
            registry.requests.append(f"{method} {path}")
            login = self.headers.get("Authorization", "").removeprefix("Basic ")
            registry.logins.append(base64.b64decode(login).decode())
            status, found = registry.respond(method, self.path if path.startswith("/config/") else path, body)
            content = json.dumps(found).encode()
            if registry.answer is not None:
                status, content = registry.answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.address = f"http://127.0.0.1:{server.server_address[1]}"
    with served_in_thread(server):
        yield registry
