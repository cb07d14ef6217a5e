"""A real PostgreSQL server of one's own: a fresh cluster on a free port, as an ordinary user, ended by its pid."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from include.ground.errors import Terminal
from include.ground.ports import LOOPBACK, free_ports

USER = "postgres"
READY_WITHIN = 60.0
LOGICAL = ("-c", "wal_level=logical")
"""What a server needs whose changes are read from its log."""


class PostgresMissing(Terminal):
    """A program of PostgreSQL's server is not installed."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f"PostgreSQL's {program} is not installed; no server was started", "apt-get install postgresql (Debian)"
        )


def binary(name: str) -> str:
    """Return the path of one of the server's programs, which Debian keeps outside PATH. Raises PostgresMissing."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True), shutil.which(name)]
    if not found[0]:
        raise PostgresMissing(name)
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
    options: Sequence[str] = ()
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
                as_user(*command, "-k", str(self.folder), *self.options), stdout=log, stderr=log, cwd=self.folder
            )
        end = time.monotonic() + READY_WITHIN
        probe = [binary("pg_isready"), "-q", "-h", self.address, "-p", str(self.port)]
        while subprocess.run(probe, check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > end:
                end_of_log = (self.folder / "log").read_text("utf-8", "replace")[-2000:]
                raise Terminal(f"PostgreSQL did not start in {self.folder}\n{end_of_log}", code="postgres-not-started")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the server at once, as a crash would; it recovers when it is started again."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
            self.process = None


@contextmanager
def postgres_server(
    address: str = LOOPBACK, trusted: str = f"{LOOPBACK}/32", options: Sequence[str] = ()
) -> Iterator[PostgresServer]:
    """Yield a running server; end it afterwards, and remove its files.

    They are not in pytest's folders: each session of pytest closes these to other users, such as a running server's.
    """
    with TemporaryDirectory(prefix="headrace-postgres-") as place:
        folder = Path(place)
        create_cluster(folder, trusted)
        server = PostgresServer(folder, address, free_ports(1)[0], options)
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
