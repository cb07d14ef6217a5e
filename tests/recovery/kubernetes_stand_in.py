"""A stand-in for Kubernetes' API server and its nodes, as far as a Spark driver in client mode asks.

Pods that are created are checked against Kubernetes' schema and run as processes of this machine: the container's
command with its variables, in an empty folder instead of its volumes. Requests that a Role does not allow are refused.
Nothing is scheduled or isolated.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes_validate import validate
from served_in_thread import served_in_thread

from include.ground.ports import LOOPBACK
from include.ground.settings import CLONE

VERSION = "1.37"
NAMESPACE = "data"
IN_IMAGE = "/opt/headrace/"
Object = dict[str, Any]


@dataclass
class Node:
    """The pods and config maps that are there, and the processes of the pods.

    `allowed`, `asked`, `refused`: resources with verbs, as a Role has them.
    """

    folder: Path
    allowed: frozenset[tuple[str, str]]
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    made: list[Object] = field(default_factory=list)
    asked: set[tuple[str, str]] = field(default_factory=set)
    refused: set[tuple[str, str]] = field(default_factory=set)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, resource: str, given: Object) -> Object:
        """Keep an object, and run a pod. Raises kubernetes_validate.ValidationError."""
        validate(given, VERSION, strict=True)
        name = given["metadata"]["name"]
        given["metadata"] |= {"uid": name, "namespace": NAMESPACE, "resourceVersion": "1"}
        with self.lock:
            self.objects[resource, name] = given
            self.made.append(given)
        if resource == "pods":
            self.processes[name] = self._started(name, given["spec"]["containers"][0])
            ready = {"type": "Ready", "status": "True"}
            given["status"] = {"phase": "Running", "podIP": LOOPBACK, "conditions": [ready]}
        return given

    def _started(self, pod: str, container: Object) -> subprocess.Popen[bytes]:
        place = self.folder / pod
        place.mkdir()
        here = {container["workingDir"]: str(place), IN_IMAGE.rstrip("/"): str(CLONE)}
        fields = {"status.podIP": LOOPBACK, "metadata.name": pod}
        given = {each["name"]: placed(each["value"], here) for each in container["env"] if "value" in each}
        asked = {each["name"]: each["valueFrom"]["fieldRef"] for each in container["env"] if "valueFrom" in each}
        given |= {name: fields[reference["fieldPath"]] for name, reference in asked.items()}
        words = [placed(word, here) for word in (*container["command"], *container["args"])]
        given |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(place)}
        with (place / "log").open("wb") as log:
            return subprocess.Popen(words, cwd=place, env=given, stdout=log, stderr=log, start_new_session=True)

    def delete(self, resource: str, names: list[str]) -> None:
        """Forget objects, and end the processes of pods."""
        for name in names:
            with self.lock:
                self.objects.pop((resource, name), None)
            if resource == "pods" and (process := self.processes.pop(name, None)):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)

    def chosen(self, resource: str, labels: Mapping[str, str]) -> list[Object]:
        """Return the objects that have these labels."""
        with self.lock:
            found = [each for (kind, _), each in self.objects.items() if kind == resource]
        return [each for each in found if labels.items() <= each["metadata"].get("labels", {}).items()]


def placed(text: str, here: Mapping[str, str]) -> str:
    """Return a text of a pod with this machine's paths."""
    for path, ours in here.items():
        text = text.replace(path, ours)
    return text


def failure(reason: str, code: int) -> Object:
    """Return Kubernetes' answer to what it refuses."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}


def labels_of(query: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the labels that a query selects by equality."""
    words = ",".join(query.get("labelSelector", ())).split(",")
    return dict(word.split("=", 1) for word in words if "=" in word and "!=" not in word)


class ApiServer(ThreadingHTTPServer):
    """The API server of a node; watches last until `ended`."""

    daemon_threads = True

    def __init__(self, node: Node) -> None:
        super().__init__((LOOPBACK, 0), Handler)
        self.node, self.ended = node, threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answers requests."""

    server: ApiServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def _place(self) -> tuple[str, str, dict[str, list[str]]]:
        """Resource, name or "", query."""
        url = urlsplit(self.path)
        resource, _, name = url.path.removeprefix(f"/api/v1/namespaces/{NAMESPACE}/").partition("/")
        return resource, name, parse_qs(url.query)

    def _answer(self, code: int, content: Object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _may(self, resource: str, verb: str) -> bool:
        self.server.node.asked.add((resource, verb))
        if (resource, verb) in self.server.node.allowed:
            return True
        self.server.node.refused.add((resource, verb))
        self._answer(403, failure("Forbidden", 403))
        return False

    def do_GET(self) -> None:
        resource, name, query = self._place()
        if not self._may(resource, "watch" if "watch" in query else "get" if name else "list"):
            return
        if "watch" in query:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            # A client that asks for a web socket asks again without; then nothing ever happens here.
            if "Upgrade" not in self.headers:
                self.server.ended.wait()
            return
        if name:
            found = self.server.node.objects.get((resource, name))
            self._answer(200 if found else 404, found or failure("NotFound", 404))
            return
        items = self.server.node.chosen(resource, labels_of(query))
        kind = {"pods": "PodList", "configmaps": "ConfigMapList"}.get(resource, "List")
        self._answer(200, {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})

    def do_POST(self) -> None:
        resource, _, _ = self._place()
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._may(resource, "create"):
            self._answer(201, self.server.node.create(resource, given))

    def do_DELETE(self) -> None:
        resource, name, query = self._place()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._may(resource, "delete" if name else "deletecollection"):
            return
        chosen = [each["metadata"]["name"] for each in self.server.node.chosen(resource, labels_of(query))]
        self.server.node.delete(resource, [name] if name else chosen)
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})


@contextmanager
def kubernetes(folder: Path, driver: Object, role: Object) -> Iterator[tuple[Node, str]]:
    """Yield the node and the server's address; `driver` is the pod in which the driver runs, with this role."""
    rules = role["rules"]
    allowed = frozenset((what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"])
    node = Node(folder, allowed)
    node.objects["pods", driver["metadata"]["name"]] = driver
    server = ApiServer(node)
    with served_in_thread(server):
        try:
            yield node, f"http://{LOOPBACK}:{server.server_address[1]}"
        finally:
            server.ended.set()
            node.delete("pods", list(node.processes))
