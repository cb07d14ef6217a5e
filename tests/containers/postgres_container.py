"""A real PostgreSQL server in a container: the stack's stand-in image, on a free port of the loopback address."""

from __future__ import annotations

import secrets
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from include.ground.ports import free_ports
from include.ground.settings import CLONE

IMAGE = "headrace-stand-in-postgres:local"
READY_WITHIN = 120.0


def docker(*words: str, check: bool = True) -> str:
    """Run docker and return its output."""
    return subprocess.run(["docker", *words], cwd=CLONE, check=check, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class PostgresContainer:
    """A server by the name of its container."""

    name: str
    port: int
    password: str

    def url(self, password: str | None = None) -> str:
        """Return the ledger's URL."""
        return f"postgresql+psycopg://headrace:{password or self.password}@127.0.0.1:{self.port}/ledger"

    def await_ready(self) -> None:
        """Wait until the server accepts connections from outside."""
        end = time.monotonic() + READY_WITHIN
        probe = ["docker", "exec", self.name, "pg_isready", "-q", "-h", "127.0.0.1", "-U", "headrace", "-d", "ledger"]
        while subprocess.run(probe, check=False, capture_output=True).returncode:
            assert time.monotonic() < end, docker("logs", self.name)
            time.sleep(0.3)

    def kill(self) -> None:
        """Kill the server's container."""
        docker("kill", self.name)

    def start(self) -> None:
        """Start the container again, on the same data."""
        docker("start", self.name)
        self.await_ready()


def start_postgres(folder: Path) -> PostgresContainer:
    """Build the image if it is missing, start a server, wait until it is ready."""
    docker("build", "--quiet", "--tag", IMAGE, "--file", "infra/stand-ins/postgres/Dockerfile", ".")
    server = PostgresContainer(f"headrace-test-{secrets.token_hex(4)}", free_ports(1)[0], secrets.token_urlsafe(12))
    secret = folder / "password"
    secret.write_text(server.password)
    secret.chmod(0o444)
    mounts = (
        f"{secret}:/run/secrets/password:ro",
        f"{CLONE}/infra/postgres/ledger.sql:/docker-entrypoint-initdb.d/l.sql:ro",
    )
    given = ("POSTGRES_USER=headrace", "POSTGRES_DB=airflow", "POSTGRES_PASSWORD_FILE=/run/secrets/password")
    options = [word for mount in mounts for word in ("--volume", mount)]
    options += [word for value in given for word in ("--env", value)]
    docker("run", "--detach", "--name", server.name, "--publish", f"127.0.0.1:{server.port}:5432", *options, IMAGE)
    server.await_ready()
    return server
