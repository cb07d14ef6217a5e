"""A real S3-compatible server (moto) as a process, with a bucket; a proxy before it that drops a header."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
from botocore.config import Config
from served_in_thread import served_in_thread

from include.ground.object_store import ObjectStore
from include.ground.ports import free_ports
from include.ground.settings import Settings
from include.read import publish_to_store

SERVER = Path(__file__).with_name("serial_store.py")
KEY_ID, SECRET = "headrace", "a secret of the store"


@contextmanager
def running_store(address: str = "127.0.0.1", port: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server, at a free port unless one is given; `endpoint_of` returns its address."""
    port = port or free_ports(1)[0]
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "-H", address, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_it_answers(endpoint_of(process))
        yield process
    finally:
        process.kill()
        process.wait()


def endpoint_of(process: subprocess.Popen[bytes]) -> str:
    """Return the server's address."""
    assert isinstance(process.args, list)
    return f"http://{process.args[-3]}:{process.args[-1]}"


@contextmanager
def proven_once() -> Iterator[None]:
    """Let publications prove one store at the first of them: a proof takes a second, and each test has a bucket."""
    prove, proven = publish_to_store.require_conditional_puts, list[str]()

    def prove_once(store: ObjectStore) -> None:
        if not proven:
            prove(store)
            proven.append(store.url)

    with patch.object(publish_to_store, "require_conditional_puts", prove_once):
        yield


def _wait_until_it_answers(endpoint: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the store does not answer")


def create_bucket(endpoint: str, bucket: str) -> None:
    """Create a bucket."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=bucket)


def stored_settings(folder: Path, endpoint: str, bucket: str, scheme: str = "s3", **more: Any) -> Settings:
    """Return settings of a state folder whose publications go to the store, or whose tables lie there (s3a)."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / "secret"
    secret.write_text(f"{SECRET}\n")
    own = {"state": folder / "state", "backend": "spark" if scheme == "s3a" else "auto"}
    return Settings(
        **{**own, **more},
        warehouse=f"{scheme}://{bucket}/some/tables",
        warehouse_endpoint=endpoint,
        warehouse_key_id=KEY_ID,
        warehouse_secret_file=secret,
    )


def store_variables(settings: Settings) -> dict[str, str]:
    """Return the settings of the store as variables of the environment."""
    names = ("warehouse", "warehouse_endpoint", "warehouse_key_id", "warehouse_secret_file")
    return {f"HEADRACE_{name.upper()}": str(getattr(settings, name)) for name in names}


@contextmanager
def proxy_without(endpoint: str, header: str, *, deletes: bool = True) -> Iterator[str]:
    """Run a proxy that hands requests on without one header, as some stores and proxies do; yield its address.

    Without `deletes` it refuses to delete several objects at once, as s3proxy does.
    """

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def hand_on(self) -> None:
            if self.command == "POST" and not deletes:
                self._answer(501, {}, b"")
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in (header, "host", "connection")}
            request = urllib.request.Request(endpoint + self.path, body or None, headers, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    self._answer(answer.status, dict(answer.headers.items()), answer.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, dict(error.headers.items()), error.read())

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = hand_on  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    with served_in_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"
