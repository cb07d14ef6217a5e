"""Hosts on one machine: each a network and process namespace with a name of its own, joined by a bridge.

The state folder is shared, as on a network volume. What the hosts use together, Kafka and PostgreSQL, listens on the
bridge's address outside of them. A host can be cut off (its cable pulled) or stopped (SIGSTOP of all its processes).
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from include.ground.settings import CLONE


def run(*words: str) -> None:
    """Run a command; AssertionError with its output when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"


@dataclass
class Host:
    """A host by its names; `runner` is the process that started its runner, outside of its namespaces."""

    name: str
    network: str
    cable: str
    address: str
    environment: Mapping[str, str]
    runner: subprocess.Popen[bytes] | None = None
    log: Path = Path()

    def inside(self, *words: str) -> list[str]:
        """Return a command that runs on the host: in its network, with processes and a name of its own."""
        spaces = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts")
        named = ("sh", "-c", 'hostname "$0" && exec "$@"', self.name, *words)
        return ["ip", "netns", "exec", self.network, *spaces, *named]

    def start_runner(self, logs: Path) -> None:
        """Start the host's runner, as its service would; its log is in the folder `logs`."""
        self.log = logs / f"{self.name}.log"
        with self.log.open("ab") as output:
            self.runner = subprocess.Popen(
                self.inside(sys.executable, "-m", "include.run.runner"),
                cwd=CLONE,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def command(self, *words: str) -> str:
        """Run `headrace …` on the host; return its output."""
        done = self.run(sys.executable, "-m", "include.cli.main", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, in a process namespace of its own; `more` are further variables."""
        return subprocess.run(
            self.inside(*words),
            cwd=CLONE,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def processes(self) -> list[int]:
        """Return the pids, in the namespace of the machine, of everything that runs in the network of the host."""
        found = subprocess.run(["ip", "netns", "pids", self.network], capture_output=True, text=True, check=True)
        return [int(word) for word in found.stdout.split()]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every process of the host."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """Stop the host as a whole, as a hypervisor would, until no process of it runs."""
        self.send(signal.SIGSTOP)
        time.sleep(0.2)
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all processes of a stopped host run again."""
        self.send(signal.SIGCONT)

    def cut_off(self) -> None:
        """Pull the host's cable: packets vanish, connections stay open."""
        run("ip", "link", "set", self.cable, "down")

    def connect(self) -> None:
        """Plug the cable in again."""
        run("ip", "link", "set", self.cable, "up")

    def kill(self) -> None:
        """Kill everything on the host."""
        for _ in range(3):
            self.send(signal.SIGKILL)
        if self.runner is not None:
            self.runner.wait(30)
            self.runner = None


def _random_prefix() -> str:
    return f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"


@dataclass
class Subnet:
    """The addresses of a network's hosts, a range that is chosen at random."""

    prefix: str = field(default_factory=_random_prefix, kw_only=True)

    @property
    def address(self) -> str:
        """The bridge's own address, at which hosts reach what runs outside of them."""
        return f"{self.prefix}.1"

    @property
    def range(self) -> str:
        """All addresses of the network."""
        return f"{self.prefix}.0/24"


@dataclass
class Network(Subnet):
    """A bridge and its hosts."""

    bridge: str
    hosts: list[Host] = field(default_factory=list)

    def add_host(self, environment: Mapping[str, str]) -> Host:
        """Add a host to the network."""
        number = len(self.hosts) + 2
        name = f"{self.bridge}h{number}"
        host = Host(f"host{number - 1}", name, f"{name}o", f"{self.prefix}.{number}", environment)
        run("ip", "netns", "add", host.network)
        self.hosts.append(host)
        run("ip", "link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.network)
        run("ip", "link", "set", host.cable, "master", self.bridge, "up")
        for words in (
            ("addr", "add", f"{host.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            run("ip", "-n", host.network, *words)
        return host


@contextmanager
def namespaced_network() -> Iterator[Network]:
    """Yield a network without hosts; end everything of it afterwards."""
    name = f"hr{secrets.token_hex(3)}"
    network = Network(name)
    run("ip", "link", "add", name, "type", "bridge")
    try:
        run("ip", "addr", "add", f"{network.address}/24", "dev", name)
        run("ip", "link", "set", name, "up")
        yield network
    finally:
        for host in network.hosts:
            host.resume()
            host.kill()
            run("ip", "netns", "del", host.network)
        run("ip", "link", "del", name)
