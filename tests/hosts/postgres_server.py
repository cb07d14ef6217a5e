"""A real PostgreSQL server of the test's own: a fresh cluster on a free port, as an ordinary user, ended by its pid."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from include.ground.ports import free_ports

USER = "postgres"
READY_WITHIN = 60.0


def binary(name: str) -> str:
    """Return the path of one of the server's programs; Debian keeps them outside PATH."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True), shutil.which(name)]
    assert found[0], f"{name} is not installed; Debian: apt-get install postgresql"
    return str(found[0])


def as_user(*words: str) -> list[str]:
    """Return a command as the server's user: PostgreSQL refuses to run as root."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words] if os.getuid() == 0 else [*words]


@dataclass
class PostgresServer:
    """A server by its process; `address`: where it listens."""

    folder: Path
    address: str
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the URL of its database."""
        return f"postgresql://{USER}@{self.address}:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, also again on the same data; wait until it answers."""
        command = (binary("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-h", self.address)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                as_user(*command, "-k", str(self.folder)), stdout=log, stderr=log, cwd=self.folder
            )
        end = time.monotonic() + READY_WITHIN
        probe = [binary("pg_isready"), "-q", "-h", self.address, "-p", str(self.port)]
        while subprocess.run(probe, check=False).returncode:
            assert time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """End the server at once, as a crash would; it recovers when it is started again."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
            self.process = None


@contextmanager
def postgres_server(address: str = "127.0.0.1", trusted: str = "127.0.0.1/32") -> Iterator[PostgresServer]:
    """Yield a running server; end it afterwards, and remove its files.

    They are not in pytest's folders: each session of pytest closes these to other users, such as a running server's.
    """
    with TemporaryDirectory(prefix="headrace-postgres-") as place:
        folder = Path(place)
        create_cluster(folder, trusted)
        server = PostgresServer(folder, address, free_ports(1)[0])
        try:
            server.start()
            yield server
        finally:
            server.stop()


def create_cluster(folder: Path, trusted: str) -> None:
    """Create the server's data in a folder, which becomes its user's; clients of `trusted` need no password."""
    if os.getuid() == 0:
        os.chown(folder, pwd.getpwnam(USER).pw_uid, -1)
    data = folder / "data"
    create = (binary("initdb"), "-D", str(data), "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8")
    subprocess.run(as_user(*create, "--locale=C.UTF-8"), check=True, capture_output=True, cwd=folder)
    with (data / "pg_hba.conf").open("a") as file:
        file.write(f"host all all {trusted} trust\n")
