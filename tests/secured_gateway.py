"""A gateway with TLS and a password before a server that has neither, as sites put one before a schema registry."""

from __future__ import annotations

import base64
import ipaddress
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from served_in_thread import served_in_thread

USER, PASSWORD = "reader", "correct horse"


@dataclass(frozen=True)
class Gateway:
    """The address that clients use, and the files that they need."""

    url: str
    ca_file: Path
    password_file: Path

    def settings(self) -> dict[str, str]:
        """The variables with which Headrace uses a registry behind it."""
        return {
            "HEADRACE_SCHEMA_REGISTRY_URL": self.url,
            "HEADRACE_SCHEMA_REGISTRY_USER": USER,
            "HEADRACE_SCHEMA_REGISTRY_PASSWORD_FILE": str(self.password_file),
            "HEADRACE_SCHEMA_REGISTRY_CA_FILE": str(self.ca_file),
        }


def create_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 that signs itself, and its key; return both files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    certificate, private = folder / "ca.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*plain))
    return certificate, private


@contextmanager
def secured_gateway(target: str, folder: Path) -> Iterator[Gateway]:
    """Serve `target` over HTTPS on a free port, for one user only."""
    certificate, private = create_certificate(folder)
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(target))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with served_in_thread(server):
        path = urlsplit(target).path
        yield Gateway(f"https://127.0.0.1:{server.server_port}{path}", certificate, password)


def _handler(target: str) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(target))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._forward(None)

        def do_POST(self) -> None:
            self._forward(self.rfile.read(int(self.headers["Content-Length"])))

        do_PUT = do_POST

        def _forward(self, body: bytes | None) -> None:
            if self.headers["Authorization"] != expected:
                self._answer(401, b"log in")
                return
            headers = {name: self.headers[name] for name in ("Accept", "Content-Type") if self.headers[name]}
            request = urllib.request.Request(origin + self.path, body, headers, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    self._answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read())
            except OSError as error:
                self._answer(502, str(error).encode())

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: a test reads answers."""

    return Handler
